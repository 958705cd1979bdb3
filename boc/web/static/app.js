/** The page: what is asked, when it is asked again, and what the address and the parts of the page show of it. */

import { read, write } from "./address.js";
import * as api from "./api.js";
import { Controls } from "./controls.js";
import { h, icon, many, milliseconds } from "./dom.js";
import { Meter } from "./meter.js";
import { Results } from "./results.js";

const TYPING = 80; // milliseconds without a key before the server is asked
const SAME_STEP = 2000; // milliseconds in which turns of the knobs are one step of the history
const FIRST = 40; // hits, unless the index or the address says otherwise
const LONGEST_WAIT = 15; // seconds between two attempts to reach a server that is gone
const KEPT = 2e6; // characters of a picture that a reload may bring back
const PATIENCE = 400; // milliseconds of an empty page before it says that it searches
const QUIET = 600; // milliseconds without change before the number of results is read out

const COARSE = matchMedia("(pointer: coarse)").matches;

const by = (id) => document.getElementById(id);
const ui = Object.fromEntries(
  ["ask", "asked-by", "q", "clear", "pick", "file", "find", "tune", "theme", "panel", "meter", "results", "status", "notice", "drop", "why"].map((id) => [id, by(id)]),
);

let state = read(location.search);
let picture = null; // {key, file, url}: the picture that is searched by
let info = null;
let controls = null;
let why = null;
let shown = ""; // what the hits on the page answer
let wanted = ""; // what was asked for last
let opened = ""; // the item that the dialog shows
let depth = 0; // hits asked for
let more = false; // whether there are any behind them
let ticket = 0; // of the latest question: answers to older ones are dropped
let running = null;
let debounce = 0;
let retry = 0;
let failures = 0;
let countdown = 0;
let telling = 0;
const pictures = new Map();

const results = new Results(ui.results, {
  address: (change) => write({ ...state, ...change }),
  onOpen: (id) => step({ open: id, word: "" }),
  onLike: like,
  onLeave: () => ui.q.focus(),
  onEnd: deeper,
});
const meter = new Meter(ui.meter);

const isAsked = () => Boolean(picture || state.like || state.q.trim());
const bySentence = () => !picture && !state.like;
/** What decides the hits, as one text; two states of the same question differ in knobs at most. */
const question = () => JSON.stringify([picture?.key ?? 0, state.like, bySentence() ? state.q.trim() : ""]);
const request = () => JSON.stringify([question(), state.find, state.k, state.rm, state.z, state.hybrid, state.words_weight, state.filters]);
const pageSize = () => Math.max(1, Math.round(state.k ?? info?.k ?? FIRST));

/** Change the state, the address with it, and whatever shows it. `kind` tells apart steps of the history. */
function step(change, kind = "step", delay = 0) {
  state = { ...state, ...change };
  commit(kind);
  show(delay);
}

function commit(kind) {
  const last = history.state ?? {};
  const address = write(state);
  const key = picture?.key ?? null;
  if (address === location.pathname + location.search || (address === location.search && key === (last.picture ?? null))) return;
  const soft = last.kind === kind && (kind === "typing" || (kind === "knob" && Date.now() - last.at < SAME_STEP));
  if (!soft) remember();
  const entry = { kind, at: Date.now(), picture: key, above: Boolean(state.open) && !opened };
  history[soft || kind === "move" ? "replaceState" : "pushState"](kind === "move" ? { ...last, ...entry, above: last.above } : entry, "", address);
}

/** Note in the history how far down the page is, for the way back. */
function remember() {
  history.replaceState({ ...history.state, y: scrollY, depth }, "");
}

/** Make the page show the state: fields, knobs, hits and dialog. Asks only for what is not there. */
function show(delay = 0) {
  if (document.activeElement !== ui.q || ui.q.value.trim() !== state.q.trim()) ui.q.value = state.q;
  ui.clear.hidden = !isAsked();
  showAskedBy();
  const find = state.find || (info && !info.items.image ? "text" : "image");
  for (const input of ui.find.querySelectorAll("input")) {
    input.checked = input.value === find;
    input.disabled = Boolean(info) && !info.items[input.value];
  }
  controls?.show(state, bySentence());
  document.title = [picture ? "a picture" : state.like ? `like ${state.like}` : state.q.trim(), info?.name, "boc"].filter(Boolean).join(" · ");
  if (request() !== wanted) {
    clearTimeout(debounce);
    running?.abort();
    ticket++;
    if (!delay) ask();
    else debounce = setTimeout(ask, delay);
  }
  showWhy();
}

