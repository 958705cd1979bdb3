/** The order of the hits: by relevance, or by the date on which pictures were taken. */

import { h } from "./dom.js";

const FIELD = "taken";
const ORDERS = [
  ["", "Best first"],
  [`-${FIELD}`, "Newest first"],
  [FIELD, "Oldest first"],
];

/** The control in `root`, for hits that have dates. `onSort(sort)` gets the order that is wanted. */
export class Order {
  constructor(root, onSort) {
    this.root = root;
    const options = ORDERS.map(([value, text]) => h("option", { value, text }));
    this.select = h("select", { "aria-label": "Order of the hits", onchange: () => onSort(this.select.value) }, ...options);
    root.replaceChildren(this.select);
  }

  /** Show the order of `state`; `info` describes the index, and `hits` are those on the page. */
  show({ sort }, info, hits) {
    this.dated ||= info?.fields[FIELD] === "date" && hits.some((hit) => hit.fields[FIELD]);
    this.root.hidden = !hits.length || !this.dated;
    this.select.value = ORDERS.some(([value]) => value === sort) ? sort : "";
  }
}
