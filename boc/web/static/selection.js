/** The selected items, and the toolbar for them. */

import { h, many } from "./dom.js";

const PACKED = 100; // maximum number of pictures in one download

export class Selection {
  #hits = new Map();

  /** `onMore(ids)` and `onLess(ids)` search by the items; `onChange()` is called after every change. */
  constructor(root, { notices, onMore, onLess, onChange }) {
    Object.assign(this, { root, notices, onChange });
    this.count = h("b", { "aria-live": "polite" });
    const button = (text, onclick) => h("button", { class: "button", type: "button", onclick }, text);
    const then = (act) => () => {
      const ids = this.ids;
      this.clear();
      act(ids);
    };
    document.addEventListener("keydown", (event) => this.#escape(event), { capture: true });
    root.replaceChildren(
      this.count,
      button("More like these", then(onMore)),
      button("Less like these", then(onLess)),
      button("Copy paths", () => this.copy()),
      button("Save", () => this.save()),
      button("Clear", () => this.clear()),
    );
  }

  /** Esc first clears the selection, before it closes other parts of the page. */
  #escape(event) {
    if (event.key !== "Escape" || this.root.hidden || document.querySelector("dialog[open], .facet[open]")) return;
    event.stopImmediatePropagation();
    event.preventDefault();
    this.clear();
  }

  get ids() {
    return [...this.#hits.keys()];
  }

  has(id) {
    return this.#hits.has(id);
  }

  toggle(hit) {
    if (!this.#hits.delete(hit.id)) this.#hits.set(hit.id, hit);
    this.#show();
  }

  clear() {
    this.#hits.clear();
    this.#show();
  }

  /** Copy the ids, which are paths relative to the indexed folder, to the clipboard. */
  async copy() {
    try {
      await navigator.clipboard.writeText(this.ids.join("\n"));
      this.notices.tell(`${many(this.ids.length, "path")} copied`);
    } catch {
      this.notices.show("The browser does not allow this page to copy text. Copying works only on localhost and over HTTPS.");
    }
  }

  /** Save the pictures as a ZIP file. */
  save() {
    if (this.ids.length > PACKED) {
      this.notices.show(`A download can contain at most ${PACKED} pictures; select fewer.`);
      return;
    }
    const query = new URLSearchParams(this.ids.map((id) => ["id", id]));
    h("a", { href: `api/picture?${query}`, download: "" }).click();
  }

  #show() {
    this.count.textContent = `${this.#hits.size} selected`;
    this.root.hidden = !this.#hits.size;
    this.onChange();
  }
}