function showAskedBy() {
  const by = picture ? picture.key : state.like;
  if (ui["asked-by"].dataset.by === String(by)) return;
  ui["asked-by"].dataset.by = by;
  ui["asked-by"].hidden = !by;
  ui.q.placeholder = by ? "or describe one" : "Describe a picture";
  if (!by) return ui["asked-by"].replaceChildren();
  const image = h("img", { src: picture ? picture.url : `${api.withId("api/thumb", by)}?side=240`, alt: "" });
  image.addEventListener("error", () => image.remove());
  const name = h("span", { text: picture ? picture.file.name || "your picture" : `like ${by}` });
  ui["asked-by"].replaceChildren(image, name);
  if (!picture) {
    api.item(by).then((item) => item.modality === "text" && (name.textContent = `like “${item.content}”`), () => {});
  }
}

/** Ask for the state's hits and show them, or say why not. `depth` deeper than a page comes from scrolling. */
async function ask(restored = history.state) {
  clearTimeout(retry);
  running?.abort();
  const mine = ++ticket;
  wanted = request();
  if (!isAsked()) return welcome();
  const deep = restored?.depth && restored.y ? restored.depth : pageSize();
  const patience = setTimeout(() => !results.hits.length && !ui.results.childElementCount && results.replace(h("p", { class: "searching" }, "Searching …")), PATIENCE);
  const answer = await reach(mine, deep, () => ask(restored));
  clearTimeout(patience);
  if (!answer) return;
  if (results.find !== answer.find || shown !== wanted) scrollTo(0, 0);
  shown = wanted;
  depth = deep;
  more = answer.more;
  if (answer.hits.length) results.show(answer.hits, answer.find, many(answer.hits.length, answer.find === "text" ? "sentence" : "picture"));
  else nothing();
  meter.show(answer, answer.wall, question());
  tell(`${many(answer.hits.length, answer.find === "text" ? "sentence" : "picture")} in ${milliseconds(answer.wall)} milliseconds`);
  if (restored?.y) scrollTo(0, restored.y);
  showWhy();
  if (results.endIsNear) deeper();
}

/** Ask again for more hits and append those that are not there yet. */
async function deeper() {
  const most = info?.limits.k ?? 1000;
  if (!more || running || depth >= most || shown !== request()) return;
  const mine = ++ticket;
  const deep = Math.min(2 * depth, most);
  const answer = await reach(mine, deep, deeper);
  if (!answer) return;
  depth = deep;
  more = answer.more && deep < most;
  const there = new Set(results.hits.map((hit) => hit.id));
  const unseen = answer.hits.filter((hit) => !there.has(hit.id));
  results.append(unseen);
  meter.count(results.hits.length);
  if (unseen.length) tell(`${unseen.length} more`);
  if (results.endIsNear) deeper();
}

/** The answer to question number `mine` with the time it took; null if a newer one was asked or none is to be had. */
async function reach(mine, k, again) {
  running = new AbortController();
  ui.results.classList.toggle("stale", shown !== request());
  ui.results.setAttribute("aria-busy", "true");
  const began = performance.now();
  try {
    const answer = await api.search(state, picture?.file ?? null, k, running.signal);
    if (mine !== ticket) return null;
    running = null;
    fresh();
    return { ...answer, wall: performance.now() - began };
  } catch (error) {
    if (error.name === "AbortError" || mine !== ticket) return null;
    running = null;
    failed(error, again);
    return null;
  }
}

function fresh() {
  ui.results.classList.remove("stale");
  ui.results.removeAttribute("aria-busy");
  if (failures) tell("The server is back.");
  failures = 0;
  hush();
}

