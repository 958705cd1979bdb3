/** What the page says beside its results: a line at its foot, and a status for screen readers. */

import { h, icon } from "./dom.js";

const QUIET = 600; // milliseconds without change before a status is read out

export class Notices {
  #line;
  #status;
  #telling = 0;

  constructor(line, status) {
    this.#line = line;
    this.#status = status;
  }

  /** Show a line to dismiss; with `now`, which runs by itself in `wait` seconds, a button that runs it. */
  show(text, { wait = 0, now = null } = {}) {
    const left = h("span", { class: "left", "aria-hidden": "true" }, now && `Results stay as they are. Trying again in ${Math.ceil(wait)} s.`);
    const old = this.#line.querySelector("p");
    const body = h("div", {}, old?.textContent === text ? old : h("p", { text }), left);
    const dismiss = { class: "icon", type: "button", "aria-label": "Dismiss", onclick: () => this.hide() };
    const again = now && h("button", { class: "button", type: "button", onclick: () => now() }, "Try now");
    this.#line.replaceChildren(body, again ?? h("button", dismiss, icon("close")));
    this.#line.hidden = false;
  }

  hide() {
    this.#line.hidden = true;
    this.#line.replaceChildren();
  }

  /** Have screen readers say `text` once nothing changes any more. */
  tell(text) {
    clearTimeout(this.#telling);
    this.#telling = setTimeout(() => (this.#status.textContent = text), QUIET);
  }
}
