/** The page: its parts, the events that change its state, and the display of the state. */

import { commit, endTyping, read, rememberPlace, write } from "./address.js";
import * as api from "./api.js";
import { Facets } from "./facets.js";
import { Controls, Order, foldPanel } from "./controls.js";
import { completions, taken, withoutBegun } from "./filters.js";
import { Dialog } from "./dialog.js";
import { h } from "./dom.js";
import { Notices, tokenForm, welcome } from "./messages.js";
import { Meter } from "./meter.js";
import { hasQuery, likes, page, title } from "./page.js";
import { listenForFiles, pictureOf, recall } from "./pictures.js";
import { Results } from "./results.js";
import { Search } from "./search.js";
import { Selection } from "./selection.js";

const TYPING = 80; // milliseconds without a key press before a request is sent
const AHEAD = 5; // if fewer hits follow the hit in the dialog, more are fetched
const NOTHING = { fields: {}, facets: {} }; // for an index whose description has not arrived yet
const FRESH = { open: "", word: "" }; // for a state with another query

const ui = Object.fromEntries([...document.querySelectorAll("[id]")].map((element) => [element.id, element]));
const notices = new Notices(ui.notice, ui.status);
const meter = new Meter(ui.meter);
const selection = new Selection(ui.selection, {
  notices,
  onMore: (ids) => compose("like", "unlike", ids),
  onLess: (ids) => compose("unlike", "like", ids),
  onChange: () => results.mark(),
});
const facets = new Facets(ui.facets, (filters) => step({ ...FRESH, filters }));
const order = new Order(ui.order, (sort) => step({ ...FRESH, sort }));
const results = new Results(ui.results, {
  selection,
  address: (change) => write({ ...page.state, ...change }),
  onOpen: (id) => step({ open: id, word: "" }),
  onLike: searchLike,
  onLeave: () => ui.q.focus(),
  onEnd: () => search.deeper(),
});
const search = new Search(ui.results, {
  results,
  meter,
  notices,
  onWelcome: () => results.replace(page.info ? welcome(page.info) : ""),
  onQuery: searchFor,
  onShown() {
    dialog.show();
    facets.refresh();
    order.show(page.state, page.info, hasQuery() ? results.hits : []);
  },
  onToken: askToken,
  onRemove: () => stepFromBox({ filters: [] }),
});
const dialog = new Dialog(ui.why, results, {
  onMove: move,
  onClose: leave,
  onLike: searchLike,
  onQuery: searchFor,
  onUnlike: (id) => compose("unlike", "like", [id]),
  onWord: (word) => step({ word }, "move"),
  onFailed: (error) => error.status === 401 && askToken(),
  onClosed: (id) => results.focusId(id) || ui.q.focus(),
});
let controls = null; // made when the server has described the index

/** Change the state, the address with it, and whatever shows it. `kind` is that of `commit`. */
function step(change, kind = "step", delay = 0) {
  page.state = { ...page.state, ...change };
  const above = Boolean(page.state.open) && !dialog.opened;
  commit(kind, { address: write(page.state, page.picture && "picture"), key: page.picture?.key ?? null, above, remember });
  show(delay);
}

function stepFromBox(change, kind) {
  ui.q.focus();
  step(change, kind);
}

const remember = () => rememberPlace(search.depth);

/** Make the page show the state: fields, settings, hits and dialog. Only missing data is requested. */
function show(delay = 0) {
  const { state, info } = page;
  if (document.activeElement !== ui.q || withoutBegun(ui.q.value, info ?? NOTHING).trim() !== state.q.trim()) ui.q.value = state.q;
  ui.clear.hidden = !hasQuery();
  showAskedBy();
  const find = state.find || (info && !info.items.image ? "text" : "image");
  for (const input of ui.find.querySelectorAll("input")) input.checked = input.value === find;
  ui.find.hidden = Boolean(info) && !(info.items.image && info.items.text);
  controls?.show(state, Boolean(state.q.trim()) && !page.picture);
  facets.show();
  order.show(state, page.info, hasQuery() ? results.hits : []);
  document.title = title();
  search.update(delay);
  dialog.show();
}

/** Show the picture or item in the query in the search box. */
function showAskedBy() {
  const { state, picture } = page;
  const by = picture ? picture.key : likes();
  const box = ui["asked-by"];
  if (box.dataset.by === String(by)) return;
  box.dataset.by = by;
  box.hidden = !by;
  const such = page.info?.examples[0];
  ui.q.placeholder = by ? "or describe a picture" : such ? `Describe a picture: ${such.replace(/[ .]+$/, "")}` : "Describe a picture";
  if (!by) return box.replaceChildren();
  const image = h("img", { src: picture ? picture.url : `${api.withId("api/thumb", state.like[0] ?? state.unlike[0])}?side=240`, alt: "" });
  image.addEventListener("error", () => image.remove());
  const name = h("span", { text: picture ? picture.file.name || "your picture" : by });
  box.replaceChildren(image, name);
  if (picture?.whole && page.info?.keeps) box.append(keepButton(picture.whole));
  if (picture || state.unlike.length || state.like.length !== 1) return;
  api.item(state.like[0]).then(
    (item) => item.modality === "text" && (name.textContent = `like “${item.content}”`),
    () => {},
  );
}

