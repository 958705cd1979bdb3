/** The dialog that takes a score apart: shared terms and what they stand for, regions and words, the texts themselves. */

import { explain, item as itemOf, withId } from "./api.js";
import { count, h, icon, many, score, style } from "./dom.js";
import { example, Scene, shades } from "./scene.js";

const TOP = 8; // terms that are shown before one asks for all
const CUT = 19_900; // characters of a text of which only the beginning came, or nearly
const ALIKE = 0.05; // cosines that differ by less tell little

const share = (part) => `${(100 * part).toFixed(1)} %`;

/** `onMove(-1 or 1)`, `onClose()`, `onLike(id)`, `onWord(word)` and `onFailed(error)` tell what is wanted. */
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
    this.like = h("a", { class: "button", href: "", "aria-label": "More like this", title: "More like this (m)" }, icon("like"), h("span", {}, "More like this"));
    this.like.addEventListener("click", (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      this.onLike(this.id);
    });
    const shut = this.button("close", "Close (Esc)", () => this.onClose());
    dialog.replaceChildren(h("header", {}, this.title, this.place, this.previous, this.next, this.like, shut), this.body);
    dialog.addEventListener("cancel", (event) => (event.preventDefault(), this.onClose()));
    dialog.addEventListener("click", (event) => event.target === dialog && this.onClose());
    dialog.addEventListener("keydown", (event) => this.key(event));
  }

  button(name, label, onclick) {
    return h("button", { class: "icon", type: "button", "aria-label": label, title: label, onclick }, icon(name));
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, pre")) return;
    if (event.key === "ArrowLeft") this.onMove(-1);
    else if (event.key === "ArrowRight") this.onMove(1);
    else if (event.key === "m") this.onLike(this.id);
    else return;
    event.preventDefault();
  }

  /** Show item `id`, number `at` of `of`; `hit` is what is known of it already. */
  async show(id, { hit, at, of, state, picture, asked }) {
    this.running?.abort();
    this.running = new AbortController();
    const { signal } = this.running;
    this.id = id;
    this.context = { hit, state, picture, asked };
    this.chosen = state.word;
    this.like.href = `?${new URLSearchParams({ like: id })}`;
    this.previous.disabled = at <= 0;
    this.next.disabled = at < 0 || at >= of - 1;
    this.place.textContent = at >= 0 ? `${at + 1} of ${of}` : "";
    this.title.textContent = !asked ? "This item" : hit?.modality === "text" ? "Why this sentence?" : "Why this picture?";
    this.early(hit);
    if (!this.dialog.open) this.dialog.showModal();
    this.body.scrollTop = 0;
    try {
      const [item, found] = await Promise.all([itemOf(id, signal), asked ? explain(id, state, picture?.file, signal) : null]);
      if (!signal.aborted) this.draw(item, found);
    } catch (error) {
      if (error.name === "AbortError" || signal.aborted) return;
      const again = h("button", { class: "button", type: "button", onclick: () => this.show(id, { hit, at, of, state, picture, asked }) }, "Try again");
      this.told.replaceChildren(h("div", { class: "message", role: "alert" }, h("p", { text: error.message }), again));
      this.onFailed(error);
    }
  }

  close() {
    this.running?.abort();
    if (this.dialog.open) this.dialog.close();
  }

  /** What can be shown before the answer: the picture. */
  early(hit) {
    this.seen = h("div", { class: "seen", role: "region", "aria-label": "The item", tabindex: "0" });
    this.told = h("div", { class: "told", role: "region", "aria-label": "Its score", tabindex: "0" }, h("p", { class: "loading", role: "status" }, "Taking the score apart …"));
    if (hit?.modality === "image") this.seen.append(new Scene(hit.thumb, hit.content, null, hit).element);
    else if (hit) this.seen.append(h("blockquote", { text: hit.content, dir: "auto" }));
    this.body.replaceChildren(this.seen, this.told);
  }

  draw(item, found) {
    this.title.textContent = !found ? (item.modality === "text" ? "This sentence" : "This picture") : item.modality === "text" ? "Why this sentence?" : "Why this picture?";
    this.item = item;
    this.found = found;
    this.drawSeen();
    this.told.replaceChildren(
      ...[found && this.head(), found && this.terms(), found && this.texts()].filter(Boolean),
    );
    this.word(this.chosen, true);
  }

  /** The picture (or sentence), and what can be chosen to be looked for in it. */
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
        if (picture || asks?.boxes) this.scene = new Scene(thumb, "what you asked by", asks?.boxes);
        this.names = asks?.names ?? [];
        this.weights = this.scene && aligned ? aligned.map((row) => Math.max(...row)) : null;
        if (this.scene) children.push(this.scene.element);
        if (aligned && asks?.boxes) this.choices = this.chips(parts.names, (j) => aligned.map((row) => row[j]));
      }
    }
    if (this.choices) children.push(this.choices.element);
    this.note = h("p", { class: "hint" });
    children.push(this.note, this.captions(), this.fields());
    this.seen.replaceChildren(...children.filter(Boolean));
  }

  /** A sentence, its words coloured by how much they matter. */
  shaded(text, parts) {
    const quote = h("blockquote", { dir: "auto" });
    if (!parts?.weights) quote.textContent = text;
    else {
      const depth = shades(parts.weights);
      parts.names.forEach((name, i) => {
        const word = h("span", { class: "weighed", text: name, title: parts.weights[i].toFixed(3) });
        style(word, { "--v": (0.6 * depth[i]).toFixed(3) });
        quote.append(word, " ");
      });
    }
    return quote;
  }

  /** Buttons for the words (or regions) that `values(i)` colours the picture by. */
  chips(names, values) {
    const buttons = names.map((name, i) => {
      const choose = () => this.onWord(this.chosen === name ? "" : name);
      const look = () => this.heat(values(i), name);
      const back = () => this.word(this.chosen, true);
      const hidden = !/[\p{L}\p{N}]/u.test(name); // punctuation
      return h("button", { type: "button", class: "word", hidden, "aria-pressed": "false", text: name, onclick: choose, onmouseenter: look, onfocus: look, onmouseleave: back, onblur: back });
    });
    const element = h("div", { class: "words", role: "group", "aria-label": "Words to look for in the picture" }, h("span", { class: "hint" }, "Where is"), ...buttons);
    return { element, buttons, names, values };
  }

  /** Look for a word of the sentence in the picture; an empty one brings back the regions that matter. */
  word(name, redraw = false) {
    if (!this.found && !this.item) {
      this.chosen = name;
      return;
    }
    if (name === this.chosen && !redraw) return;
    this.chosen = name;
    const at = this.choices ? this.choices.names.indexOf(name) : -1;
    this.choices?.buttons.forEach((button, i) => button.setAttribute("aria-pressed", i === at));
    if (at >= 0) this.heat(this.choices.values(at), name);
    else this.rest();
  }

  heat(values, name) {
    this.scene.heat(values);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    this.note.textContent = `Brighter regions are closer to “${name}”: cosines from ${low.toFixed(3)} to ${high.toFixed(3)}.${high - low < ALIKE ? " They hardly differ here." : ""}`;
  }

  rest() {
    const { found, scene, weights, names } = this;
    if (scene) scene.mark(weights, names);
    if (!found) this.note.textContent = "";
    else if (found.missing && !weights) this.note.textContent = `No regions to show: ${found.missing}.`;
    else if (!weights && this.sentence === null) this.note.textContent = "";
    else {
      if (scene && this.sentence) return (this.note.textContent = "The terms are of the whole sentence. Marked: the regions of your picture closest to it.");
      const whole = this.item.modality === "image" ? "picture" : "sentence";
      const parts = scene ? "regions" : "words";
      this.note.textContent = found.weighed_by === "terms" ? `Marked: the ${parts} that carry most of the shared terms.` : `The terms are of the whole ${whole}. Marked: the ${parts} closest to the query.`;
    }
  }

  head() {
    const { found } = this;
    const { state, picture, hit } = this.context;
    const asked = picture || state.like ? null : h("p", { class: "asked", text: `“${state.q.trim()}”`, dir: "auto" });
    const by = picture
      ? h("img", { class: "asked-picture", src: picture.url, alt: "The picture you asked by" })
      : state.like
        ? h("img", { class: "asked-picture", src: `${withId("api/thumb", state.like)}?side=240`, alt: `The item you asked by: ${state.like}` })
        : null;
    by?.addEventListener("error", () => by.replaceWith(h("p", { class: "asked", text: `like ${state.like}` })));
    const figures = h(
      "dl",
      { class: "figures" },
      h("div", {}, h("dt", {}, "score of the terms"), h("dd", { class: "sum", "data-sum": found.score, text: count(found.score) })),
      h("div", {}, h("dt", {}, "shared terms"), h("dd", { text: count(found.terms.length) })),
      hit ? h("div", {}, h("dt", {}, "score after re-scoring"), h("dd", { text: score(hit.score) })) : "",
    );
    return h("div", { class: "head" }, asked ?? by, figures);
  }

  terms() {
    const { terms, score: total } = this.found;
    if (!terms.length) return h("p", {}, "This item shares no term with what you ask, so the index does not find it by its terms.");
    const most = terms[0].product;
    const rows = terms.map((term, i) => this.term(term, i, most));
    const all = h("button", { class: "button", type: "button" }, `Show all ${terms.length} terms`);
    const rest = terms.slice(TOP).reduce((sum, term) => sum + term.product, 0);
    const others = h("p", { class: "others" }, h("span", {}, `${many(terms.length - TOP, "more term")} add ${count(rest)}, ${share(rest / total)}`), all);
    const unfold = () => {
      rows.forEach((row) => (row.hidden = false));
      others.remove();
      rows[TOP].querySelector("button")?.focus();
    };
    all.addEventListener("click", unfold);
    rows.slice(TOP).forEach((row) => (row.hidden = true));
    const strip = h("div", { class: "strip", "aria-hidden": "true" }, ...terms.slice(0, 60).map((term) => segment(term.product / total)));
    const sum = h("p", { class: "total" }, h("span", {}, "Sum"), h("b", { text: count(total) }), h("span", { text: "100 %" }));
    return h("section", {}, h("h3", {}, "Terms that both have"), strip, h("ol", { class: "terms" }, ...rows), terms.length > TOP ? others : "", sum);
  }

  term(term, i, most) {
    const bar = h("span", { class: "share-bar" });
    style(bar, { width: `${Math.max(0.5, (100 * term.product) / most)}%` });
    const words = term.words.join(", ");
    const look = this.looks(term);
    const props = { class: words ? "stands" : "stands none", text: words || `term ${term.term}` };
    const name = look ? h("button", { ...props, type: "button", onfocus: look, onclick: look, onblur: () => this.word(this.chosen, true) }) : h("span", props);
    const product = h("span", { class: "product" }, `${count(term.query)} × ${count(term.item)} = `, h("b", { text: count(term.product) }));
    const row = h(
      "li",
      { "data-product": term.product, "data-share": term.share },
      h("div", { class: "what" }, name, h("span", { class: "number" }, words ? `term ${term.term}` : "no typical word", " · ", product)),
      h("div", { class: "pictures" }, ...(term.examples ?? []).slice(0, 4).map((one) => example(one, 52))),
      h("div", { class: "weight" }, h("span", { text: share(term.share) }), h("span", { class: "track" }, bar)),
    );
    if (look) {
      row.addEventListener("mouseenter", look);
      row.addEventListener("mouseleave", () => this.word(this.chosen, true));
    }
    return row;
  }

  /** What shows a term on the picture: the regions that carry it, or those close to a word that it stands for. */
  looks(term) {
    if (!this.scene?.boxes.length) return null;
    if (term.parts?.some(Boolean) && this.item.modality === "image") {
      return () => {
        this.scene.mark(term.parts, this.names);
        this.note.textContent = `Marked: the regions that carry term ${term.term}${term.words.length ? ` (${term.words.join(", ")})` : ""}.`;
      };
    }
    const at = this.choices ? this.choices.names.findIndex((name) => term.words.includes(name.toLowerCase())) : -1;
    return at < 0 ? null : () => this.heat(this.choices.values(at), this.choices.names[at]);
  }

  captions() {
    const captions = (this.found?.captions ?? this.item.captions ?? []).filter((caption) => caption !== this.item.content);
    if (!captions.length) return null;
    const title = this.item.modality === "image" ? "Its captions" : "Other captions of the same picture";
    return h("section", {}, h("h3", {}, title), h("ul", { class: "captions" }, ...captions.map((text) => h("li", { text, dir: "auto" }))));
  }

  fields() {
    const { item } = this;
    const rows = [["id", item.id], ...Object.entries(item.fields ?? {})].map(([name, value]) =>
      h("div", {}, h("dt", { text: name }), h("dd", { text: Array.isArray(value) ? value.join(", ") : String(value) })),
    );
    return h("section", {}, h("h3", {}, "About it"), h("dl", { class: "fields" }, ...rows));
  }

  /** The texts that stand for query and item in the index, with what they share marked. */
  texts() {
    const { surrogate, terms } = this.found;
    if (!surrogate) return null;
    const shared = new Set(terms.map((term) => `t${term.term}`));
    return h(
      "section",
      {},
      h("h3", {}, "As the index reads it"),
      h("p", { class: "hint" }, "A term stands there as often as its frequency says. Marked: terms that both have."),
      text("What you ask", surrogate.query, shared),
      text("This item", surrogate.item, shared),
    );
  }
}

function segment(part) {
  const element = h("i");
  style(element, { flex: `${part} 0 0` });
  return element;
}

function text(name, words, shared) {
  const pre = h("pre", { tabindex: "0", "aria-label": name });
  const tokens = words.split(" ");
  for (let start = 0, end = 0; start < tokens.length; start = end) {
    while (end < tokens.length && tokens[end] === tokens[start]) end++;
    const run = tokens.slice(start, end).join(" ");
    pre.append(shared.has(tokens[start]) ? h("mark", { text: run }) : run, end < tokens.length ? " " : "");
  }
  const button = h("button", { class: "button", type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    await copy(words, pre);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  const terms = many(new Set(tokens).size, "term");
  const size = words.length > CUT ? ` the beginning: ${terms}` : ` ${terms}, ${many(tokens.length, "token")}`;
  return h("details", { class: "surrogate" }, h("summary", {}, name, h("small", { text: size })), pre, button);
}

/** Put text on the clipboard; the older way works on addresses without encryption, too. */
async function copy(words, pre) {
  try {
    await navigator.clipboard.writeText(words);
  } catch {
    getSelection().selectAllChildren(pre);
    document.execCommand("copy");
  }
}
