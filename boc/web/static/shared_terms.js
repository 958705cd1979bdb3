/** The table of the terms that an item shares with the query. */

import { count, h, many } from "./dom.js";
import { example } from "./scene.js";

const TOP = 8; // number of terms shown at first

const share = (part) => `${(100 * part).toFixed(1)} %`;

/** The shared terms of an explanation, largest first. `looks(term)` returns a function that shows the term in the picture, or null; `back()` ends this. */
export function termTable(found, looks, back) {
  const { terms, score: total } = found;
  if (!terms.length) return h("p", {}, "This item shares no terms with the query, so terms alone do not find it.");
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
  const sum = h("p", { class: "total" }, h("span", {}, "Sum"), h("b", { text: count(total) }), h("span", { text: "100 %" }));
  return h("section", {}, h("h3", {}, "Shared terms"), h("ol", { class: "terms" }, ...rows), terms.length > TOP ? others : "", sum);
}

function row(term, most, look, back) {
  const bar = h("span", { class: "share-bar", style: { width: `${Math.max(0.5, (100 * term.product) / most)}%` } });
  const words = term.words.join(", ");
  const props = { class: "stands", text: words || `term ${term.term}` };
  const name = look ? h("button", { ...props, type: "button", onfocus: look, onclick: look, onblur: back }) : h("span", props);
  const product = h("span", { class: "product" }, `${count(term.query)} × ${count(term.item)} = `, h("b", { text: count(term.product) }));
  const element = h(
    "li",
    { "data-product": term.product, "data-share": term.share },
    h("div", { class: "what" }, name, h("span", { class: "number" }, words ? `term ${term.term}` : "no typical words", " · ", product)),
    h("div", { class: "pictures" }, ...(term.examples ?? []).slice(0, 4).map((one) => example(one, 52))),
    h("div", { class: "weight" }, h("span", { text: share(term.share) }), h("span", { class: "track" }, bar)),
  );
  if (look) {
    element.addEventListener("mouseenter", look);
    element.addEventListener("mouseleave", back);
  }
  return element;
}