/** A button that adds a picture to the library. */
function keepButton(file) {
  const onclick = async ({ target }) => {
    target.disabled = true;
    try {
      notices.tell(`Added to the library as ${await api.keep(file)}`);
    } catch (error) {
      target.disabled = false;
      search.failed(error, () => target.click());
    }
  };
  return h("button", { class: "quiet-button", type: "button", text: "Add to the library", onclick });
}

function askToken() {
  notices.hide();
  meter.show("");
  ui.results.classList.remove("stale");
  if (document.getElementById("token")) return;
  results.replace(tokenForm(api.signIn, start));
  document.getElementById("token").focus();
}

function clear(kind) {
  page.picture = null;
  step({ ...FRESH, q: "", like: [], unlike: [] }, kind);
  ui.q.focus();
}

function searchLike(id) {
  const fromResults = results.list.contains(document.activeElement);
  page.picture = null;
  step({ ...FRESH, like: [id], unlike: [], q: "" });
  if (!fromResults && !dialog.open) ui.results.focus({ preventScroll: true });
}

function searchFor(text) {
  page.picture = null;
  const { words, filters } = taken(`${text} `, page.info ?? NOTHING);
  step({ ...FRESH, q: words.trim(), like: [], unlike: [], filters: [...new Set([...page.state.filters, ...filters])] });
}

/** Add items to the list `to` of the query, and remove them from the list `from`. */
function compose(to, from, ids) {
  const { state } = page;
  const rest = state[from].filter((id) => !ids.includes(id));
  step({ ...FRESH, [to]: [...new Set([...state[to], ...ids])], [from]: rest });
}

/** Search by a picture file that was chosen, dropped or pasted. */
async function searchBy(file) {
  try {
    page.picture = await pictureOf(file, page.info?.limits.upload);
    step({ ...FRESH, q: "", like: [], unlike: [] });
  } catch (error) {
    search.failed(error, () => searchBy(file));
  }
}

/** Show the next or previous hit in the dialog. */
function move(by) {
  const { hit, left } = dialog.neighbour(by);
  if (hit) step({ open: hit.id }, "move");
  if (left <= AHEAD) search.deeper();
}

/** Close the dialog, and return to the history entry from which it was opened, if the entry belongs to this page. */
function leave() {
  if (!page.state.open) return;
  if (history.state?.above) history.back();
  else step({ open: "", word: "" }, "move");
}

/** Request the description of the index, then show the state. */
async function start() {
  search.requests.stop();
  try {
    page.info = await api.info();
  } catch (error) {
    return search.failed(error, start);
  }
  search.recovered();
  search.reset();
  facets.describe(page.info);
  controls = new Controls(ui.panel, ui.chips, page.info, (change) => step(change, "knob"));
  show();
}

ui.ask.addEventListener("submit", (event) => {
  event.preventDefault();
  typed(`${ui.q.value} `);
  endTyping();
  search.submit();
});
/** Handle `text` in the search box: words form the sentence, and complete conditions become filters. */
function typed(text) {
  const info = page.info ?? NOTHING;
  const { words, filters } = taken(text, info);
  if (filters.length) ui.q.value = words.trimStart();
  const q = withoutBegun(words, info).trimStart();
  ui.complete.replaceChildren(...completions(words, info).map((value) => h("option", { value })));
  if (q.trim()) page.picture = null;
  if (q.trim() === page.state.q.trim() && !filters.length) return;
  const all = [...new Set([...page.state.filters, ...filters])];
  step({ ...FRESH, q, filters: all, ...(q.trim() ? { like: [], unlike: [] } : {}) }, filters.length ? "step" : "typing", TYPING);
}

ui.q.addEventListener("input", () => typed(ui.q.value));
ui.q.addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown" && results.hits.length) {
    event.preventDefault();
    results.focus(results.current);
  } else if ((event.key === "Escape" || (event.key === "Backspace" && !ui.q.value)) && hasQuery()) {
    event.preventDefault();
    clear("typing");
  }
});
ui.clear.addEventListener("click", () => clear("step"));
ui.pick.addEventListener("click", () => ui.file.click());
ui.file.addEventListener("change", () => {
  if (ui.file.files[0]) searchBy(ui.file.files[0]);
  ui.file.value = "";
});
ui.find.addEventListener("change", (event) => step({ ...FRESH, find: event.target.value }));
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
  if (event.target.closest?.("input:not([type=radio]), textarea, select")) return;
  event.preventDefault();
  ui.q.focus();
  ui.q.select();
});
addEventListener("popstate", () => {
  page.state = read(location.search);
  page.picture = recall(history.state?.picture);
  show();
});
addEventListener("scrollend", () => search.depth && remember()); // an update when the page ends would be too late for a reload
addEventListener("online", () => search.requests.failures && (page.info ? search.ask() : start()));

history.scrollRestoration = "manual";
page.picture = recall(history.state?.picture);
foldPanel(ui.tune, ui.panel);
listenForFiles(ui.drop, () => dialog.open, searchBy);
if (!matchMedia("(pointer: coarse)").matches && !page.state.open) ui.q.focus();
ui.q.value = page.state.q;
start();
