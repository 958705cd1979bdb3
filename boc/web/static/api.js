/** The server's answers, and what can go wrong on the way to them. */

import { parameters } from "./address.js";
import { page } from "./page.js";

const AWAY = new Set([502, 503, 504]);
const LINE = 0.5; // confidence below which a hit is probably wrong
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

/** The address of the index of an id, and the id there. */
function placed(id) {
  const [name, ...rest] = page.state.all ? id.split("/") : [];
  return name ? [`index/${name}/`, rest.join("/")] : ["", id];
}

/** `path` with each part of an id encoded; slashes stay, where no part is empty, `.` or `..`. */
export function withId(path, id) {
  const [at, own] = placed(id);
  const parts = own.split("/");
  const odd = parts.some((part) => ["", ".", ".."].includes(part)); // which browsers resolve, unless slashes are encoded
  return `${at}${path}/${parts.map(encodeURIComponent).join(odd ? "%2F" : "/")}`;
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

/** What the index holds and what may be asked of it; of all libraries what they share. */
export async function info() {
  const own = await call("api/info");
  const others = page.state.all ? own.indexes.filter((name) => name !== own.name) : [];
  const settled = await Promise.allSettled(others.map((name) => call(`index/${name}/api/info`)));
  const each = [own, ...settled.flatMap(({ value }) => value ?? [])];
  const shared = (fields) => Object.keys(fields).filter((name) => each.every((one) => name in one.fields));
  const fields = Object.fromEntries(shared(own.fields).map((name) => [name, own.fields[name]]));
  const values = (name) => [...new Set(each.flatMap(({ facets }) => facets[name] ?? []))];
  const facets = Object.fromEntries(each.flatMap((one) => shared(one.facets)).map((name) => [name, values(name)]));
  return { ...own, items: sums(each.map(({ items }) => items)), fields, facets };
}

/**
 * The answers at `path` of the libraries that the state names, which is one but for `all`, and of several those that can
 * answer. `query(own)` makes the query of one, of whose ids `own(ids)` are.
 */
async function answers(state, path, query, options) {
  if (!state.all)
    return [
      await call(
        path,
        query((ids) => ids),
        options,
      ),
    ];
  const named = new Set([...state.pick, ...state.like, ...state.unlike].map((id) => placed(id)[0]));
  const places = named.size ? [...named].slice(0, state.pick.length || 1) : page.info.indexes.map((name) => `index/${name}/`);
  const own = (at) => (ids) => ids.filter((id) => placed(id)[0] === at).map((id) => placed(id)[1]);
  const settled = await Promise.allSettled(places.map((at) => call(at + path, query(own(at)), options)));
  const fatal = settled.find(({ reason }) => reason && reason.status !== 400) ?? (settled.every(({ reason }) => reason) && settled[0]);
  if (fatal) throw fatal.reason;
  return settled.flatMap(({ value }, i) => {
    const name = places[i].slice("index/".length);
    const whole = (hit) => ({ ...hit, id: name + hit.id, thumb: hit.thumb && places[i] + hit.thumb });
    return value ? { ...value, hits: value.hits?.map?.(whole) ?? value.hits } : []; // facets have their number
  });
}

const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);
const sums = (all) => Object.fromEntries(Object.keys(all[0]).map((key) => [key, sum(all.map((one) => one[key]))]));

/** One answer of several, whose numbers add up. Hits that are probably right come first, by confidence, others in turns. */
function joined(parts) {
  if (parts.length < 2) return parts[0];
  const rank = ({ confidence }, at) => (confidence >= LINE ? -confidence : at);
  const ranked = parts.flatMap(({ hits }) => hits.map((hit, at) => [rank(hit, at), hit]));
  const [{ find }] = parts;
  const totals = sums(parts.map(({ postings, terms, candidates }) => ({ postings, terms, candidates })));
  const hits = ranked.sort(([a], [b]) => a - b).map(([, hit]) => hit);
  return { ...totals, find, hits, stages: sums(parts.map(({ stages }) => stages)), more: parts.some(({ more }) => more) };
}

