/** The hits: pictures in rows of equal height, or sentences as a list. Arrow keys move between them. */

import { h, icon, opensElsewhere, picture } from "./dom.js";

const GAP = 6;
const EAGER = 12; // pictures that are loaded at once; others are loaded when they come near the screen
const NEAR = 600; // distance in pixels at which the end of the list is near the screen
const WHOLE = 200; // up to this many hits are all in the page; of longer lists, only hits near the screen
const BESIDE = 1.5; // number of screens above and below whose hits are in the page
const FLAT = 3; // very wide or tall pictures are cropped to this ratio
const ASPECT = 1.5; // for pictures of unknown size
const LINE_HEIGHT = 52; // pixels
const LONG = 500; // duration in milliseconds of a press that selects an item
const TOGETHER = 150; // milliseconds within which loaded pictures are placed together

const FORMAT = new Intl.DateTimeFormat("en", { month: "long", year: "numeric", timeZone: "UTC" });
const FEW = 6; // with fewer pictures per month, a library is divided into years

const monthOf = ({ fields }) => String(fields.taken ?? fields.modified ?? "").slice(0, 7);
const names = new Map([["", ""]]);

/** A month in readable form: "May 2024". */
function named(month) {
  if (!names.has(month)) names.set(month, FORMAT.format(new Date(`${month}-01T00:00:00Z`)));
  return names.get(month);
}

/** Set the position of an item. */
function put(style, { x, y, width, height }) {
  Object.assign(style, { left: `${x}px`, top: `${y}px`, width: `${width}px`, height: `${height}px` });
}

/**
 * Layout of pictures with the given aspect ratios (width / height) in rows of the given `width` and a height of about
 * `target`: {boxes: [{x, y, width, height, row}], height, least}. All rows except the last fill the width, and the last row
 * is at most `most` high; `least` is the minimum height of the other rows.
 */
function justify(aspects, width, target, most) {
  const boxes = [];
  let y = 0;
  let least = Infinity;
  for (let start = 0, row = 0; start < aspects.length; row++) {
    let end = start;
    let sum = 0;
    const height = () => (width - GAP * (end - start - 1)) / sum;
    while (end < aspects.length && (end === start || height() > target)) sum += aspects[end++];
    let high = height();
    if (high > target)
      high = Math.min(target, most); // the last row is not full
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
    const full = Math.abs(sum * high + GAP * (end - start - 1) - width) < 1;
    let x = 0;
    for (let i = start; i < end; i++) {
      const right = full && i === end - 1 ? width : x + aspects[i] * high;
      boxes.push({ x: Math.round(x), y: Math.round(y), width: Math.round(right) - Math.round(x), height: Math.round(high), row });
      x = right + GAP;
    }
    if (full) least = Math.min(least, high);
    y += Math.round(high) + GAP;
    start = end;
  }
  return { boxes, height: Math.max(0, y - GAP), least };
}

/** Cancel loading a picture that is no longer visible, because other pictures need the connection. */
function forsake(item) {
  const image = item.querySelector("img");
  if (image && !image.complete) image.removeAttribute("src");
}

const aspect = (hit) => Math.min(FLAT, Math.max(1 / FLAT, hit.width && hit.height ? hit.width / hit.height : ASPECT));
const rowHeight = (width) => Math.round(Math.min(250, Math.max(118, 86 + 0.088 * width)));

/**
 * The list in `root`. `address(change)` creates links. `onOpen(id)`, `onLike(id)` and `onLeave()` (arrow up from the
 * first row) report what the user does; `onEnd()` reports that the end is near the screen.
 */
