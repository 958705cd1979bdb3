/** The page's entries in the history of the browser: which changes are steps to go back to, and what an entry keeps. */

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
