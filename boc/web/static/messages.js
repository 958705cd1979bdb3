/** What stands in the place of results: a welcome, an empty answer, an error, and the question for the token. */

import { h, many } from "./dom.js";

const COARSE = matchMedia("(pointer: coarse)").matches;
const KEYS = [
  ["/", "to the search box"],
  ["← ↑ ↓ →", "between the results"],
  ["Enter", "why it was found"],
  ["m", "more like it"],
  ["x", "select it"],
  ["Esc", "close"],
];

/** A heading with paragraphs: strings become text, false parts are left out. */
export function message(title, ...parts) {
  const body = parts.filter(Boolean).map((part) => (typeof part === "string" ? h("p", { text: part }) : part));
  return h("div", { class: "message" }, h("h1", {}, title), ...body);
}

/** The page before a search. `address(query)` and `onPick(query)` make the links of the examples. */
export function welcome(info, { address, onPick }) {
  const { image, text } = info.items;
  if (!image && !text) {
    const command = h("pre", {}, `boc index ${info.name} FOLDER-OF-PICTURES --replace`);
    return message("This index is empty", "Put pictures into it, then reload this page:", command);
  }
  const counts = [image && many(image, "picture"), text && many(text, "sentence")].filter(Boolean).join(" and ");
  const ways = COARSE ? "choose" : "drop, paste or choose";
  const lead = `${counts}, searched while you type. Or ${ways} a picture to find others like it.`;
  return h(
    "div",
    { class: "welcome" },
    h("h1", {}, image ? "Describe a picture." : "Look for a sentence."),
    h("p", { class: "lead" }, lead),
    examples((info.examples ?? []).slice(0, 6), address, onPick),
    h(
      "dl",
      { class: "keys" },
      ...KEYS.map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what))),
    ),
  );
}

function examples(queries, address, onPick) {
  if (!queries.length) {
    const hint = "Try what a photograph might show: who does what, where, in which colours.";
    return h("p", { class: "lead" }, hint);
  }
  const link = (query) => {
    const onclick = (event) => {
      event.preventDefault();
      onPick(query);
    };
    return h("li", {}, h("a", { class: "example", href: address(query), onclick }, query));
  };
  return h("ul", { class: "examples", role: "list", "aria-label": "Examples" }, ...queries.map(link));
}

/** An answer without hits; `onRemove()` drops the filters, if there are any. */
export function nothingFound(filtered, onRemove) {
  if (!filtered) {
    const hint = "Other words may do, or more query terms in the settings.";
    return message("Nothing found", `No item shares a term with what you ask. ${hint}`);
  }
  const remove = h("button", { class: "button", type: "button", onclick: onRemove }, "Remove the filters");
  return message("Nothing found", "No picture that passes all filters matches what you ask.", remove);
}

/** A form that asks for the token; `signIn(token)` resolves to whether it is right, `onOpen()` runs if it is. */
export function tokenForm(signIn, onOpen) {
  const input = h("input", {
    id: "token",
    type: "password",
    autocomplete: "current-password",
    required: true,
    "aria-describedby": "token-help",
  });
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
  return message(
    "This page asks for a token",
    h("p", { id: "token-help" }, help),
    h("form", { class: "token", onsubmit }, label, fields, wrong),
  );
}
