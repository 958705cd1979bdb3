/** Requests to the server, and the errors that can occur. */

import { parameters } from "./address.js";

const AWAY = new Set([502, 503, 504]);
const LARGEST = 1600; // length of the longer side, in pixels, to which large pictures are reduced before they are sent

/** The server rejected a request; the message states the next step. If trying again may help, `wait` is the number of seconds to wait. */
export class Refused extends Error {
  constructor(message, status, wait = 0) {
    super(message);
    this.status = status;
    this.wait = wait;
  }
}

/** The server, or the engine behind it, does not respond. Trying again may help. */
export class Away extends Error {}

/** `path` with an encoded id. Slashes are kept, unless a part of the id is empty, `.` or `..`. */
export function withId(path, id) {
  const parts = id.split("/");
  const odd = parts.some((part) => ["", ".", ".."].includes(part)); // browsers would resolve these parts unless the slashes are encoded
  return `${path}/${parts.map(encodeURIComponent).join(odd ? "%2F" : "/")}`;
}

/** The JSON response to a request, with or without a `picture`. */
async function call(path, query, { picture = null, signal } = {}) {
  const options = { signal, headers: { accept: "application/json" } };
  if (picture) {
    options.method = "POST";
    options.body = new FormData();
    options.body.append("image", picture, picture.name || "picture");
  }
  let response, body;
  try {
    response = await fetch(query?.size ? `${path}?${query}` : path, options);
    body = await response.json().catch((error) => {
      if (error.name === "SyntaxError") return null;
      throw error;
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Away("The server does not respond. It may have been stopped, or the network may be down.");
  }
  if (response.ok && body) return body;
  const said = typeof body?.error === "string" ? body.error : `The server responded with status ${response.status}.`;
  const message = said.replace(/^[a-z]+ /, (word) => word[0].toUpperCase() + word.slice(1));
  if (AWAY.has(response.status)) throw new Away(message);
  throw new Refused(message, response.status, Number.parseFloat(response.headers.get("retry-after")) || 0);
}

/** The contents of the index, and the limits on requests. */
export const info = () => call("api/info");

/** The `k` best hits for the sentence and items in the state, or for the picture. */
export async function search(state, picture, k, signal) {
  const query = parameters(state);
  query.set("k", k);
  if (!state.q.trim()) query.delete("hybrid");
  return call("api/search", asked(query, state), { picture, signal });
}

/** The next `k` pictures by date, after the pictures `shown`, that pass the filters of the state. */
export async function library(state, shown, k, signal) {
  const query = new URLSearchParams({ skip: shown.length, k });
  for (const filter of state.filters) query.append("filter", filter);
  const { pictures, hits } = await call("api/library", query, { signal });
  return { pictures, hits, find: "image", more: shown.length + hits.length < pictures };
}

/** Add a picture to the library, and return its id. */
export const keep = async (picture) => (await call("api/library", null, { picture })).id;

/** The unknown words in a sentence, each with the most similar known word. */
export const unknownWords = async (q) => (await call("api/words", new URLSearchParams({ q }))).unknown;

/** `query` with the sentence and the items of the state. */
function asked(query, state) {
  if (state.q.trim()) query.set("q", state.q);
  for (const name of ["like", "unlike"]) for (const id of state[name]) query.append(name, id);
  return query;
}

/** The number of hits for each value of each field. */
export function facets(state, picture, signal) {
  const query = parameters({ ...state, hybrid: "", sort: "" });
  return call("api/facets", asked(query, state), { picture, signal });
}

/** The explanation of an item's score for the query. */
export function explain(id, state, picture, signal) {
  const query = new URLSearchParams();
  if (!picture) query.set(state.like ? "like" : "q", state.like || state.q);
  return call(withId("api/explain", id), query, { picture, signal });
}

/** An item with its captions. */
export const item = (id, signal) => call(withId("api/item", id), null, { signal });

/** Send the token, for which the server sets a cookie. Return false if the token is wrong. */
export async function signIn(token) {
  await fetch(`./?${new URLSearchParams({ token })}`).catch(() => null);
  try {
    await info();
  } catch (error) {
    if (error instanceof Refused && error.status === 401) return false;
    throw error;
  }
  return true;
}

/** The file itself, or a smaller version if it is larger than `bytes`. Throws Refused if the file is not a picture. */
export async function fitting(file, bytes) {
  const drawn = await createImageBitmap(file).catch(() => null);
  if (drawn === null) throw new Refused(`${file.name || "This file"} is not a picture that this browser can read; try a JPEG or PNG.`, 415);
  if (file.size <= bytes && ["image/jpeg", "image/png", "image/webp"].includes(file.type)) return file;
  const scale = Math.min(1, LARGEST / Math.max(drawn.width, drawn.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(drawn.width * scale));
  canvas.height = Math.max(1, Math.round(drawn.height * scale));
  canvas.getContext("2d").drawImage(drawn, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
  return new File([blob], file.name || "picture.jpg", { type: "image/jpeg" });
}
