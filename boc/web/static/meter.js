/** What is on the page: how many hits, and what there is to say about the words that were asked. */

import { h, many } from "./dom.js";

export class Meter {
  constructor(root) {
    this.shown = h("b");
    this.spelling = h("span", { class: "spelling" });
    root.append(this.shown, this.spelling);
  }

  /** Show a text, and nothing about words. */
  show(text) {
    this.shown.textContent = text;
    this.spelling.replaceChildren();
  }

  /** Say something about the words asked; `right` may be meant instead, and `onQuery(right)` asks it. */
  say(text, right, onQuery) {
    const link = () => h("button", { class: "quiet-button", type: "button", onclick: () => onQuery(right) }, right);
    this.spelling.replaceChildren(text, ...(right ? [" Did you mean: ", link()] : []));
  }

  /** Say how many hits are on the page by now. */
  count(shown, find) {
    this.shown.textContent = many(shown, find === "text" ? "sentence" : "picture");
  }
}
