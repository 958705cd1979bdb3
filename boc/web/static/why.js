/** The dialog that shows an item: the picture, its details and, if expanded, the reasons why it was found. */

import { explain, item as itemOf, withId } from "./api.js";
import { count, h, icon, opensElsewhere, score } from "./dom.js";
import { Scene, shades } from "./scene.js";
import { termTable } from "./shared_terms.js";

const WORDS = 20; // maximum number of words that are shown
const DATE = new Intl.DateTimeFormat("en-GB", { dateStyle: "long", timeStyle: "short", timeZone: "UTC" });
const SWIPE = 48; // pixels
const ALIKE = 0.05; // smaller differences between cosines mean little

/** A value in readable form: 22 December 2025 at 10:40. */
function spoken(value) {
  const date = /^\d{4}-\d\d-\d\dT[\d:.]+$/.test(value) ? new Date(`${value}Z`) : NaN;
  return Number.isNaN(date.valueOf()) ? String(value) : DATE.format(date);
}

/** `onMove(-1 or 1)`, `onClose()`, `onLike(id)`, `onQuery(sentence)`, `onWord(word)` and `onFailed(error)` report what the user does. */
export class Why {
  constructor(dialog, actions) {
    Object.assign(this, actions);
    this.dialog = dialog;
    this.running = null;
    this.body = h("div", { class: "why-body" });
    this.title = h("h2", { id: "why-title" });
    this.place = h("span", { class: "place" });
    this.previous = this.button("left", "Previous (←)", () => this.onMove(-1));
    this.next = this.button("right", "Next (→)", () => this.onMove(1));
    const like = { class: "button", href: "", title: "More like this (m)" };
    this.like = h("a", like, icon("like"), h("span", {}, "More like this"));
    this.like.addEventListener("click", (event) => {
      if (opensElsewhere(event)) return;
      event.preventDefault();
      this.onLike(this.id);
    });
    this.save = h("a", { class: "icon", href: "", download: "", title: "Save the original" }, icon("save"));
    this.less = this.button("less", "Less like this", () => this.onUnlike(this.id));
    const shut = this.button("close", "Close (Esc)", () => this.onClose());
    dialog.replaceChildren(h("header", {}, this.title, this.place, this.previous, this.next, this.save, this.like, this.less, shut), this.body);
    dialog.addEventListener("cancel", (event) => (event.preventDefault(), this.onClose()));
    dialog.addEventListener("click", (event) => event.target === dialog && this.onClose());
    dialog.addEventListener("keydown", (event) => this.key(event));
    this.swipes();
  }

  button(name, title, onclick) {
    return h("button", { class: "icon", type: "button", title, onclick }, icon(name));
  }

  /** Swiping sideways over the picture shows the next or the previous picture. */
  swipes() {
    let from = null;
    const begin = ({ touches }) => (from = touches.length === 1 && visualViewport.scale === 1 ? touches[0] : null);
    const end = ({ changedTouches: [to] }) => {
      const [x, y] = from ? [to.clientX - from.clientX, to.clientY - from.clientY] : [0, 0];
      if (Math.abs(x) > SWIPE && Math.abs(x) > 2 * Math.abs(y)) (x < 0 ? this.next : this.previous).click();
    };
    this.body.addEventListener("touchstart", begin, { passive: true });
    this.body.addEventListener("touchend", end, { passive: true });
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, pre")) return;
    if (event.key === "ArrowLeft") this.onMove(-1);
    else if (event.key === "ArrowRight") this.onMove(1);
    else if (event.key === "m") this.onLike(this.id);
    else return;
    event.preventDefault();
  }

  /** Show that the item is number `at` of `of`; -1 if it is not in the list. */
  number(at, of) {
    this.previous.disabled = at <= 0;
    this.next.disabled = at < 0 || at >= of - 1;
    this.place.textContent = at >= 0 ? `${at + 1} of ${of}` : "";
  }

