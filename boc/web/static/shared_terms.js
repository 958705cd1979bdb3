/** The parts of an explanation that need no picture: the table of shared terms, and the texts in the index. */

import { count, h, many } from "./dom.js";
import { example } from "./scene.js";

const TOP = 8; // terms that are shown before one asks for all
const CUT = 19_900; // characters of a text of which only the beginning came, or nearly

const share = (part) => `${(100 * part).toFixed(1)} %`;

/**
 * The shared terms of an explanation, the heaviest first. `looks(term)` gives what shows a term in the picture or null,
 * `back()` ends it.
 */
export function termTable(found, looks, back) {
  const { terms, score: total } = found;
  if (!terms.length) return h("p", {}, "This item shares no term with what you ask, so the index does not find it by its terms.");
  const most = terms[0].product;
  const rows = terms.map((term) => row(term, most, looks(term), back));
  const all = h("button", { class: "button", type: "button" }, `Show all ${terms.length} terms`);
  const rest = terms.slice(TOP).reduce((sum, term) => sum + term.product, 0);
  const others = h(
    "p",
    { class: "others" },
    h("span", {}, `${many(terms.length - TOP, "more term")} add ${count(rest)}, ${share(rest / total)}`),
    all,
  );
  const unfold = () => {
    rows.forEach((row) => (row.hidden = false));
    others.remove();
    rows[TOP].querySelector("button")?.focus();
  };
  all.addEventListener("click", unfold);
  rows.slice(TOP).forEach((row) => (row.hidden = true));
  const bars = terms.slice(0, 60).map((term) => h("i", { style: { flex: `${term.product / total} 0 0` } }));
  const strip = h("div", { class: "strip", "aria-hidden": "true" }, ...bars);
  const sum = h("p", { class: "total" }, h("span", {}, "Sum"), h("b", { text: count(total) }), h("span", { text: "100 %" }));
  return h("section", {}, h("h3", {}, "Terms that both have"), strip, h("ol", { class: "terms" }, ...rows), terms.length > TOP ? others : "", sum);
}

function row(term, most, look, back) {
  const bar = h("span", { class: "share-bar", style: { width: `${Math.max(0.5, (100 * term.product) / most)}%` } });
  const words = term.words.join(", ");
  const props = { class: words ? "stands" : "stands none", text: words || `term ${term.term}` };
  const name = look ? h("button", { ...props, type: "button", onfocus: look, onclick: look, onblur: back }) : h("span", props);
  const product = h("span", { class: "product" }, `${count(term.query)} × ${count(term.item)} = `, h("b", { text: count(term.product) }));
  const element = h(
    "li",
    { "data-product": term.product, "data-share": term.share },
    h("div", { class: "what" }, name, h("span", { class: "number" }, words ? `term ${term.term}` : "no typical word", " · ", product)),
    h("div", { class: "pictures" }, ...(term.examples ?? []).slice(0, 4).map((one) => example(one, 52))),
    h("div", { class: "weight" }, h("span", { text: share(term.share) }), h("span", { class: "track" }, bar)),
  );
  if (look) {
    element.addEventListener("mouseenter", look);
    element.addEventListener("mouseleave", back);
  }
  return element;
}

/** The texts that stand for query and item in the index, with what they share marked. */
export function indexTexts(found) {
  const { surrogate, terms } = found;
  if (!surrogate) return null;
  const shared = new Set(terms.map((term) => `t${term.term}`));
  const hint = h("p", { class: "hint" }, "A term stands there as often as its frequency says. Marked: terms that both have.");
  const texts = [text("What you ask", surrogate.query, shared), text("This item", surrogate.item, shared)];
  return h("section", {}, h("h3", {}, "As the index reads it"), hint, ...texts);
}

function text(name, words, shared) {
  const pre = h("pre", { tabindex: "0", "aria-label": name });
  const tokens = words.split(" ");
  for (let start = 0, end = 0; start < tokens.length; start = end) {
    while (end < tokens.length && tokens[end] === tokens[start]) end++;
    const run = tokens.slice(start, end).join(" ");
    pre.append(shared.has(tokens[start]) ? h("mark", { text: run }) : run, end < tokens.length ? " " : "");
  }
  const terms = many(new Set(tokens).size, "term");
  const size = words.length > CUT ? ` the beginning: ${terms}` : ` ${terms}, ${many(tokens.length, "token")}`;
  return h("details", { class: "surrogate" }, h("summary", {}, name, h("small", { text: size })), pre);
}
