/** Helpers that create elements. Text is always set as text, so data from the server is never interpreted as HTML. */

const SVG = "http://www.w3.org/2000/svg";
const SIDES = [240, 480, 960, 1920]; // sizes of the thumbnails that the server creates
const GROUPED = new Intl.NumberFormat("en-GB");

/**
 * Create an element. `props` are attributes, `style` (an object, set by CSSOM as the security policy requires), `on…`
 * listeners, and `text`. True sets an attribute without a value; false and null skip it. Strings in `children` become text.
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") style(element, value);
    else if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Set CSS properties, including custom properties. */
export function style(element, properties) {
  for (const [name, value] of Object.entries(properties)) element.style.setProperty(name, value);
}

/** One of the icons that the template defines. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

/** An integer with thousands separators: 12,345. */
export const count = (n) => GROUPED.format(n);

/** "1 picture", "2 pictures". */
export const many = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

/** A score: cosines and fused ranks with three digits, sums of products as integers. */
export const score = (value) =>
  Math.abs(value) >= 100 ? count(Math.round(value)) : Math.abs(value) >= 0.1 ? value.toFixed(3) : value.toPrecision(3);

/** A picture that shows its name if it cannot be loaded. `side` is in device-independent pixels. */
export function picture(thumb, name, side, props = {}) {
  const frame = h("span", { class: "picture" });
  const wanted = side * Math.min(window.devicePixelRatio || 1, 2);
  const size = SIDES.find((each) => wanted <= 1.15 * each) ?? SIDES.at(-1);
  const image = h("img", { alt: name, draggable: "false", decoding: "async", ...props });
  image.addEventListener("error", () => {
    image.hidden = true;
    frame.classList.add("broken");
    frame.append(h("span", { class: "broken-name", text: name }));
  });
  image.src = thumb.startsWith("blob:") ? thumb : `${thumb}?side=${size}`;
  frame.append(image);
  return frame;
}

/** Whether a click on a link opens another tab or window. */
export const opensElsewhere = ({ metaKey, ctrlKey, shiftKey }) => metaKey || ctrlKey || shiftKey;
