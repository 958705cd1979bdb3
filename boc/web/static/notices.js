/** What the page says beside its results: a line at its foot, and a status for screen readers. */

import { h, icon } from "./dom.js";

const QUIET = 600; // milliseconds without change before a status is read out

export class Notices {
  #line;
  #status;
  #countdown = 0;
  #telling = 0;

  constructor(line, status) {
    this.#line = line;
    this.#status = status;
  }

  /** Show a line to dismiss; with `now`, a button that runs it and a countdown of `wait` seconds. */
  show(text, { wait = 0, now = null } = {}) {
    clearInterval(this.#countdown);
    const left = h("span", { class: "left", "aria-hidden": "true" });
    const old = this.#line.querySelector("p");
    const body = h("div", {}, old?.textContent === text ? old : h("p", { text }), left);
    this.#line.replaceChildren(body, now ? this.#button(now) : this.#dismiss());
    this.#line.hidden = false;
    if (now) this.#count(left, Date.now() + 1000 * wait);
  }

  hide() {
    clearInterval(this.#countdown);
    this.#line.hidden = true;
    this.#line.replaceChildren();
  }

  /** Have screen readers say `text` once nothing changes any more. */
  tell(text) {
    clearTimeout(this.#telling);
    this.#telling = setTimeout(() => (this.#status.textContent = text), QUIET);
  }

  #button(now) {
    const onclick = () => {
      clearInterval(this.#countdown);
      now();
    };
    return h("button", { class: "button", type: "button", onclick }, "Try now");
  }

  #dismiss() {
    const onclick = () => this.hide();
    return h("button", { class: "icon", type: "button", "aria-label": "Dismiss", onclick }, icon("close"));
  }

  #count(left, until) {
    const draw = () => {
      const seconds = Math.max(1, Math.ceil((until - Date.now()) / 1000));
      left.textContent = `Results stay as they are. Trying again in ${seconds} s.`;
      if (Date.now() >= until) clearInterval(this.#countdown);
    };
    this.#countdown = setInterval(draw, 500);
    draw();
  }
}
