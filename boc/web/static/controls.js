/** The panel of settings, the chips of filters, and the order of the hits. */

import { h, icon, many } from "./dom.js";
import { chips } from "./filters.js";

const KEYS =
  'In the box, -snow or -"two cats" leaves out what shows that, and year:2024 or width>1000 are filters. Keys: / to the search box, arrows between the pictures, Enter opens, m more like it, x selects, Esc closes.';

/** The active filters stand in `chips`. `onChange(change)` gets what is to change in the state. */
export class Controls {
  constructor(root, chips, info, onChange) {
    this.chips = chips;
    this.onChange = onChange;
    const told = "also looks for the words themselves, in captions, names and folders";
    this.hybrid = choice("Count the words too", { "": "No", rrf: "Yes" }, told, (hybrid) => onChange({ hybrid }));
    const setCollapse = (value) => onChange({ collapse: Boolean(value) });
    const places = { "": "Side by side", true: "Under the best" };
    this.collapse = choice("Near-duplicates", places, "pictures that are nearly the same", setCollapse);
    const own = { hybrid: "", collapse: false, filters: [] };
    this.reset = h("button", { type: "button", class: "quiet-button", onclick: () => onChange(own) }, "Back to the index's settings");
    const leave = document.getElementById("leave");
    if (leave) leave.hidden = false;
    const knobs = h("div", { class: "knobs" }, this.hybrid.element, this.collapse.element);
    root.replaceChildren(knobs, h("div", { class: "about" }, h("p", {}, facts(info)), h("p", {}, KEYS), this.reset, leave));
  }

  /** Show a state. */
  show(state, bySentence) {
    this.hybrid.show(state.hybrid, !bySentence);
    this.collapse.show(state.collapse ? "true" : "");
    const shown = chips(state.filters).map(({ text, filters }) => [text, { filters: state.filters.filter((each) => !filters.includes(each)) }]);
    const chip = ([text, change]) => {
      const onclick = () => {
        this.onChange(change);
        (this.chips.querySelector("button") ?? document.getElementById("q")).focus();
      };
      return h("li", { class: "chip" }, h("span", { text }), h("button", { type: "button", "aria-label": `Remove ${text}`, onclick }, icon("close")));
    };
    this.chips.replaceChildren(...shown.map(chip));
    this.chips.hidden = !shown.length;
    this.reset.hidden = !state.hybrid && !state.collapse && !state.filters.length;
  }
}

function facts({ items, encoder, version }) {
  return [many(items.image, "picture"), many(items.text, "sentence"), encoder, `boc ${version}`].join(" · ");
}

let labels = 0;

/** A row of radio buttons that looks like one switch; `options` are texts by value. */
function choice(name, options, told, onSet) {
  const group = `choice-${++labels}`;
  const inputs = Object.keys(options).map((value) => h("input", { type: "radio", name: group, value, onchange: () => onSet(value) }));
  const parts = inputs.map((input) => h("label", {}, input, h("span", { text: options[input.value] })));
  const element = h("fieldset", { class: "knob" }, h("legend", {}, name), h("div", { class: "switch" }, ...parts), h("small", {}, told));
  return {
    element,
    show(value, off = false) {
      element.disabled = off;
      inputs.forEach((input) => (input.checked = input.value === value));
    },
  };
}

/** Make `button` fold and unfold `panel`. */
export function foldPanel(button, panel) {
  const set = (open) => {
    panel.hidden = !open;
    button.setAttribute("aria-expanded", open);
  };
  set(false);
  const listen = (event) => {
    if (event.key !== "Escape" || panel.hidden || document.querySelector("dialog[open], .facet[open]")) return;
    event.stopPropagation();
    event.preventDefault(); // of a search box: to empty it
    button.focus();
    button.click();
  };
  document.addEventListener("keydown", listen, { capture: true });
  button.addEventListener("click", () => set(panel.hidden));
}

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
