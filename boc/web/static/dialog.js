/** Opens, changes and closes the dialog that explains a hit, as the state says; loads its module at first. */

import { hasQuery, page } from "./page.js";

export class Dialog {
  opened = ""; // the id of the item that it shows
  #why = null;

  /** `actions` are those of `Why`; `onClosed(id)` follows its end. */
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
    const like = state.q.trim() ? "" : (state.like[0] ?? ""); // one part is explained: the sentence, or the first item
    this.#why.show(this.opened, { hit, at, of, state: { ...state, like }, picture, asked: hasQuery() });
  }

  /** The hit `by` places after the one shown, and how many follow it. */
  neighbour(by) {
    const at = this.#place() + by;
    return { hit: this.results.hits[at], left: this.results.hits.length - at };
  }

  #place() {
    return this.results.hits.findIndex((hit) => hit.id === this.opened);
  }
}