export class Results {
  constructor(root, { selection, address, onOpen, onLike, onLeave, onEnd }) {
    this.root = root;
    this.selection = selection;
    this.address = address;
    this.onLeave = onLeave;
    this.onEnd = onEnd;
    this.#empty();
    this.current = 0;
    this.list = h("ul", { class: "hits", role: "list" });
    this.sentinel = h("div", { class: "sentinel" });
    this.width = 0;
    new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (width !== this.width) this.place();
    }).observe(root);
    let frame = 0;
    const scrolled = () => (frame ||= requestAnimationFrame(() => ((frame = 0), this.draw())));
    addEventListener("scroll", scrolled, { passive: true });
    new IntersectionObserver(([entry]) => entry.isIntersecting && this.hits.length && this.onEnd(), { rootMargin: `${NEAR}px` }).observe(
      this.sentinel,
    );
    this.list.addEventListener("click", (event) => {
      if (this.pressed) {
        this.pressed = false; // the end of a press that selected an item
        return event.preventDefault();
      }
      if (event.target.closest("button.select")) return this.toggle(event.target.closest("li"));
      const link = event.target.closest("a");
      if (!link || opensElsewhere(event)) return;
      if (this.touched && this.selection.ids.length) {
        event.preventDefault();
        return this.toggle(link.closest("li"));
      }
      event.preventDefault();
      const { id } = this.hits[this.placeOf(link)];
      (link.classList.contains("like") ? onLike : onOpen)(id);
    });
    this.list.addEventListener("keydown", (event) => this.key(event, onLike));
    this.#presses();
    this.list.addEventListener("focusin", (event) => {
      this.rove(this.placeOf(event.target));
    });
  }

  /** A long press selects an item. While items are selected, a tap selects an item as well. */
  #presses() {
    let timer = 0;
    const end = () => clearTimeout(timer);
    this.list.addEventListener("pointerdown", ({ pointerType, target }) => {
      end();
      this.touched = pointerType === "touch";
      this.pressed = false;
      const item = target.closest("li[data-at]");
      if (!this.touched || !item) return;
      timer = setTimeout(() => {
        this.pressed = true;
        this.toggle(item);
      }, LONG);
    });
    for (const name of ["pointerup", "pointercancel", "pointerleave"]) this.list.addEventListener(name, end);
    this.list.addEventListener("contextmenu", (event) => this.touched && event.preventDefault());
  }

  /** Show `hits` in place of the current contents. If the list has the focus, it keeps the focus. */
  show(hits, find, label) {
    const focused = this.list.contains(document.activeElement);
    const known = new Map(this.hits.map((hit, i) => [hit.id, this.items[i]]));
    const same = find === this.find;
    for (const item of this.list.children) if (item.dataset.at) item.dataset.at = -1;
    this.#empty();
    this.find = find;
    this.#add(hits);
    const months = new Set(hits.map(monthOf));
    this.byYear = hits.length < FEW * months.size;
    this.items = hits.map((hit) => (same && this.refreshed(known.get(hit.id), hit)) || undefined);
    this.list.className = find === "text" ? "sentences" : "hits";
    this.list.setAttribute("aria-label", label);
    this.root.replaceChildren(this.list, this.sentinel);
    this.current = 0;
    this.place();
    this.mark();
    if (focused) this.focus(0);
  }

  /** Append hits to the list. */
  append(hits) {
    const from = this.hits.length;
    this.#add(hits);
    this.place(from);
  }

  #add(hits) {
    for (const hit of hits) this.at.set(hit.id, this.hits.push(hit) - 1);
  }

  #empty() {
    Object.assign(this, { hits: [], items: [], boxes: [], titles: new Map(), at: new Map() });
  }

  /** Show other elements instead of hits. */
  replace(...children) {
    this.#empty();
    this.list.replaceChildren();
    this.root.replaceChildren(...children);
  }

  /** Whether the end of the list is near the screen, for example because all hits fit on it. */
  get endIsNear() {
    return this.sentinel.isConnected && this.sentinel.getBoundingClientRect().top < innerHeight + (this.hits.length > WHOLE ? 6 : 1) * NEAR;
  }

  focus(at) {
    if (!this.hits[at]) return false;
    if (!this.items[at]?.isConnected) {
      scrollTo(0, scrollY + this.list.getBoundingClientRect().top + this.boxes[at].y - innerHeight / 3);
      this.draw();
    }
    const link = this.items[at].querySelector("a.open");
    link.focus();
    link.scrollIntoView({ block: "nearest" });
    return true;
  }

  focusId(id) {
    return this.focus(this.at.get(id) ?? -1);
  }

  refreshed(item, hit) {
    if (!item) return null;
    item.querySelector("a.open").href = this.address({ open: hit.id, word: "" });
    return item;
  }

  /** The number of the hit whose item contains an element. */
  placeOf(element) {
    return Number(element.closest("li[data-at]")?.dataset.at ?? -1);
  }

  /** The item of a hit, which is created if it does not exist. */
  item(i) {
    const item = this.items[i] ?? this.made(this.hits[i], i);
    item.dataset.at = i;
    if (!this.items[i]) this.#choose(item, i);
    this.items[i] = item;
    item.setAttribute("aria-posinset", i + 1);
    item.setAttribute("aria-setsize", this.hits.length);
    return item;
  }

  made(hit, i) {
    const link = { class: "open", href: this.address({ open: hit.id, word: "" }), draggable: "false" };
    const href = this.address({ like: [hit.id], q: "", open: "", word: "" });
    const more = { href, title: "More like this (m)", "aria-label": `More like ${hit.content}` };
    const like = h("a", { class: "like", draggable: "false", ...more }, icon("like"));
    const select = h("button", { class: "select", type: "button", title: "Select (x)", "aria-label": `Select ${hit.content}` }, icon("check"));
    const { duplicates = [] } = hit;
    const under = duplicates.length && { text: `+${duplicates.length}`, title: `near-duplicates: ${duplicates.join(", ")}` };
    const badge = under ? h("span", { class: "under", ...under }) : null;
    const lazy = { loading: i < EAGER ? "eager" : "lazy", alt: "" };
    if (hit.modality === "text") {
      const beside = hit.thumb ? picture(hit.thumb, hit.group || hit.id, 120, lazy) : null;
      const text = h("span", { class: "sentence", text: hit.content, dir: "auto" });
      return h("li", { class: "sentence-hit" }, h("a", link, beside, text, badge), like, select);
    }
    const onload = hit.width ? null : (event) => this.measured(hit, event.target);
    const image = picture(hit.thumb, hit.content, 160 * aspect(hit), { ...lazy, alt: hit.content, onload });
    return h("li", { class: "hit" }, h("a", link, image, badge), like, select);
  }

  /** Handle that a picture has loaded whose size the server did not know. */
  measured(hit, { naturalWidth, naturalHeight }) {
    Object.assign(hit, { width: naturalWidth, height: naturalHeight });
    clearTimeout(this.placing);
    this.placing = setTimeout(() => this.place(), TOGETHER);
  }

  toggle(item) {
    this.selection.toggle(this.hits[this.placeOf(item)]);
  }

  /** Mark the selected hits. */
  mark() {
    this.list.classList.toggle("choosing", this.selection.ids.length > 0);
    for (const item of this.list.querySelectorAll("li[data-at]")) this.#choose(item, this.placeOf(item));
  }

  #choose(item, i) {
    const chosen = this.selection.has(this.hits[i].id);
    item.classList.toggle("selected", chosen);
    item.querySelector("button.select").setAttribute("aria-pressed", chosen);
    for (const link of item.querySelectorAll("a, button")) link.tabIndex = i === this.current ? 0 : -1;
  }

  /** The title of the group of a picture of a library, its month or year; hits are one group. */
  title(i) {
    const hit = this.hits[i];
    if (hit.score !== undefined) return "";
    return this.byYear ? monthOf(hit).slice(0, 4) : named(monthOf(hit));
  }

  /** Lay out the hits from number `from` on, including the row to which it belongs, and draw them. */
  place(from = 0) {
    const width = Math.floor(this.root.clientWidth - this.padding());
    let at = width === this.width ? Math.min(from, this.boxes.length) : 0;
    this.width = width;
    const { row: last } = this.boxes[at - 1] ?? {};
    while (at && this.boxes[at - 1].row === last) at--;
    if (!at) this.least = Infinity;
    for (let again = !at; this.#lay(at, width) && again; again = false); // again if a last row was higher than other rows
    this.drawn = "";
    this.draw();
  }

  /** Lay out the hits from number `from` on, which must begin a row. Return whether an incomplete row is higher than a full row. */
  #lay(from, width) {
    const { boxes, titles } = this;
    boxes.length = from;
    for (const at of titles.keys()) if (at >= from) titles.delete(at);
    const end = boxes.at(-1);
    let [down, row, title] = end ? [end.y + end.height + GAP, end.row + 1, this.title(from - 1)] : [0, 0, ""];
    const most = this.least;
    for (let start = from, stop; start < this.hits.length; start = stop) {
      const own = this.title(start);
      for (stop = start + 1; stop < this.hits.length && this.title(stop) === own; ) stop++;
      if (own && own !== title) {
        titles.set(start, h("li", { class: "line", text: own, style: { top: `${down}px` } }));
        down += LINE_HEIGHT;
      }
      title = own;
      if (this.find === "text" || width <= 0) continue;
      const part = justify(this.hits.slice(start, stop).map(aspect), width, rowHeight(width), this.least);
      this.least = Math.min(this.least, part.least);
      for (const box of part.boxes) boxes.push({ ...box, y: box.y + down, row: box.row + row });
      down += part.height + GAP;
      row = boxes.at(-1).row + 1;
    }
    this.list.style.height = this.find === "text" ? "" : `${down}px`;
    return this.least < most;
  }

  /** Keep the items on and near the screen in the page, in order, with a title before each group. */
  draw() {
    const [from, to] = this.#near();
    if (this.drawn === `${from} ${to}`) return;
    this.drawn = `${from} ${to}`;
    const wanted = [];
    for (let i = from; i < to; i++) wanted.push(...(this.titles.has(i) ? [this.titles.get(i)] : []), this.item(i));
    const held = this.list.querySelector(":scope > li:focus-within");
    const at = held ? this.placeOf(held) : -1;
    if (at >= 0 && at < from) wanted.unshift(held);
    if (held && at >= to) wanted.push(held);
    const kept = new Set(wanted);
    for (const node of [...this.list.children]) {
      if (kept.has(node)) continue;
      forsake(node);
      if (node.dataset.at >= 0) delete this.items[node.dataset.at];
      node.remove();
    }
    let next = this.list.firstChild;
    for (const node of wanted) {
      if (node === next) next = next.nextSibling;
      else this.list.insertBefore(node, next);
    }
    for (let i = from; i < to; i++) if (this.boxes[i]) put(this.items[i].style, this.boxes[i]);
    if (this.hits.length > WHOLE && this.endIsNear) this.onEnd();
  }

  /** The numbers of the first hit near the screen, and of the first hit beyond it. */
  #near() {
    const all = this.hits.length;
    if (all <= WHOLE || !this.boxes.length) return [0, all];
    const top = -this.list.getBoundingClientRect().top;
    const first = (y) => {
      let [low, high] = [0, all];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.boxes[middle].y < y) low = middle + 1;
        else high = middle;
      }
      return low;
    };
    const rows = rowHeight(this.width);
    return [first(top - BESIDE * innerHeight - rows), first(top + (1 + BESIDE) * innerHeight)];
  }

  padding() {
    const { paddingLeft, paddingRight } = getComputedStyle(this.root);
    return Number.parseFloat(paddingLeft) + Number.parseFloat(paddingRight);
  }

  rove(at) {
    const before = this.current;
    this.current = Math.max(0, Math.min(at, this.hits.length - 1));
    for (const i of [before, this.current]) if (this.items[i]) this.#choose(this.items[i], i);
  }

  key(event, onLike) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const at = this.current;
    const last = this.hits.length - 1;
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

  /** The number of the hit above or below, or -1 above the first row. */
  beside(at, step) {
    if (this.find === "text") return Math.min(this.hits.length - 1, at + step);
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
