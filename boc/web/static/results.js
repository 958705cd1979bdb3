/** The hits: pictures in rows of equal height, or sentences as a list; arrows move between them. */

import { h, icon, picture, score } from "./dom.js";

const GAP = 6;
const EAGER = 12; // pictures that are asked for at once; others as they come near the screen
const NEAR = 600; // pixels below the screen where the end is near
const FLAT = 3; // widest and tallest pictures are cut to this ratio
const ASPECT = 1.5; // of a picture whose size is not known
const LINE = 0.5; // confidence below which a hit is probably wrong
const LINE_HEIGHT = 52; // pixels
const TOGETHER = 150; // milliseconds in which pictures that came are placed at once

const MONTH = new Intl.DateTimeFormat("en", { month: "long", year: "numeric", timeZone: "UTC" });
const FEW = 6; // pictures of a month below which a library is divided into years

const improbable = ({ confidence }) => typeof confidence === "number" && confidence < LINE;

/** The hits above the line before those below it, in their order otherwise. */
export const probableFirst = (hits) => [...hits.filter((hit) => !improbable(hit)), ...hits.filter(improbable)];

/**
 * Places of pictures of these aspect ratios (width / height) in rows `width` wide, about `target` high:
 * {boxes: [{x, y, width, height, row}], height}. Rows but the last are as wide as the page.
 */
function justify(aspects, width, target, gap = GAP) {
  const boxes = [];
  let y = 0;
  for (let start = 0, row = 0; start < aspects.length; row++) {
    let end = start;
    let sum = 0;
    const height = () => (width - gap * (end - start - 1)) / sum;
    while (end < aspects.length && (end === start || height() > target)) sum += aspects[end++];
    let high = height();
    if (high > target)
      high = target; // the last row is not full
    else if (end - start > 1) {
      const with_ = high;
      const last = aspects[--end];
      sum -= last;
      high = height();
      if (high / target > target / with_) {
        sum += last;
        end++;
        high = with_;
      }
    }
    const full = Math.abs(sum * high + gap * (end - start - 1) - width) < 1;
    let x = 0;
    for (let i = start; i < end; i++) {
      const right = full && i === end - 1 ? width : x + aspects[i] * high;
      boxes.push({
        x: Math.round(x),
        y: Math.round(y),
        width: Math.round(right) - Math.round(x),
        height: Math.round(high),
        row,
      });
      x = right + gap;
    }
    y += Math.round(high) + gap;
    start = end;
  }
  return { boxes, height: Math.max(0, y - gap) };
}

/** Do not wait any more for a picture that nobody sees: others need the line. */
function forsake(item) {
  const image = item.querySelector("img");
  if (image && !image.complete) image.removeAttribute("src");
}

const aspect = (hit) => Math.min(FLAT, Math.max(1 / FLAT, hit.width && hit.height ? hit.width / hit.height : ASPECT));
const rowHeight = (width) => Math.round(Math.min(250, Math.max(118, 86 + 0.088 * width)));

/**
 * The list in `root`. `address(change)` makes links; `onOpen(id)`, `onLike(id)` and `onLeave()` (arrow up from the
 * first row) tell what is wanted, `onEnd()` that the end is near the screen.
 */