/** Say what went wrong; ask again by itself where that may help. */
function failed(error, again) {
  ui.results.removeAttribute("aria-busy");
  if (error instanceof api.Refused && error.status === 401) return askToken();
  if (!(error instanceof Error) || (!(error instanceof api.Away) && !(error instanceof api.Refused))) throw error;
  if (error instanceof api.Refused && error.status !== 429) {
    if (results.hits.length) return notify(error.message);
    hush();
    meter.clear();
    return results.replace(message("That could not be answered", error.message));
  }
  const wait = error.wait || Math.min(LONGEST_WAIT, 2 ** failures);
  failures++;
  const now = () => {
    clearTimeout(retry);
    clearInterval(countdown);
    again();
  };
  notify(error.message, { wait, now });
  retry = setTimeout(now, 1000 * wait);
}

/** A line at the foot of the page; with `wait` seconds, a countdown and a button that does it `now`. */
function notify(text, { wait = 0, now = null } = {}) {
  clearInterval(countdown);
  const left = h("span", { class: "left", "aria-hidden": "true" });
  const button = now
    ? h("button", { class: "button", type: "button", onclick: now }, "Try now")
    : h("button", { class: "icon", type: "button", "aria-label": "Dismiss", onclick: hush }, icon("close"));
  const old = ui.notice.querySelector("p");
  const body = h("div", {}, old?.textContent === text ? old : h("p", { text }), left);
  ui.notice.replaceChildren(body, button);
  ui.notice.hidden = false;
  if (!now) return;
  const until = Date.now() + 1000 * wait;
  const say = () => (left.textContent = `Results stay as they are. Trying again in ${Math.max(1, Math.ceil((until - Date.now()) / 1000))} s.`);
  say();
  countdown = setInterval(say, 500);
}

function hush() {
  clearInterval(countdown);
  ui.notice.hidden = true;
  ui.notice.replaceChildren();
}

function tell(text) {
  clearTimeout(telling);
  telling = setTimeout(() => (ui.status.textContent = text), QUIET);
}

function message(title, ...parts) {
  return h("div", { class: "message" }, h("h1", {}, title), ...parts.filter(Boolean).map((part) => (typeof part === "string" ? h("p", { text: part }) : part)));
}

/** The page before anything is asked. */
function welcome() {
  clearTimeout(retry);
  running = null;
  shown = wanted;
  more = false;
  fresh();
  meter.clear();
  if (!info) return results.replace();
  const { image, text } = info.items;
  if (!image && !text) {
    return results.replace(message("This index is empty", "Put pictures into it, then reload this page:", h("pre", {}, `boc index ${info.name} FOLDER-OF-PICTURES --replace`)));
  }
  const held = [image && many(image, "picture"), text && many(text, "sentence")].filter(Boolean).join(" and ");
  const examples = (info.examples ?? []).slice(0, 6).map((query) =>
    h("li", {}, h("a", { class: "example", href: write({ ...state, q: query }), onclick: (event) => (event.preventDefault(), ui.q.focus(), step({ q: query })) }, query)),
  );
  const keys = [["/", "to the search box"], ["← ↑ ↓ →", "between the results"], ["Enter", "why it was found"], ["m", "more like it"], ["Esc", "close"]];
  results.replace(
    h(
      "div",
      { class: "welcome" },
      h("h1", {}, image ? "Describe a picture." : "Look for a sentence."),
      h("p", { class: "lead" }, `${held}, searched while you type. Or ${COARSE ? "choose" : "drop, paste or choose"} a picture to find others like it.`),
      examples.length ? h("ul", { class: "examples", role: "list", "aria-label": "Examples" }, ...examples) : h("p", { class: "lead" }, "Try what a photograph might show: who does what, where, in which colours."),
      h("dl", { class: "keys" }, ...keys.map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)))),
    ),
  );
}

function nothing() {
  const filtered = state.filters.length > 0;
  const remove = h("button", { class: "button", type: "button", onclick: () => (ui.q.focus(), step({ filters: [] })) }, "Remove the filters");
  results.replace(
    message(
      "Nothing found",
      filtered ? "No item that passes the filters shares a term with what you ask." : "No item shares a term with what you ask. Other words may do, or more query terms in the settings.",
      filtered ? remove : "",
    ),
  );
}

