/** The server's answers, and what can go wrong on the way to them. */

import { parameters } from "./address.js";

const AWAY = new Set([502, 503, 504]);
const LARGEST = 1600; // pixels of the longer side of a picture that has to be made smaller before it is sent

/** The server refused; the message says what to do. `wait` is in seconds, where asking again may help. */
export class Refused extends Error {
  constructor(message, status, wait = 0) {
    super(message);
    this.status = status;
    this.wait = wait;
  }
}

/** The server, or the engine behind it, does not answer; asking again may help. */
export class Away extends Error {}

/** `path` with each part of an id encoded; slashes stay, where no part is empty, `.` or `..`. */
export function withId(path, id) {
  const parts = id.split("/");
  const odd = parts.some((part) => ["", ".", ".."].includes(part)); // which browsers resolve, unless slashes are encoded
  return `${path}/${parts.map(encodeURIComponent).join(odd ? "%2F" : "/")}`;
}

/** The answer in JSON to a request, with a `picture` or without. */
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
    throw new Away("The server does not answer. It may have been stopped, or the network is down.");
  }
  if (response.ok && body) return body;
  const said = typeof body?.error === "string" ? body.error : `The server answered ${response.status}.`;
  const message = said.replace(/^[a-z]+ /, (word) => word[0].toUpperCase() + word.slice(1));
  if (AWAY.has(response.status)) throw new Away(message);
  throw new Refused(message, response.status, Number.parseFloat(response.headers.get("retry-after")) || 0);
}

/** What the index holds and what may be asked of it. */
export const info = () => call("api/info");

/** The `k` best hits for the state's sentence, item, or the picture beside it. */
export async function search(state, picture, k, signal) {
  const query = parameters(state);
  query.set("k", k);
  if (!state.q.trim()) query.delete("hybrid");
  return call("api/search", asked(query, state), { picture, signal });
}

/** `k` pictures by date behind those `shown`, which pass the state's filters. */
export async function library(state, shown, k, signal) {
  const query = new URLSearchParams({ skip: shown.length, k });
  for (const filter of state.filters) query.append("filter", filter);
  const { pictures, hits } = await call("api/library", query, { signal });
  return { pictures, hits, find: "image", more: shown.length + hits.length < pictures };
}

/** Give the library a picture, whose owner keeps them; the id that it has there. */
export const keep = async (picture) => (await call("api/library", null, { picture })).id;

/** The words of a sentence that the library does not have, each with the known word most like it. */
export const unknownWords = async (q) => (await call("api/words", new URLSearchParams({ q }))).unknown;

/** `query` with the sentence and the items of a question. */
function asked(query, state) {
  if (state.q.trim()) query.set("q", state.q);
  for (const name of ["like", "unlike"]) for (const id of state[name]) query.append(name, id);
  return query;
}

/** How many hits have which value of each field. */
export function facets(state, picture, signal) {
  const query = parameters({ ...state, hybrid: "", sort: "" });
  return call("api/facets", asked(query, state), { picture, signal });
}

/** Why an item has its score for what is asked. */
export function explain(id, state, picture, signal) {
  const query = new URLSearchParams();
  if (!picture) query.set(state.like ? "like" : "q", state.like || state.q);
  return call(withId("api/explain", id), query, { picture, signal });
}

/** An item with its captions. */
export const item = (id, signal) => call(withId("api/item", id), null, { signal });

/** Hand in the token; the server remembers this browser by a cookie. False if it is not the right one. */
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

/** The file as it is, or made smaller where it has more than `bytes`. Refused if it is no picture. */
export async function fitting(file, bytes) {
  const drawn = await createImageBitmap(file).catch(() => null);
  if (drawn === null) throw new Refused(`${file.name || "This file"} is not a picture that a browser can read; try a JPEG or PNG.`, 415);
  if (file.size <= bytes && ["image/jpeg", "image/png", "image/webp"].includes(file.type)) return file;
  const scale = Math.min(1, LARGEST / Math.max(drawn.width, drawn.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(drawn.width * scale));
  canvas.height = Math.max(1, Math.round(drawn.height * scale));
  canvas.getContext("2d").drawImage(drawn, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
  return new File([blob], file.name || "picture.jpg", { type: "image/jpeg" });
}
