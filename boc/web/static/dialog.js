/** Opens, updates and closes the dialog that explains a hit, according to the state. The module of the dialog is loaded on first use. */

import { hasQuery, page } from "./page.js";

export class Dialog {
  opened = ""; // the id of the item in the dialog
  #why = null;

  /** `actions` are the actions of `Why`; `onClosed(id)` is called after the dialog has closed. */
  constructor(root, results, { onClosed, ...actions }) {
    Object.assign(this, { root, results, onClosed, actions });
  }

  get open() {
    return this.root.open;
  }

  /** Show the state. */
  async show() {
    const { state } = page;
    if (state.open === this.opened) {
      this.#why?.number(this.#place(), this.results.hits.length);
      return this.#why?.word(state.word);
    }
    const before = this.opened;
    this.opened = state.open;
    if (!this.opened) {
      this.#why?.close();
      return this.onClosed(before);
    }
    if (!this.#why) {
      const { Why } = await import("./why.js");
      this.#why ??= new Why(this.root, this.actions);
      if (page.state.open !== this.opened) return;
    }
    const at = this.#place();
    const of = this.results.hits.length;
    const hit = this.results.hits[at];
    const { picture } = page;
    const like = state.q.trim() ? "" : (state.like[0] ?? ""); // only one part of the query is explained: the sentence, or the first item
    this.#why.show(this.opened, { hit, at, of, state: { ...state, like }, picture, asked: hasQuery() });
  }

  /** The hit `by` places after the hit in the dialog, and the number of hits that follow it. */
  neighbour(by) {
    const at = this.#place() + by;
    return { hit: this.results.hits[at], left: this.results.hits.length - at };
  }

  #place() {
    return this.results.hits.findIndex((hit) => hit.id === this.opened);
  }
}