function askToken() {
  hush();
  meter.clear();
  ui.results.classList.remove("stale");
  const input = h("input", { id: "token", type: "password", autocomplete: "current-password", required: true, "aria-describedby": "token-help" });
  const wrong = h("p", { class: "wrong", role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    wrong.textContent = "";
    try {
      if (await api.signIn(input.value.trim())) return start();
      wrong.textContent = "That is not the token. Copy it from where boc serve was started.";
      input.select();
    } catch (error) {
      wrong.textContent = error.message;
    }
  };
  const label = h("label", { for: "token" }, "Token");
  const form = h("form", { class: "token", onsubmit: submit }, label, h("div", {}, input, h("button", { class: "button strong" }, "Open")), wrong);
  if (by("token")) return;
  results.replace(message("This page asks for a token", h("p", { id: "token-help" }, "Whoever started boc serve has it: it was given with --token, or as BOC_TOKEN."), form));
  input.focus();
}

function like(id) {
  const from = results.list.contains(document.activeElement);
  setPicture(null);
  step({ like: id, q: "", open: "", word: "" });
  if (!from && !ui.why.open) ui.results.focus({ preventScroll: true });
}

function setPicture(next) {
  picture = next;
  if (next) pictures.set(next.key, next);
}

/** Search by a file that was chosen, dropped or pasted. */
async function searchBy(file) {
  try {
    const fit = await api.fitting(file, Math.min(info?.limits.upload ?? Infinity, 4e6));
    const key = `${Date.now()}`;
    setPicture({ key, file: fit, url: URL.createObjectURL(fit) });
    keep(key, fit);
    step({ q: "", like: "", open: "", word: "" });
  } catch (error) {
    failed(error, () => searchBy(file));
  }
}

/** Let a reload bring the picture back. */
function keep(key, file) {
  const reader = new FileReader();
  reader.onload = () => {
    try {
      if (reader.result.length < KEPT) sessionStorage.setItem("boc-picture", JSON.stringify([key, file.name, reader.result]));
    } catch {
      // no room, or storage is barred: a reload starts anew
    }
  };
  reader.readAsDataURL(file);
}

/** The picture of that key, also from before a reload; null if it is gone. */
function recall(key) {
  if (!key || pictures.has(key)) return pictures.get(key) ?? null;
  try {
    const [kept, name, data] = JSON.parse(sessionStorage.getItem("boc-picture"));
    if (kept !== key) return null;
    const [, type, code] = /^data:(.*?);base64,(.*)$/.exec(data);
    const file = new File([Uint8Array.from(atob(code), (c) => c.charCodeAt(0))], name, { type });
    const found = { key, file, url: URL.createObjectURL(file) };
    pictures.set(key, found);
    return found;
  } catch {
    return null;
  }
}

/** Open, change or close the dialog, as the state says. */
async function showWhy() {
  if (state.open === opened) return why?.word(state.word);
  const before = opened;
  opened = state.open;
  if (!opened) {
    why?.close();
    if (!results.focusId(before)) ui.q.focus();
    return;
  }
  if (!why) {
    const { Why } = await import("./why.js");
    why ??= new Why(ui.why, {
      onMove: (by) => move(by),
      onClose: leave,
      onLike: like,
      onWord: (word) => step({ word }, "move"),
      onFailed: (error) => error instanceof api.Refused && error.status === 401 && askToken(),
    });
    if (state.open !== opened) return;
  }
  const at = results.hits.findIndex((hit) => hit.id === opened);
  why.show(opened, { hit: results.hits[at], at, of: results.hits.length, state, picture, asked: isAsked() });
}

function move(by) {
  const at = results.hits.findIndex((hit) => hit.id === opened) + by;
  const hit = results.hits[at];
  if (hit) step({ open: hit.id }, "move");
  if (at >= results.hits.length - 5) deeper();
}

/** Close the dialog: back to the entry it was opened from, if that is ours. */
function leave() {
  if (!state.open) return;
  if (history.state?.above) history.back();
  else step({ open: "", word: "" }, "move");
}

async function start() {
  clearTimeout(retry);
  try {
    info = await api.info();
  } catch (error) {
    return failed(error, start);
  }
  hush();
  failures = 0;
  controls = new Controls(ui.panel, info, (change, final) => {
    if (final) return step(change, "knob");
    state = { ...state, ...change };
    show(TYPING);
  });
  wanted = "-";
  show();
}

function theme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  ui.theme.setAttribute("aria-label", dark ? "Light colours" : "Dark colours");
  ui.theme.replaceChildren(icon(dark ? "sun" : "moon"));
  return dark;
}

