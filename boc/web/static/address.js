/** The state of the page as a query string, so that an address can be shared, reloaded and gone back to. */

const NUMBERS = ["k", "rm", "z", "words_weight"];
const TEXTS = ["q", "find", "hybrid", "rerank", "sort", "open", "word", "name"];
const LISTS = ["like", "unlike", "pick"];

/** What the page shows: empty texts and null numbers stand for the index's own choice. `pick` are ids of a selection and
 * `name` its name; with `all`, all libraries are searched, and ids begin with the name of one. */
export function read(query) {
  const given = new URLSearchParams(query);
  const state = { filters: given.getAll("filter"), collapse: given.get("collapse") === "true", all: given.get("in") === "all" };
  for (const name of LISTS) state[name] = given.getAll(name).filter(Boolean);
  for (const name of TEXTS) state[name] = given.get(name) ?? "";
  for (const name of NUMBERS) {
    const value = Number.parseFloat(given.get(name) ?? "");
    state[name] = Number.isFinite(value) ? value : null;
  }
  if (state.find !== "text") state.find = state.find === "image" ? "image" : "";
  if (state.hybrid !== "sum") state.words_weight = null;
  return state;
}

/** The address of a state, from the page's own; `by` says that there is a picture beside it, which no address holds. */
export function write(state, by = "") {
  const query = parameters(state);
  if (state.all) query.set("in", "all");
  if (by) query.set("by", by);
  for (const name of ["q", "open", "word", "name"]) if (state[name]) query.set(name, state[name]);
  for (const name of LISTS) for (const id of state[name]) query.append(name, id);
  const text = query.toString();
  return text ? `?${text}` : location.pathname;
}

/** The settings as the API takes them; what is the index's own choice is left out. */
export function parameters(state) {
  const query = new URLSearchParams();
  if (state.find) query.set("find", state.find);
  for (const name of NUMBERS) if (state[name] !== null) query.set(name, state[name]);
  if (state.hybrid) query.set("hybrid", state.hybrid);
  if (state.rerank) query.set("rerank", state.rerank);
  if (state.sort) query.set("sort", state.sort);
  if (state.collapse) query.set("collapse", "true");
  for (const filter of state.filters) query.append("filter", filter);
  return query;
}
