/** What an answer cost: milliseconds by stage, postings read, candidates re-ranked. */

import { count, h, many, milliseconds } from "./dom.js";

const STAGES = [
  ["encode", "encode_ms", "the encoder turns the query into a vector"],
  ["code", "code_ms", "the vector becomes a few whole-number terms"],
  ["postings", "postings_ms", "the posting lists of these terms are read and summed"],
  ["re-rank", "rerank_ms", "the candidates are re-ranked with the dense vectors"],
  ["content", "content_ms", "names, sizes and fields of the hits are looked up"],
  ["network", "network_ms", "everything else: the way to the server and back"],
];
const COUNTS = [
  ["postings read", "postings", "entries of the posting lists of the query's terms"],
  ["query terms", "terms", "terms of the query's code"],
  ["re-ranked", "candidates", "candidates that were re-ranked"],
];

export class Meter {
  constructor(root) {
    this.root = root;
    this.shown = h("b");
    this.time = h("span", { class: "time" });
    this.cells = h("dl", { class: "cells" });
    this.spelling = h("span", { class: "spelling" });
    root.append(h("p", { class: "summary" }, this.shown, this.spelling, this.time), this.cells);
    this.clear();
  }

  /** Show an answer that took `wall` ms. */
  show(answer, wall) {
    const { stages, find, hits } = answer;
    const known = STAGES.reduce((sum, [, key]) => sum + (stages[key] ?? 0), 0);
    this.find = find;
    this.#draw({ ...answer, ...stages, network_ms: Math.max(0, wall - known), wall });
    this.count(hits.length);
  }

  /** Show a text in place of an answer, with room for its figures, so that the first answer moves nothing. */
  clear(text = "") {
    this.#draw({ wall: 0 });
    this.shown.textContent = text;
    this.root.classList.add("blank");
  }

  /** Say something about the words asked; `right` may be meant instead, and `onQuery(right)` asks it. */
  say(text, right, onQuery) {
    const link = () => h("button", { class: "quiet-button", type: "button", onclick: () => onQuery(right) }, right);
    this.spelling.replaceChildren(text, ...(right ? [" Did you mean: ", link()] : []));
  }

  #draw(figures) {
    this.spelling.replaceChildren();
    this.root.classList.remove("blank");
    const cell = ([name, key, title], format, unit) => {
      const told = figures[key] ?? null;
      return h("div", { class: "cell", title }, h("dt", {}, name), h("dd", {}, told === null ? "–" : format(told), told !== null && unit()));
    };
    this.time.textContent = `in ${milliseconds(figures.wall)} ms`;
    const unit = () => h("small", {}, " ms");
    this.cells.replaceChildren(...STAGES.map((stage) => cell(stage, milliseconds, unit)), ...COUNTS.map((each) => cell(each, count, () => false)));
  }

  /** Say how many hits are on the page by now; the figures are those of the first answer. */
  count(shown) {
    this.shown.textContent = many(shown, this.find === "text" ? "sentence" : "picture");
  }
}