function setTheme(name) {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  if (name === system) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  try {
    if (name === system) localStorage.removeItem("boc-theme");
    else localStorage.setItem("boc-theme", name);
  } catch {
    // storage is barred: the choice holds until the page is left
  }
  theme();
}

function setPanel(open) {
  ui.panel.hidden = !open;
  ui.tune.setAttribute("aria-expanded", open);
  document.body.classList.toggle("tuning", open);
  try {
    sessionStorage.setItem("boc-panel", open ? "open" : "");
  } catch {
    // storage is barred: the panel starts folded
  }
}

const imageOf = (transfer) => [...(transfer?.files ?? [])].find((file) => file.type.startsWith("image/")) ?? transfer?.files?.[0];

ui.ask.addEventListener("submit", (event) => {
  event.preventDefault();
  if (history.state?.kind === "typing") history.replaceState({ ...history.state, kind: "step" }, "");
  clearTimeout(debounce);
  if (shown !== request()) ask();
});
ui.q.addEventListener("input", () => {
  if (ui.q.value.trim()) setPicture(null);
  step({ q: ui.q.value, open: "", word: "", ...(ui.q.value.trim() ? { like: "" } : {}) }, "typing", TYPING);
});
ui.q.addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown" && results.hits.length) {
    event.preventDefault();
    results.focus(results.current);
  } else if ((event.key === "Escape" || (event.key === "Backspace" && !ui.q.value)) && isAsked()) {
    event.preventDefault();
    clear("typing");
  }
});
function clear(kind) {
  setPicture(null);
  step({ q: "", like: "", open: "", word: "" }, kind);
  ui.q.focus();
}
ui.clear.addEventListener("click", () => clear("step"));
ui.pick.addEventListener("click", () => ui.file.click());
ui.file.addEventListener("change", () => {
  if (ui.file.files[0]) searchBy(ui.file.files[0]);
  ui.file.value = "";
});
ui.find.addEventListener("change", (event) => step({ find: event.target.value, open: "", word: "" }));
ui.tune.addEventListener("click", () => setPanel(ui.panel.hidden));
ui.theme.addEventListener("click", () => setTheme(theme() ? "light" : "dark"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || ui.why.open) return;
  if (event.target.closest?.("input:not([type=range], [type=radio]), textarea, select")) return;
  event.preventDefault();
  ui.q.focus();
  ui.q.select();
});
document.addEventListener("paste", (event) => {
  const file = imageOf(event.clipboardData);
  if (!file || ui.why.open) return;
  event.preventDefault();
  searchBy(file);
});
let dragged = 0;
const isFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
document.addEventListener("dragenter", (event) => {
  if (isFile(event)) ui.drop.hidden = ++dragged < 1;
});
document.addEventListener("dragleave", (event) => {
  if (isFile(event)) ui.drop.hidden = --dragged < 1;
});
document.addEventListener("dragover", (event) => isFile(event) && event.preventDefault());
document.addEventListener("drop", (event) => {
  if (!isFile(event)) return;
  event.preventDefault();
  dragged = 0;
  ui.drop.hidden = true;
  const file = imageOf(event.dataTransfer);
  if (file) searchBy(file);
});
addEventListener("popstate", () => {
  state = read(location.search);
  picture = recall(history.state?.picture);
  show();
});
addEventListener("pagehide", remember);
addEventListener("online", () => failures && (info ? ask() : start()));

history.scrollRestoration = "manual";
picture = recall(history.state?.picture);
theme();
try {
  setPanel(sessionStorage.getItem("boc-panel") === "open");
} catch {
  setPanel(false);
}
if (!COARSE && !state.open) ui.q.focus();
ui.q.value = state.q;
start();
