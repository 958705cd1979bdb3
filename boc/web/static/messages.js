/** What stands in the place of results (a welcome, an empty answer, an error, the question for the token) and beside them. */

import { h, icon, many } from "./dom.js";

/** A heading with paragraphs: strings become text, false parts are left out. */
export function message(title, ...parts) {
  const body = parts.filter(Boolean).map((part) => (typeof part === "string" ? h("p", { text: part }) : part));
  return h("div", { class: "message" }, h("h2", {}, title), ...body);
}

/** The page before a search, where there are no pictures to show. */
export function welcome({ name, items }) {
  if (items.text) return message("Look for a sentence", `${many(items.text, "sentence")}, searched while you type.`);
  const command = h("pre", { tabindex: "0" }, `boc index ${name} FOLDER-OF-PICTURES --replace`);
  return message("This index is empty", "Put pictures into it, then reload this page:", command);
}

/** An answer without hits to a state; `onRemove()` drops its filters, if there are any. */
export function nothingFound({ filters }, onRemove) {
  if (!filters.length) return message("Nothing found", "Other words may do.");
  const remove = h("button", { class: "button", type: "button", onclick: onRemove }, "Remove the filters");
  return message("Nothing found", "No picture that passes all filters matches what you ask.", remove);
}

/** A form that asks for the token; `signIn(token)` resolves to whether it is right, `onOpen()` runs if it is. */
export function tokenForm(signIn, onOpen) {
  const input = h("input", { id: "token", type: "password", autocomplete: "current-password", required: true, "aria-describedby": "token-help" });
  const wrong = h("p", { class: "wrong", role: "alert" });
  const onsubmit = async (event) => {
    event.preventDefault();
    wrong.textContent = "";
    try {
      if (await signIn(input.value.trim())) return onOpen();
      wrong.textContent = "That is not the token. Copy it from where boc serve was started.";
      input.select();
    } catch (error) {
      wrong.textContent = error.message;
    }
  };
  const label = h("label", { for: "token" }, "Token");
  const fields = h("div", {}, input, h("button", { class: "button strong" }, "Open"));
  const help = "Whoever started boc serve has it: it is in its variable BOC_TOKEN.";
  return message("This page asks for a token", h("p", { id: "token-help" }, help), h("form", { class: "token", onsubmit }, label, fields, wrong));
}

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
