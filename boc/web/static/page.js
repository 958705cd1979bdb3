/** What the page is about, shared by its parts: the state of the address, the picture searched by, and the index. */

import { read } from "./address.js";

const FIRST = 40; // hits, unless the index or the address says otherwise
const SORTED = 200; // hits that are put in an order of dates, all at once

/** `picture` is {key, file, url} or null; `info` is the server's description of the index, null until it came. */
export const page = { state: read(location.search), picture: null, info: null };

export const hasQuery = () => Boolean(page.picture || page.state.like.length || page.state.q.trim());

/** What decides the hits, as a text. */
export function request() {
  const { open, word, q, ...rest } = page.state;
  return JSON.stringify([page.picture ? page.picture.key : q.trim(), rest]);
}

/** The items that are searched by, in words: "like 1.jpg", "like 2 items, unlike 2.jpg". */
export function likes() {
  const told = (word, ids) => ids.length && `${word} ${ids.length === 1 ? ids[0] : `${ids.length} items`}`;
  return [told("like", page.state.like), told("unlike", page.state.unlike)].filter(Boolean).join(", ");
}

/** Hits to ask for at first. */
export function pageSize() {
  if (page.state.sort) return Math.min(SORTED, page.info?.limits.k ?? SORTED);
  return Math.max(1, Math.round(page.state.k ?? page.info?.k ?? FIRST));
}

/** The title of the document. */
export function title() {
  const { state, picture, info } = page;
  const query = picture ? "a picture" : state.q.trim() || likes();
  return [query, info?.name, "boc"].filter(Boolean).join(" · ");
}