export class Results {
  constructor(root, { selection, address, onOpen, onLike, onLeave, onEnd }) {
    this.root = root;
    this.selection = selection;
    this.lines = [];
    this.address = address;
    this.onLeave = onLeave;
    this.onEnd = onEnd;
    this.hits = [];
    this.items = [];
    this.boxes = [];
    this.current = 0;
    this.list = h("ul", { class: "hits", role: "list" });
    this.sentinel = h("div", { class: "sentinel" });
    this.width = 0;
    new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (width !== this.width) this.place();
    }).observe(root);
    new IntersectionObserver(([entry]) => entry.isIntersecting && this.hits.length && this.onEnd(), {
      rootMargin: `${NEAR}px`,
    }).observe(this.sentinel);
    this.list.addEventListener("click", (event) => {
      if (event.target.closest("button.select")) return this.toggle(event.target.closest("li"));
      const link = event.target.closest("a");
      if (!link || event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      const { id } = this.hits[this.items.indexOf(link.closest("li"))];
      (link.classList.contains("like") ? onLike : onOpen)(id);
    });
    this.list.addEventListener("keydown", (event) => this.key(event, onLike));
    this.list.addEventListener("focusin", (event) => {
      const at = this.items.indexOf(event.target.closest("li"));
      if (at >= 0) this.rove(at);
    });
  }

  /** Show `hits` in place of what is there; focus stays in the list if it was. */
  show(hits, find, label) {
    const focused = this.list.contains(document.activeElement);
    const known = new Map(this.hits.map((hit, i) => [hit.id, this.items[i]]));
    const same = find === this.find;
    const before = this.items;
    this.rove(-1);
    this.find = find;
    this.hits = [...hits];
    this.items = hits.map((hit, i) => (same && this.refreshed(known.get(hit.id), hit)) || this.item(hit, i));
    this.mark();
    for (const item of before) if (!this.items.includes(item)) forsake(item);
    this.list.className = find === "text" ? "sentences" : "hits";
    this.list.setAttribute("aria-label", label);
    this.list.replaceChildren(...this.items);
    this.root.replaceChildren(this.list, this.sentinel);
    this.rove(0);
    this.place();
    if (focused) this.focus(0);
  }

  /** Show more hits behind those that are there. */
  append(hits) {
    const items = hits.map((hit, i) => this.item(hit, this.hits.length + i));
    this.hits.push(...hits);
    this.items.push(...items);
    this.list.append(...items);
    this.mark();
    this.place();
  }

  /** Show something else than hits. */
  replace(...children) {
    this.hits = [];
    this.items = [];
    this.boxes = [];
    this.root.replaceChildren(...children);
  }

  /** Whether the end of the list is still near the screen, as it is where all hits fit on it. */
  get endIsNear() {
    return this.sentinel.isConnected && this.sentinel.getBoundingClientRect().top < window.innerHeight + NEAR;
  }

  focus(at) {
    const link = this.items[at]?.querySelector("a.open");
    if (!link) return false;
    link.focus();
    link.scrollIntoView({ block: "nearest" });
    return true;
  }

  focusId(id) {
    return this.focus(this.hits.findIndex((hit) => hit.id === id));
  }

  refreshed(item, hit) {
    if (!item) return null;
    if (Boolean(item.querySelector(".score")) !== (hit.score !== undefined)) return null;
    if (hit.score !== undefined) item.querySelector(".score").textContent = score(hit.score);
    item.querySelector("a.open").href = this.address({ open: hit.id, word: "" });
    return item;
  }

  item(hit, i) {
    const link = { class: "open", href: this.address({ open: hit.id, word: "" }), tabindex: "-1", draggable: "false" };
    const points = hit.score === undefined ? null : h("span", { class: "score", text: score(hit.score), title: "score" });
    const like = h(
      "a",
      {
        class: "like",
        href: this.address({ like: [hit.id], q: "", open: "", word: "" }),
        tabindex: "-1",
        draggable: "false",
        title: "More like this (m)",
        "aria-label": `More like ${hit.content}`,
      },
      icon("like"),
    );
    const select = h(
      "button",
      { class: "select", type: "button", tabindex: "-1", title: "Select (x)", "aria-label": `Select ${hit.content}` },
      icon("check"),
    );
    const under = hit.duplicates?.length
      ? h("span", { class: "under", text: `+${hit.duplicates.length}`, title: `near-duplicates: ${hit.duplicates.join(", ")}` })
      : null;
    const lazy = { loading: i < EAGER ? "eager" : "lazy", alt: "" };
    if (hit.modality === "text") {
      const beside = hit.thumb ? picture(hit.thumb, hit.group || hit.id, 120, lazy) : null;
      const text = h("span", { class: "sentence", text: hit.content, dir: "auto" });
      return h("li", { class: "sentence-hit" }, h("a", link, beside, text, points, under), like, select);
    }
    const onload = hit.width ? null : (event) => this.measured(hit, event.target);
    const image = picture(hit.thumb, hit.content, 160 * aspect(hit), { ...lazy, alt: hit.content, onload });
    return h("li", { class: "hit" }, h("a", link, image, points, under), like, select);
  }

  /** The picture of a hit whose size the server did not know is there. */
  measured(hit, { naturalWidth, naturalHeight }) {
    Object.assign(hit, { width: naturalWidth, height: naturalHeight });
    clearTimeout(this.placing);
    this.placing = setTimeout(() => this.place(), TOGETHER);
  }

  toggle(item) {
    this.selection.toggle(this.hits[this.items.indexOf(item)]);
  }

  /** Show which hits are selected. */
  mark() {
    this.items.forEach((item, i) => {
      const chosen = this.selection.has(this.hits[i].id);
      item.classList.toggle("selected", chosen);
      item.querySelector("button.select").setAttribute("aria-pressed", chosen);
    });
  }

  /** The hits that are probably right; all, where nothing tells. */
  get probable() {
    const at = this.hits.findIndex(improbable);
    return at < 0 ? this.hits.length : at;
  }

  /** Groups of hits, each {at: its first, title}: above and below the line, or the months of a library. */
  groups() {
    const at = this.probable;
    if (this.hits.some((hit) => hit.score !== undefined)) {
      const title = at ? "Less certain" : "Probably nothing here shows that; the nearest are";
      return [...(at ? [{ at: 0, title: "" }] : []), ...(at < this.hits.length ? [{ at, title }] : [])];
    }
    const dates = this.hits.map(({ fields }) => fields.taken ?? fields.modified ?? "");
    const months = dates.map((date) => date.slice(0, 7));
    const byYear = dates.length < FEW * new Set(months).size;
    const named = (month) => (byYear ? month.slice(0, 4) : month && MONTH.format(new Date(`${month}-01T00:00:00Z`)));
    return months
      .map((month, i) => ({ at: i, title: named(month) }))
      .filter(({ at: i, title }) => !i || title !== named(months[i - 1]));
  }

  place() {
    for (const line of this.lines) line.remove();
    const groups = this.groups().map((group) => ({ ...group, line: h("li", { class: "line", text: group.title }) }));
    this.lines = groups.filter(({ title }) => title).map(({ line }) => line);
    for (const { at, title, line } of groups) if (title) this.items[at].before(line);
    const width = Math.floor(this.root.clientWidth - this.padding());
    this.width = width;
    if (!this.items.length || this.find === "text" || width <= 0) {
      this.list.style.height = "";
      return;
    }
    const aspects = this.hits.map(aspect);
    let down = 0;
    let rows = 0;
    this.boxes = groups.flatMap(({ at, title, line }, i) => {
      const part = justify(aspects.slice(at, groups[i + 1]?.at), width, rowHeight(width));
      line.style.top = `${down}px`;
      const top = down + (title ? LINE_HEIGHT : 0);
      down = top + part.height + GAP;
      const above = rows;
      rows += (part.boxes.at(-1)?.row ?? -1) + 1;
      return part.boxes.map((box) => ({ ...box, y: box.y + top, row: box.row + above }));
    });
    this.list.style.height = `${down}px`;
    this.boxes.forEach(({ x, y, width: wide, height: high }, i) => {
      const { style } = this.items[i];
      style.left = `${x}px`;
      style.top = `${y}px`;
      style.width = `${wide}px`;
      style.height = `${high}px`;
    });
  }

  padding() {
    const { paddingLeft, paddingRight } = getComputedStyle(this.root);
    return Number.parseFloat(paddingLeft) + Number.parseFloat(paddingRight);
  }

  rove(at) {
    this.items[this.current]?.querySelectorAll("a, button").forEach((link) => link.setAttribute("tabindex", "-1"));
    this.current = Math.max(0, Math.min(at, this.items.length - 1));
    if (at < 0) return;
    this.items[this.current]?.querySelectorAll("a, button").forEach((link) => link.setAttribute("tabindex", "0"));
  }

  key(event, onLike) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const at = this.current;
    const last = this.items.length - 1;
    const steps = {
      ArrowLeft: () => Math.max(0, at - 1),
      ArrowRight: () => Math.min(last, at + 1),
      ArrowUp: () => this.beside(at, -1),
      ArrowDown: () => this.beside(at, 1),
      Home: () => 0,
      End: () => last,
    };
    if (event.key === "m") onLike(this.hits[at].id);
    else if (event.key === "x") this.toggle(this.items[at]);
    else if (!(event.key in steps)) return;
    else {
      const to = steps[event.key]();
      if (to < 0) this.onLeave();
      else this.focus(to);
    }
    event.preventDefault();
  }

  /** The hit above or below; -1 above the first row. */
  beside(at, step) {
    if (this.find === "text") return Math.min(this.items.length - 1, at + step);
    const from = this.boxes[at];
    const row = from.row + step;
    if (row < 0) return -1;
    const middle = from.x + from.width / 2;
    let best = at;
    let nearest = Infinity;
    this.boxes.forEach((box, i) => {
      const distance = Math.abs(box.x + box.width / 2 - middle);
      if (box.row === row && distance < nearest) [best, nearest] = [i, distance];
    });
    return best;
  }
}
