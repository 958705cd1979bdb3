/** A picture with regions drawn on it, and a small example picture with its region. */

import { h, picture, style } from "./dom.js";

const STRONGEST = 0.72; // opacity for the maximum value; the picture stays visible
const CONTRAST = 1.6; // exponent that makes large values stand out from medium values
const DRAWN = 5; // maximum number of marked regions

const cut = (box) => box.map((x) => Math.min(1, Math.max(0, x)));
const percent = (x) => `${(100 * x).toFixed(2)}%`;

function placed(element, box) {
  const [x1, y1, x2, y2] = cut(box);
  style(element, { left: percent(x1), top: percent(y1), width: percent(x2 - x1), height: percent(y2 - y1) });
  return element;
}

/** Opacities from 0 for the minimum value to STRONGEST for the maximum; all 0 if the values are equal. */
export function shades(values) {
  const low = Math.min(...values);
  const span = Math.max(...values) - low;
  return values.map((value) => (span ? STRONGEST * ((value - low) / span) ** CONTRAST : 0));
}

/** The indices of the largest values greater than zero, largest first. */
function strongest(values) {
  return values
    .map((value, i) => [value, i])
    .filter(([value]) => value > 0)
    .sort(([a, i], [b, j]) => b - a || i - j)
    .slice(0, DRAWN)
    .map(([, i]) => i);
}

/** A picture on which `boxes` (x1 y1 x2 y2 as fractions) can be outlined, or coloured by one value per box. */
export class Scene {
  constructor(thumb, name, boxes, size = null) {
    this.boxes = boxes ?? [];
    this.overlay = h("div", { class: "overlay", "aria-hidden": "true" });
    const image = picture(thumb, name, 1440);
    this.element = h("div", { class: "scene" }, image, this.overlay);
    const shape = ({ width, height }) => width && height && style(this.element, { "--aspect": width / height });
    if (size?.width) shape(size);
    else image.firstChild.addEventListener("load", () => shape({ width: image.firstChild.naturalWidth, height: image.firstChild.naturalHeight }));
  }

  /** Outline the regions with the largest weights, each with its name. */
  mark(weights, names) {
    this.element.classList.remove("heated");
    this.overlay.replaceChildren(
      ...(this.boxes.length && weights ? strongest(weights) : [])
        .reverse()
        .map((i) => placed(h("i", { class: "region" }, h("b", { text: names[i] })), this.boxes[i])),
    );
  }

  /** Colour each region by its value. */
  heat(values) {
    this.element.classList.add("heated");
    const depth = shades(values);
    this.overlay.replaceChildren(
      ...this.boxes.map((box, i) => {
        const cell = placed(h("i", { class: "cell" }), box);
        style(cell, { "--v": depth[i].toFixed(3) });
        return cell;
      }),
    );
  }
}

/** A small square with an example picture and its box. */
export function example({ id, thumb, box }, side) {
  const name = id.split("/").pop();
  const shown = picture(thumb, name, side, { title: name, loading: "lazy" });
  return h("span", { class: "example-picture" }, shown, box && placed(h("i", { class: "region" }), box));
}
