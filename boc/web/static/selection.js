/** The selected items, the bar of what can be done with them, and the selections that this browser keeps by name. */

import { h, icon, many } from "./dom.js";

const SLOT = "boc-kept"; // in the browser: the address of each selection by name

export class Selection {
  #hits = new Map();
  #kept = {};

  /** `onMore(ids)` and `onLess(ids)` search by them, `onKeep(ids, name)` shows them; `onChange()` follows every change. */
  constructor(root, { notices, onMore, onLess, onKeep, onChange }) {
    Object.assign(this, { root, notices, onKeep, onChange });
    try {
      this.#kept = JSON.parse(localStorage.getItem(SLOT)) ?? {};
    } catch {
      // barred or damaged: nothing is kept
    }
    this.count = h("b", { "aria-live": "polite" });
    const button = (text, onclick) => h("button", { class: "button", type: "button", onclick }, text);
    const then = (act) => () => {
      const ids = this.ids;
      this.clear();
      act(ids);
    };
    const name = h("input", { "aria-label": "Name of the selection", placeholder: "Name", required: true, pattern: ".*\\S.*", maxlength: 60 });
    const onsubmit = (event) => (event.preventDefault(), this.keep(name.value.trim()));
    this.form = h("form", { class: "keep", hidden: true, onsubmit }, name, h("button", { class: "button strong" }, "Keep and copy its link"));
    root.replaceChildren(
      this.count,
      button("More like these", then(onMore)),
      button("Less like these", then(onLess)),
      button("Copy paths", () => this.copy()),
      button("Keep …", () => ((this.form.hidden = !this.form.hidden), name.focus())),
      this.form,
      button("Clear", () => this.clear()),
    );
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

  /** Put the ids, which are paths in the folder that was indexed, into the clipboard. */
  async copy() {
    const done = `${many(this.ids.length, "path")} copied`;
    if (await copied(this.ids.join("\n"))) this.notices.tell(done);
    else this.notices.show("The browser does not let this page copy; only pages at localhost or of https may.");
  }

  /** Show the selection under a name at an address of its own, which is kept, and copied where the browser lets. */
  keep(name) {
    const { ids } = this;
    this.form.hidden = true;
    this.clear();
    this.#kept = { ...this.#kept, [name]: "" };
    this.onKeep(ids, name);
    this.#store({ ...this.#kept, [name]: location.pathname + location.search });
    copied(location.href);
  }

  /** Show what is kept, of which `current` is on the page, in `root`. */
  showKept(root, current) {
    root.hidden = !Object.keys(this.#kept).length;
    const forget = (name) => () => {
      const { [name]: _, ...rest } = this.#kept;
      this.#store(rest);
      this.showKept(root, current);
    };
    const links = Object.entries(this.#kept).flatMap(([name, address]) => [
      h("a", { href: `${address}`, "aria-current": name === current && "page", text: name }),
      name === current && h("button", { class: "icon", type: "button", "aria-label": `Forget ${name}`, onclick: forget(name) }, icon("close")),
    ]);
    root.replaceChildren(h("span", {}, "Kept:"), ...links.filter(Boolean));
  }

  #store(kept) {
    this.#kept = kept;
    try {
      localStorage.setItem(SLOT, JSON.stringify(kept));
    } catch {
      // barred: kept as long as this page
    }
  }

  #show() {
    this.count.textContent = `${this.#hits.size} selected`;
    this.root.hidden = !this.#hits.size;
    this.onChange();
  }
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
