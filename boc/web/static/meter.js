/** The summary line: the number of hits, and remarks on the words of the query. */

import { h, many } from "./dom.js";

export class Meter {
  constructor(root) {
    this.shown = h("b");
    this.spelling = h("span", { class: "spelling" });
    root.append(this.shown, this.spelling);
  }

  /** Show a text, without remarks. */
  show(text) {
    this.shown.textContent = text;
    this.spelling.replaceChildren();
  }

  /** Show a remark on the words of the query. `right` is a suggested query, which `onQuery(right)` searches. */
  say(text, right, onQuery) {
    const link = () => h("button", { class: "quiet-button", type: "button", onclick: () => onQuery(right) }, right);
    this.spelling.replaceChildren(text, ...(right ? [" Did you mean: ", link()] : []));
  }

  /** Show the current number of hits on the page. */
  count(shown, find) {
    this.shown.textContent = many(shown, find === "text" ? "sentence" : "picture");
  }
}