const dateOf = ({ fields }) => String(fields.taken ?? fields.modified ?? "");
const byDate = (a, b) => (dateOf(a) < dateOf(b) ? 1 : dateOf(a) > dateOf(b) ? -1 : 0);

/** The `k` best hits for the state's sentence, item, or the picture beside it. */
export async function search(state, picture, k, signal) {
  const query = parameters(state);
  query.set("k", k);
  if (!state.q.trim()) query.delete("hybrid");
  if (!query.has("hybrid")) query.set("min_confidence", 0);
  const ask = (own) => asked(new URLSearchParams(query), { ...state, like: own(state.like), unlike: own(state.unlike) });
  const answer = joined(await answers(state, "api/search", ask, { picture, signal }));
  if (state.all && state.sort) answer.hits.sort((a, b) => (state.sort.startsWith("-") ? byDate(a, b) : byDate(b, a)));
  return answer;
}

/** `k` pictures by date behind those `shown`, which pass the state's filters and are in its selection. */
export async function library(state, shown, k, signal) {
  const ids = shown.map(({ id }) => id);
  const ask = (own) => {
    const query = new URLSearchParams({ skip: own(ids).length, k });
    for (const filter of state.filters) query.append("filter", filter);
    for (const id of own(state.pick)) query.append("pick", id);
    return query;
  };
  const parts = await answers(state, "api/library", ask, { signal });
  const pictures = sum(parts.map((part) => part.pictures));
  const hits = parts.flatMap((part) => part.hits);
  if (state.all) hits.sort(byDate);
  return { pictures, hits: hits.slice(0, k), find: "image", more: ids.length + Math.min(k, hits.length) < pictures };
}

/** The words of the sentence that no library searched has, each with the known word most like it. */
export async function unknownWords(state) {
  const [first, ...others] = (await answers(state, "api/words", () => new URLSearchParams({ q: state.q }))).map(({ unknown }) => unknown);
  const again = (unknown, word) => unknown.find((each) => each.word === word);
  return first
    .filter(({ word }) => others.every((unknown) => again(unknown, word)))
    .map(({ word, near }) => ({ word, near: [near, ...others.map((unknown) => again(unknown, word).near)].find(Boolean) }));
}

/** `query` with the sentence and the items of a question. */
function asked(query, state) {
  if (state.q.trim()) query.set("q", state.q);
  for (const name of ["like", "unlike"]) for (const id of state[name]) query.append(name, id);
  return query;
}

/** How many hits have which value of each field that all libraries searched have. */
export async function facets(state, picture, signal) {
  const query = parameters({ ...state, hybrid: "", sort: "" });
  const ask = (own) => asked(new URLSearchParams(query), { ...state, like: own(state.like), unlike: own(state.unlike) });
  const parts = await answers(state, "api/facets", ask, { picture, signal });
  const counted = new Map();
  for (const { field, values } of parts.flatMap((part) => part.facets)) {
    const before = counted.get(field) ?? new Map();
    for (const each of values) before.set(each.value, { ...each, count: each.count + (before.get(each.value)?.count ?? 0) });
    counted.set(field, before);
  }
  return { hits: sum(parts.map(({ hits }) => hits)), facets: [...counted].map(([field, values]) => ({ field, values: [...values.values()] })) };
}

/** Why an item has its score for what is asked. */
export async function explain(id, state, picture, signal) {
  const query = new URLSearchParams();
  if (state.z !== null) query.set("z", state.z);
  if (!picture) query.set(state.like ? "like" : "q", state.like ? placed(state.like)[1] : state.q);
  const found = await call(withId("api/explain", id), query, { picture, signal });
  for (const example of found.terms.flatMap(({ examples }) => examples)) example.thumb = placed(id)[0] + example.thumb;
  return found;
}

/** An item with its captions. */
export async function item(id, signal) {
  const found = await call(withId("api/item", id), null, { signal });
  return { ...found, thumb: found.thumb && placed(id)[0] + found.thumb };
}

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
