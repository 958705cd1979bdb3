/** What stands in the place of results: a welcome, an empty answer, an error, and the question for the token. */

import { h, many } from "./dom.js";

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
export function nothingFound({ filters, pick }, onRemove) {
  if (pick.length && !filters.length) return message("Nothing found", "These pictures are not in this library any more.");
  if (!filters.length) return message("Nothing found", "Other words may do, or more query terms in the settings.");
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
