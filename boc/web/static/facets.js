/** Facets: the values of each field (for dates, the years) with the number of hits for each value. */

import * as api from "./api.js";
import { count, h, many } from "./dom.js";
import { hasQuery, page, request } from "./page.js";

const SHOWN = 12; // maximum number of values per field

/** `onFilters(filters)` receives the selected filters. The counts are requested when a field is expanded. */
export class Facets {
  #running = null;
  #shown = ""; // the request whose hits were counted

  constructor(root, onFilters) {
    Object.assign(this, { root, onFilters, fields: new Map() });
    const fold = ({ target }) => [...this.fields.values()].forEach(({ element }) => element.contains(target) || (element.open = false));
    document.addEventListener("pointerdown", fold);
  }

  /** Show the facets of an index. */
  describe(info) {
    this.fields = new Map(Object.keys(info.facets).map((name) => [name, this.#field(name)]));
    this.root.replaceChildren(...[...this.fields.values()].map(({ element }) => element));
  }

  show() {
    this.root.hidden = !this.fields.size;
    if (this.root.hidden) for (const { element } of this.fields.values()) element.open = false;
  }

  /** Count again if a field is expanded and the hits have changed. */
  async refresh() {
    const open = [...this.fields.values()].some(({ element }) => element.open);
    if (!open || this.root.hidden || this.#shown === request()) return;
    this.#running?.abort();
    this.#running = new AbortController();
    const wanted = request();
    try {
      const found = await api.facets(page.state, page.picture?.file ?? null, this.#running.signal);
      this.#shown = wanted;
      const { filters } = page.state;
      const chosen = ({ filters: its }) => its.every((filter) => filters.includes(filter));
      const told = found.facets.filter(({ values }) => values.length > 1 || values.some(chosen));
      for (const facet of told) this.#draw(facet, found.hits, chosen);
      for (const [name, { element }] of this.fields) element.hidden = !told.some((facet) => facet.field === name);
    } catch (error) {
      if (error.name !== "AbortError" && !(error instanceof api.Refused) && !(error instanceof api.Away)) throw error;
    }
  }

  #field(name) {
    const body = h("div", { class: "facet-body" }, h("p", { class: "hint" }, "Counting …"));
    const element = h("details", { class: "facet", name: "facet" }, h("summary", { text: name }), body);
    element.addEventListener("toggle", () => element.open && this.refresh());
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      element.open = false;
      element.firstChild.focus();
    });
    return { element, body };
  }

  #draw(facet, hits, chosen) {
    const { body } = this.fields.get(facet.field) ?? {};
    if (!body) return;
    const focused = body.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const { filters } = page.state;
    const best = facet.values.sort((a, b) => b.count - a.count).slice(0, SHOWN);
    if (best.every(({ value }) => /^\d+$/.test(value))) best.sort((a, b) => b.value - a.value); // years
    const values = best.map((each) => {
      const { value, filters: its, count: n } = each;
      const rest = filters.filter((filter) => !its.includes(filter));
      const onclick = () => this.onFilters(chosen(each) ? rest : [...rest, ...its]);
      const props = { type: "button", class: "facet-value", "aria-pressed": `${chosen(each)}`, "data-key": value, onclick };
      return h("li", {}, h("button", props, h("span", { text: value }), h("small", { text: count(n) })));
    });
    const among = hasQuery() ? `among the best ${many(hits, "hit")}` : `among the newest ${many(hits, "picture")}`;
    body.replaceChildren(h("p", { class: "hint" }, among), h("ul", { role: "list" }, ...values));
    [...body.querySelectorAll("[data-key]")].find((each) => each.dataset.key === focused)?.focus();
  }
}
