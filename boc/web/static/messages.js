/** Messages in place of the results (a welcome, no hits, an error, the form for the token), and notices beside them. */

import { h, icon, many } from "./dom.js";

/** A heading with paragraphs. Strings become text, and false parts are skipped. */
export function message(title, ...parts) {
  const body = parts.filter(Boolean).map((part) => (typeof part === "string" ? h("p", { text: part }) : part));
  return h("div", { class: "message" }, h("h2", {}, title), ...body);
}

/** The page before a search, if there are no pictures to show. */
export function welcome({ name, items }) {
  if (items.text) return message("Search for a sentence", `${many(items.text, "sentence")}. The search runs while you type.`);
  const command = h("pre", { tabindex: "0" }, `boc index ${name} FOLDER-OF-PICTURES --replace`);
  return message("This index is empty", "Add pictures with this command, then reload the page:", command);
}

/** The message for a search without hits; `onRemove()` removes the filters, if there are any. */
export function nothingFound({ filters }, onRemove) {
  if (!filters.length) return message("Nothing found", "Try other words.");
  const remove = h("button", { class: "button", type: "button", onclick: onRemove }, "Remove the filters");
  return message("Nothing found", "No picture passes all filters and matches the query.", remove);
}

/** A form for the token. `signIn(token)` resolves to true if the token is correct; `onOpen()` then runs. */
export function tokenForm(signIn, onOpen) {
  const input = h("input", { id: "token", type: "password", autocomplete: "current-password", required: true, "aria-describedby": "token-help" });
  const wrong = h("p", { class: "wrong", role: "alert" });
  const onsubmit = async (event) => {
    event.preventDefault();
    wrong.textContent = "";
    try {
      if (await signIn(input.value.trim())) return onOpen();
      wrong.textContent = "Wrong token. Copy the token from the terminal in which boc serve was started.";
      input.select();
    } catch (error) {
      wrong.textContent = error.message;
    }
  };
  const label = h("label", { for: "token" }, "Token");
  const fields = h("div", {}, input, h("button", { class: "button strong" }, "Open"));
  const help = "The person who started boc serve can find the token in the variable BOC_TOKEN.";
  return message("This page requires a token", h("p", { id: "token-help" }, help), h("form", { class: "token", onsubmit }, label, fields, wrong));
}

const QUIET = 600; // milliseconds without a change before a status is announced

export class Notices {
  #line;
  #status;
  #telling = 0;

  constructor(line, status) {
    this.#line = line;
    this.#status = status;
  }

  /** Show a line that can be dismissed. With `now`, which runs after `wait` seconds, show a button that runs it at once. */
  show(text, { wait = 0, now = null } = {}) {
    const left = h("span", { class: "left", "aria-hidden": "true" }, now && `Showing the last results. Trying again in ${Math.ceil(wait)} s.`);
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

  /** Have screen readers announce `text` once there are no more changes. */
  tell(text) {
    clearTimeout(this.#telling);
    this.#telling = setTimeout(() => (this.#status.textContent = text), QUIET);
  }
}
