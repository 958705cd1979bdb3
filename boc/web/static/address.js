/** The state of the page as a query string, so that an address can be shared, reloaded and gone back to: which changes are
 * steps in the history of the browser, and what an entry keeps. */

const TEXTS = ["q", "find", "hybrid", "sort", "open", "word"];
const LISTS = ["like", "unlike"];

/** What the page shows: empty texts and a null `k`, the number of hits, stand for the index's own choice. */
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

/** The address of a state, from the page's own; `by` says that there is a picture beside it, which no address holds. */
export function write(state, by = "") {
  const query = parameters(state);
  if (by) query.set("by", by);
  for (const name of ["q", "open", "word"]) if (state[name]) query.set(name, state[name]);
  for (const name of LISTS) for (const id of state[name]) query.append(name, id);
  const text = query.toString();
  return text ? `?${text}` : location.pathname;
}

/** The settings as the API takes them; what is the index's own choice is left out. */
export function parameters(state) {
  const query = new URLSearchParams();
  if (state.k !== null) query.set("k", state.k);
  for (const name of ["find", "hybrid", "sort"]) if (state[name]) query.set(name, state[name]);
  if (state.collapse) query.set("collapse", "true");
  for (const filter of state.filters) query.append("filter", filter);
  return query;
}

const SAME_STEP = 2000; // milliseconds within which changes of a slider are one step

/**
 * Write `address` and the `key` of the picture searched by into the history. `kind` is "step" for an entry of its own,
 * "typing" and "knob" for changes that continue the last entry, "move" for one that replaces it. `above` says that the
 * dialog opens over the page; `remember()` runs before a new entry.
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

/** Keep how far down the page is, and how many hits it shows. */
export function rememberPlace(depth) {
  history.replaceState({ ...history.state, y: scrollY, depth }, "");
}

/** End the typing: the next key begins another entry. */
export function endTyping() {
  if (history.state?.kind === "typing") history.replaceState({ ...history.state, kind: "step" }, "");
}
