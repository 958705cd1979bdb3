/** The panel of settings: how many hits, how much work a hit, and the words of the sentence; and the chips of filters. */

import { count, h, icon, many } from "./dom.js";
import { chips } from "./filters.js";

const KEYS =
  'In the box, -snow or -"two cats" leaves out what shows that, and year:2024 or width>1000 are filters. Keys: / to the search box, arrows between the pictures, Enter opens, m more like it, x selects, Esc closes.';
const COUNTS = [10, 20, 40, 60, 80, 120, 160, 200];
const FACTORS = [1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50];
const WEIGHTS = [100, 300, 1000, 3000, 10000, 30000, 100000, 300000, 1000000];
const WEIGHT = 10000; // of a word's score of about ten, beside sums of products of about a hundred thousand

/** The active filters stand in `chips`. `onChange(change, final)` gets what is to change in the state; `final` is false while a slider is still held. */
export class Controls {
  constructor(root, chips, info, onChange) {
    this.root = root;
    this.chips = chips;
    this.info = info;
    this.onChange = onChange;
    const counts = COUNTS.filter((k) => k <= info.limits.k);
    this.k = slider("Hits at first", "more come as you scroll down", counts, (k) => `${k}`, this.set("k"));
    this.rm = slider("Candidates re-ranked per hit", "more: nearer to the exact ranking, slower", FACTORS, (rm) => `${rm} ×`, this.set("rm"));
    const all = (z) => z >= info.query_z;
    const setZ = (z, final) => onChange({ z: all(z) ? null : z }, final);
    this.z = slider("Query terms", "fewer: fewer posting lists to read", budget(info.query_z), (z) => `${all(z) ? "all " : ""}${z}`, setZ);
    this.weight = slider("Weight of the words", "beside the score of the terms", WEIGHTS, count, this.set("words_weight"));
    const setHybrid = (hybrid) => onChange({ hybrid, words_weight: hybrid === "sum" ? WEIGHT : null }, true);
    const told = "finds a sentence's own words in captions and text fields";
    this.hybrid = choice("Count the words too", { "": "No", rrf: "Fuse ranks", sum: "Add scores" }, told, setHybrid);
    const metrics = { "": "Index's own", dot: "Vectors", mrsw: "Alignment" };
    this.rerank = choice("Re-scored by", metrics, "alignment compares each word with each region", (rerank) => onChange({ rerank }, true));
    this.rerank.element.hidden = !info.concepts;
    const setCollapse = (value) => onChange({ collapse: Boolean(value) }, true);
    const places = { "": "Side by side", true: "Under the best" };
    this.collapse = choice("Near-duplicates", places, "pictures that are nearly the same", setCollapse);
    const own = { k: null, rm: null, z: null, hybrid: "", words_weight: null, rerank: "", collapse: false, filters: [] };
    const onclick = () => onChange(own, true);
    this.reset = h("button", { type: "button", class: "quiet-button", onclick }, "Back to the index's settings");
    const leave = document.getElementById("leave");
    if (leave) leave.hidden = false;
    const pair = (...knobs) => h("div", { class: "knob-pair" }, ...knobs.map(({ element }) => element));
    const pairs = [pair(this.hybrid, this.weight), pair(this.rerank, this.collapse)];
    const knobs = h("div", { class: "knobs" }, this.k.element, this.rm.element, this.z.element, ...pairs);
    root.replaceChildren(knobs, h("div", { class: "about" }, h("p", {}, facts(info)), h("p", {}, KEYS), this.reset, leave));
  }

  set(name) {
    return (value, final) => this.onChange({ [name]: value }, final);
  }