  /** Show item `id`, number `at` of `of`. `hit` contains the known details. */
  async show(id, { hit, at, of, state, picture, asked }) {
    this.running?.abort();
    this.running = new AbortController();
    const { signal } = this.running;
    this.id = id;
    this.context = { hit, state, picture, asked };
    this.chosen = state.word;
    this.like.href = `?${new URLSearchParams({ like: id })}`;
    this.number(at, of);
    this.title.textContent = hit?.modality === "image" ? hit.content : "";
    this.save.href = withId("api/picture", id);
    this.save.hidden = hit?.modality !== "image";
    this.unfolded ||= Boolean(state.word);
    this.early(hit);
    if (!this.dialog.open) this.dialog.showModal();
    this.body.scrollTop = 0;
    await this.attempt(this.told, async () => this.draw(await itemOf(id, signal), null), signal);
  }

  /** Run `work`, which sends a request. If it fails, show the error in `place` with a button to try again. */
  async attempt(place, work, signal) {
    try {
      await work();
    } catch (error) {
      if (error.name === "AbortError" || signal.aborted) return;
      const onclick = () => this.attempt(place, work, signal);
      const again = h("button", { class: "button", type: "button", onclick }, "Try again");
      place.replaceChildren(h("div", { class: "message", role: "alert" }, h("p", { text: error.message }), again));
      this.onFailed(error);
    }
  }

  close() {
    this.running?.abort();
    if (this.dialog.open) this.dialog.close();
  }

  /** Show the picture before the response arrives. */
  early(hit) {
    this.seen = h("div", { class: "seen", role: "region", "aria-label": "The item", tabindex: "0" });
    this.told = h(
      "div",
      { class: "told", role: "region", "aria-label": "Details", tabindex: "0" },
      h("p", { class: "loading", role: "status" }, "Loading …"),
    );
    if (hit?.modality === "image") this.seen.append(new Scene(hit.thumb, hit.content, null, hit).element);
    else if (hit) this.seen.append(h("blockquote", { text: hit.content, dir: "auto" }));
    this.body.replaceChildren(this.seen, this.told);
  }

  /** Show the details of an item, with an explanation below, which is requested when it is expanded. */
  draw(item) {
    this.item = item;
    this.found = null;
    this.title.textContent = item.modality === "image" ? item.content : "A sentence";
    this.save.hidden = item.modality !== "image";
    this.drawSeen();
    this.told.replaceChildren(...[this.fields(), this.captions(), this.words(), this.fold()].filter(Boolean));
    this.rest();
  }

  fold() {
    if (!this.context.asked) return null;
    const body = h("div", { class: "reasons" }, h("p", { class: "loading", role: "status" }, "Loading the explanation …"));
    const details = h("details", { class: "reason" }, h("summary", {}, "Why was it found?"), body);
    const { signal } = this.running;
    const { state, picture } = this.context;
    details.addEventListener("toggle", () => {
      this.unfolded = details.open;
      if (!details.open || this.found) return;
      this.attempt(body, async () => this.explain(await explain(this.id, state, picture?.file, signal), body), signal);
    });
    details.open = this.unfolded;
    return details;
  }

  explain(found, body) {
    this.found = found;
    this.drawSeen();
    const looks = (term) => this.looks(term);
    const back = () => this.word(this.chosen, true);
    const words = this.context.state.q.toLowerCase().split(/[^\p{L}\p{N}]+/u);
    for (const term of found.terms) term.words.sort((a, b) => words.includes(b) - words.includes(a));
    body.replaceChildren(this.head(), termTable(found, looks, back));
    this.word(this.chosen, true);
  }

