/** Data that all parts of the page share: the state in the URL, the query picture, and the description of the index. */

import { read } from "./address.js";

const FIRST = 40; // default number of hits
const SORTED = 200; // number of hits that are sorted by date together

/** `picture` is {key, file, url} or null. `info` is the server's description of the index, or null until it arrives. */
export const page = { state: read(location.search), picture: null, info: null };

export const hasQuery = () => Boolean(page.picture || page.state.like.length || page.state.q.trim());

/** A text that identifies the request for hits. */
export function request() {
  const { open, word, q, ...rest } = page.state;
  return JSON.stringify([page.picture ? page.picture.key : q.trim(), rest]);
}

/** The items in the query as text: "like 1.jpg", "like 2 items, unlike 2.jpg". */
export function likes() {
  const told = (word, ids) => ids.length && `${word} ${ids.length === 1 ? ids[0] : `${ids.length} items`}`;
  return [told("like", page.state.like), told("unlike", page.state.unlike)].filter(Boolean).join(", ");
}

/** The number of hits in the first request. */
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
