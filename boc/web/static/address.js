/** The state of the page as a query string, so that a URL can be shared, reloaded and returned to. This module also decides
 * which changes become entries in the browser history, and what an entry stores. */

const TEXTS = ["q", "find", "hybrid", "sort", "open", "word"];
const LISTS = ["like", "unlike"];

/** The state in a query string. Empty texts, and null for `k` (the number of hits), mean the defaults of the index. */
export function read(query) {
  const given = new URLSearchParams(query);
  const state = { filters: given.getAll("filter"), collapse: given.get("collapse") === "true" };
  for (const name of LISTS) state[name] = given.getAll(name).filter(Boolean);
  for (const name of TEXTS) state[name] = given.get(name) ?? "";
  const k = Number.parseFloat(given.get("k") ?? "");
  state.k = Number.isFinite(k) ? k : null;
  if (state.find !== "text") state.find = state.find === "image" ? "image" : "";
  if (state.hybrid !== "rrf") state.hybrid = "";
  return state;
}

/** The URL of a state, relative to the page. `by` marks a query by a picture, which a URL cannot contain. */
export function write(state, by = "") {
  const query = parameters(state);
  if (by) query.set("by", by);
  for (const name of ["q", "open", "word"]) if (state[name]) query.set(name, state[name]);
  for (const name of LISTS) for (const id of state[name]) query.append(name, id);
  const text = query.toString();
  return text ? `?${text}` : location.pathname;
}

/** The settings as API parameters, without settings that are defaults of the index. */
export function parameters(state) {
  const query = new URLSearchParams();
  if (state.k !== null) query.set("k", state.k);
  for (const name of ["find", "hybrid", "sort"]) if (state[name]) query.set(name, state[name]);
  if (state.collapse) query.set("collapse", "true");
  for (const filter of state.filters) query.append("filter", filter);
  return query;
}

const SAME_STEP = 2000; // milliseconds within which changes to a setting form a single history entry

/**
 * Write `address` and the `key` of the query picture to the history. `kind` is "step" for a new entry, "typing" or "knob"
 * for changes that update the last entry of the same kind, and "move" for a change that replaces the last entry. `above`
 * means that the dialog opens over the page; `remember()` runs before a new entry is added.
 */
export function commit(kind, { address, key, above, remember }) {
  const last = history.state ?? {};
  const same = [location.search, location.pathname + location.search].includes(address);
  if (same && key === (last.picture ?? null)) return;
  const continues = last.kind === kind && (kind === "typing" || (kind === "knob" && Date.now() - last.at < SAME_STEP));
  if (!continues) remember();
  const entry = { kind, at: Date.now(), picture: key, above };
  if (kind === "move") history.replaceState({ ...last, ...entry, above: last.above }, "", address);
  else if (continues) history.replaceState(entry, "", address);
  else history.pushState(entry, "", address);
}

/** Store the scroll position and the number of hits. */
export function rememberPlace(depth) {
  history.replaceState({ ...history.state, y: scrollY, depth }, "");
}

/** End the typing, so that the next key press starts a new entry. */
export function endTyping() {
  if (history.state?.kind === "typing") history.replaceState({ ...history.state, kind: "step" }, "");
}