  /** Show the picture or sentence, and the words that can be located in it. */
  drawSeen() {
    const { item, found } = this;
    const { picture, state } = this.context;
    const parts = found?.item_parts ?? null;
    const asks = found?.query_parts ?? null;
    const aligned = found?.alignment?.length ? found.alignment : null;
    this.weights = parts?.weights ?? null;
    this.scene = null;
    this.choices = null;
    this.sentence = null;
    const children = [];
    if (item.modality === "image") {
      this.scene = new Scene(item.thumb, item.content, parts?.boxes, item);
      this.names = parts?.names ?? [];
      children.push(this.scene.element);
      if (aligned && parts?.boxes) this.choices = this.chips(asks.names, (i) => aligned[i]);
    } else {
      this.sentence = this.shaded(item.content, parts);
      children.push(this.sentence);
      if (found && (picture || state.like)) {
        const thumb = picture ? picture.url : withId("api/thumb", state.like);
        if (picture || asks?.boxes) this.scene = new Scene(thumb, "your query", asks?.boxes);
        this.names = asks?.names ?? [];
        this.weights = this.scene && aligned ? aligned.map((row) => Math.max(...row)) : null;
        if (this.scene) children.push(this.scene.element);
        if (aligned && asks?.boxes) this.choices = this.chips(parts.names, (j) => aligned.map((row) => row[j]));
      }
    }
    if (this.choices) children.push(this.choices.element);
    this.note = h("p", { class: "hint" });
    children.push(this.note);
    this.seen.replaceChildren(...children.filter(Boolean));
  }

  /** A sentence whose words are coloured by their weights. */
  shaded(text, parts) {
    const quote = h("blockquote", { dir: "auto" });
    if (!parts?.weights) quote.textContent = text;
    else {
      const depth = shades(parts.weights);
      parts.names.forEach((name, i) => {
        const shade = { "--v": (0.6 * depth[i]).toFixed(3) };
        quote.append(h("span", { class: "weighed", text: name, title: parts.weights[i].toFixed(3), style: shade }), " ");
      });
    }
    return quote;
  }

  /** Buttons for words (or regions); `values(i)` are the values by which word i colours the picture. */
  chips(names, values) {
    const buttons = names.map((name, i) => {
      const choose = () => this.onWord(this.chosen === name ? "" : name);
      const look = () => this.heat(values(i), name);
      const back = () => this.word(this.chosen, true);
      const hidden = !/[\p{L}\p{N}]/u.test(name); // punctuation
      const looks = { onmouseenter: look, onfocus: look, onmouseleave: back, onblur: back };
      return h("button", { type: "button", class: "word", hidden, "aria-pressed": "false", text: name, onclick: choose, ...looks });
    });
    const group = { class: "words", role: "group", "aria-label": "Words to locate in the picture" };
    const element = h("div", group, h("span", { class: "hint" }, "Where is"), ...buttons);
    return { element, buttons, names, values };
  }

  /** Locate a word of the sentence in the picture; an empty word shows the most important regions again. */
  word(name, redraw = false) {
    const same = name === this.chosen;
    this.chosen = name;
    if ((!this.found && !this.item) || (same && !redraw)) return;
    const at = this.choices ? this.choices.names.indexOf(name) : -1;
    this.choices?.buttons.forEach((button, i) => button.setAttribute("aria-pressed", i === at));
    if (at >= 0) this.heat(this.choices.values(at), name);
    else this.rest();
  }

  heat(values, name) {
    this.scene.heat(values);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const alike = high - low < ALIKE ? " They barely differ here." : "";
    const range = `cosines from ${low.toFixed(3)} to ${high.toFixed(3)}.`;
    this.note.textContent = `Brighter regions are closer to “${name}”: ${range}${alike}`;
  }

  rest() {
    const { found, scene, weights, names } = this;
    if (scene) scene.mark(weights, names);
    if (!found) this.note.textContent = "";
    else if (found.missing && !weights) this.note.textContent = `No regions to show: ${found.missing}.`;
    else if (!weights && this.sentence === null) this.note.textContent = "";
    else if (scene && this.sentence) {
      this.note.textContent = "The terms describe the whole sentence. The marked regions of your picture are closest to it.";
    } else {
      const parts = scene ? "regions" : "words";
      const whole = `The terms describe the whole ${this.item.modality === "image" ? "picture" : "sentence"}. The marked ${parts} are closest to the query.`;
      this.note.textContent = found.weighed_by === "terms" ? `The marked ${parts} contribute most to the shared terms.` : whole;
    }
  }

