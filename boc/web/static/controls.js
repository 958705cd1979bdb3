/** The settings panel, the chips of active filters, and the sort order of the hits. */

import { h, icon, many } from "./dom.js";
import { chips } from "./filters.js";

const KEYS =
  'In the search box, -snow or -"two cats" excludes pictures of these things, and year:2024 or width>1000 is a filter. Keys: / goes to the search box, arrow keys move between the pictures, Enter opens a picture, m finds similar pictures, x selects, Esc closes.';

/** `chips` shows the active filters. `onChange(change)` receives the changes to the state. */
export class Controls {
  constructor(root, chips, info, onChange) {
    this.chips = chips;
    this.onChange = onChange;
    const told = "also finds the words of the sentence in captions, names and folders";
    this.hybrid = choice("Full-text search", { "": "No", rrf: "Yes" }, told, (hybrid) => onChange({ hybrid }));
    const setCollapse = (value) => onChange({ collapse: Boolean(value) });
    const places = { "": "Separate", true: "Grouped" };
    this.collapse = choice("Near-duplicates", places, "pictures that are almost identical", setCollapse);
    const own = { hybrid: "", collapse: false, filters: [] };
    this.reset = h("button", { type: "button", class: "quiet-button", onclick: () => onChange(own) }, "Restore the defaults");
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

/** A row of radio buttons that looks like a switch. `options` maps values to texts. */
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

/** Make `button` show and hide `panel`. */
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

/** The control in `root` for the order of hits with dates. `onSort(sort)` receives the selected order. */
export class Order {
  constructor(root, onSort) {
    this.root = root;
    const options = ORDERS.map(([value, text]) => h("option", { value, text }));
    this.select = h("select", { "aria-label": "Sort order", onchange: () => onSort(this.select.value) }, ...options);
    root.replaceChildren(this.select);
  }

  /** Show the order in `state`. `info` describes the index, and `hits` are the hits on the page. */
  show({ sort }, info, hits) {
    this.dated ||= info?.fields[FIELD] === "date" && hits.some((hit) => hit.fields[FIELD]);
    this.root.hidden = !hits.length || !this.dated;
    this.select.value = ORDERS.some(([value]) => value === sort) ? sort : "";
  }
}