  /** Show a state. */
  show(state, bySentence) {
    const { info } = this;
    this.k.show(state.k ?? info.k ?? 40);
    this.rm.show(state.rm ?? info.rm);
    this.z.show(state.z ?? info.query_z);
    this.hybrid.show(state.hybrid, !bySentence);
    this.rerank.show(state.rerank, state.hybrid === "sum");
    this.collapse.show(state.collapse ? "true" : "", false);
    this.weight.show(state.words_weight ?? WEIGHT);
    this.weight.element.hidden = state.hybrid !== "sum";
    this.rm.disable(state.hybrid === "sum");
    const shown = chips(state.filters).map(({ text, filters }) => [text, { filters: state.filters.filter((each) => !filters.includes(each)) }]);
    if (state.pick.length) shown.push([state.name || many(state.pick.length, "picture"), { pick: [], name: "" }]);
    const chip = ([text, change]) => {
      const onclick = () => this.remove(change);
      return h("li", { class: "chip" }, h("span", { text }), h("button", { type: "button", "aria-label": `Remove ${text}`, onclick }, icon("close")));
    };
    this.chips.replaceChildren(...shown.map(chip));
    this.chips.hidden = !shown.length;
    const changed = [state.k, state.rm, state.z].some((x) => x !== null) || state.hybrid || state.rerank || state.collapse || state.filters.length;
    this.reset.hidden = !changed;
  }

  remove(change) {
    this.onChange(change, true);
    (this.chips.querySelector("button") ?? document.getElementById("q")).focus();
  }
}

function facts({ items, terms, code, encoder, engine, version }) {
  const held = [many(items.image, "picture"), many(items.text, "sentence"), `${count(terms)} terms`];
  return [...held, code, encoder, engine, `boc ${version}`].join(" · ");
}

/** Budgets up to `most`: powers of two, and `most`. */
function budget(most) {
  const steps = [];
  for (let z = 1; z < most; z *= 2) steps.push(z);
  return [...steps, most];
}

let labels = 0;

/** A slider over the values `steps`. One that stands between two of them is shown as it is. */
function slider(name, hint, steps, format, onSet) {
  const id = `knob-${++labels}`;
  const input = h("input", { id, type: "range", min: 0, max: steps.length - 1, step: 1, "aria-describedby": `${id}-hint` });
  const output = h("output", { for: id });
  const say = (value) => {
    output.textContent = format(value);
    input.setAttribute("aria-valuetext", format(value));
  };
  const set = (final) => () => {
    const value = steps[Number(input.value)];
    say(value);
    onSet(value, final);
  };
  input.addEventListener("input", set(false));
  input.addEventListener("change", set(true));
  const element = h("div", { class: "knob" }, h("label", { for: id }, name), output, input, h("small", { id: `${id}-hint` }, hint));
  return {
    element,
    disable: (off) => (input.disabled = off),
    show(value) {
      const nearest = steps.reduce((best, step, i) => (Math.abs(step - value) < Math.abs(steps[best] - value) ? i : best), 0);
      input.value = nearest;
      say(value);
    },
  };
}

/** A row of radio buttons that looks like one switch; `options` are texts by value. */
function choice(name, options, told, onSet) {
  const group = `choice-${++labels}`;
  const inputs = Object.keys(options).map((value) => h("input", { type: "radio", name: group, value, onchange: () => onSet(value) }));
  const parts = inputs.map((input) => h("label", {}, input, h("span", { text: options[input.value] })));
  const element = h("fieldset", { class: "knob" }, h("legend", {}, name), h("div", { class: "switch" }, ...parts), h("small", {}, told));
  return {
    element,
    show(value, off) {
      element.disabled = off;
      inputs.forEach((input) => (input.checked = input.value === value));
    },
  };
}

/** Make `button` fold and unfold `panel`; the visit remembers it. */
export function foldPanel(button, panel) {
  const set = (open) => {
    panel.hidden = !open;
    button.setAttribute("aria-expanded", open);
    document.body.classList.toggle("tuning", open);
  };
  try {
    set(sessionStorage.getItem("boc-panel") === "open");
  } catch {
    set(false);
  }
  const listen = (event) => {
    if (event.key !== "Escape" || panel.hidden || document.querySelector("dialog[open], .facet[open]")) return;
    event.stopPropagation();
    event.preventDefault(); // of a search box: to empty it
    button.focus();
    button.click();
  };
  document.addEventListener("keydown", listen, { capture: true });
  button.addEventListener("click", () => {
    set(panel.hidden);
    try {
      sessionStorage.setItem("boc-panel", panel.hidden ? "" : "open");
    } catch {
      // storage is barred: the panel starts folded
    }
  });
}