  head() {
    const { found } = this;
    const { state, picture, hit } = this.context;
    const sentence = picture || state.like ? "" : `“${state.q.trim()}”`;
    const asked = sentence && h("p", { class: "asked", text: sentence, dir: "auto" });
    const image = picture
      ? { src: picture.url, alt: "The picture you searched by" }
      : state.like && { src: `${withId("api/thumb", state.like)}?side=240`, alt: `The item you searched by: ${state.like}` };
    const by = image ? h("img", { class: "asked-picture", ...image }) : null;
    by?.addEventListener("error", () => by.replaceWith(h("p", { class: "asked", text: `like ${state.like}` })));
    const figure = (name, text, props = {}) => h("div", {}, h("dt", {}, name), h("dd", { ...props, text }));
    const sum = figure("score by terms", count(found.score), { class: "sum", "data-sum": found.score });
    const figures = [sum, figure("shared terms", count(found.terms.length)), hit && figure("score after re-ranking", score(hit.score))];
    return h("div", { class: "head" }, asked || by, h("dl", { class: "figures" }, figures));
  }

  /** A function that shows a term in the picture: the regions that contribute to the term, or the regions close to a word of its label. */
  looks(term) {
    if (!this.scene?.boxes.length) return null;
    if (term.parts?.some(Boolean) && this.item.modality === "image") {
      return () => {
        this.scene.mark(term.parts, this.names);
        const words = term.words.length ? ` (${term.words.join(", ")})` : "";
        this.note.textContent = `The marked regions contribute to term ${term.term}${words}.`;
      };
    }
    const at = this.choices ? this.choices.names.findIndex((name) => term.words.includes(name.toLowerCase())) : -1;
    return at < 0 ? null : () => this.heat(this.choices.values(at), this.choices.names[at]);
  }

  captions() {
    const captions = this.item.captions.filter((caption) => caption !== this.item.content);
    if (!captions.length) return null;
    const title = this.item.modality === "image" ? "Its captions" : "Other captions of the same picture";
    return h("section", {}, h("h3", {}, title), h("ul", { class: "captions" }, ...captions.map((text) => h("li", { text, dir: "auto" }))));
  }

  /** The words as which the picture is encoded; each word is a link to a search. */
  words() {
    const { words } = this.item;
    if (!words?.length) return null;
    const most = words[0].frequency;
    const links = words.slice(0, WORDS).map(({ word, frequency }) => {
      const style = { opacity: 0.55 + (0.45 * frequency) / most };
      const link = h("a", { href: `?${new URLSearchParams({ q: word })}`, title: `frequency ${count(frequency)}`, style }, word);
      link.addEventListener("click", (event) => {
        if (opensElsewhere(event)) return;
        event.preventDefault();
        this.onQuery(word);
      });
      return h("li", {}, link);
    });
    return h("section", {}, h("h3", {}, "Encoded as"), h("ul", { class: "written" }, ...links));
  }

  fields() {
    const { item } = this;
    const { width, height, size, orientation, name: words, taken, taken_from, camera, folder, modified, ...rest } = item.fields ?? {};
    const sizes = [width && height && `${width} × ${height} pixels`, size && `${count(Math.ceil(size / 1000))} kB`].filter(Boolean);
    const known = {
      taken,
      camera,
      folder,
      ...rest,
      size: sizes.join(", "),
      modified: taken ? "" : modified,
      id: item.id === item.content ? "" : item.id,
    };
    const shown = Object.entries(known).filter(([, value]) => value !== undefined && value !== "");
    const row = ([name, value]) => h("div", {}, h("dt", { text: name }), h("dd", { text: [value].flat().map(spoken).join(", ") }));
    return h("dl", { class: "fields" }, ...shown.map(row));
  }
}
