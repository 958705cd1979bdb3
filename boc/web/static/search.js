/** The search: requests the hits for the state of the page, shows them, and fetches more hits near the end of the list. */

import * as api from "./api.js";
import { h, many } from "./dom.js";
import { advice } from "./filters.js";
import { message, nothingFound } from "./messages.js";
import { hasQuery, page, pageSize, request } from "./page.js";
import { Requests } from "./requests.js";

const PATIENCE = 400; // milliseconds before an empty page shows that a search is running
const QUIET = 400; // milliseconds without a new response before words are looked up
const MOST = 1000; // maximum number of hits, unless the server reports another limit

export class Search {
  requests = new Requests();
  depth = 0; // number of requested hits
  #shown = ""; // the request to which the hits on the page belong
  #wanted = "-"; // the last request
  #more = false; // whether there are hits beyond `depth`

  /**
   * `root` contains the `results`. `onWelcome()` draws the page without a query, `onShown()` is called after hits are shown,
   * `onToken()` requests the token, `onRemove()` removes the filters, and `onQuery(sentence)` searches for another sentence.
   */
  constructor(root, { results, meter, notices, ...actions }) {
    Object.assign(this, { root, results, meter, notices, ...actions });
  }

  /** Send a request if the state needs other hits than the last request, after `delay` milliseconds without a change. */
  update(delay = 0) {
    if (request() !== this.#wanted) this.requests.later(() => this.ask(), delay);
  }

  /** Make the next `update` send a request in any case. */
  reset() {
    this.#wanted = "-";
  }

  /** Send a request, unless the page already shows the hits. */
  submit() {
    if (this.#shown !== request()) this.ask();
  }

  /** Request the hits for the state. A `restored` history entry contains the scroll position. */
  async ask(restored = history.state) {
    this.#wanted = request();
    if (!hasQuery() && !page.info?.items.image) return this.#welcome();
    const depth = restored?.depth && restored.y && !page.state.sort ? restored.depth : pageSize();
    const patience = setTimeout(() => this.#sayWaiting(), PATIENCE);
    const answer = await this.#send(depth, [], () => this.ask(restored));
    clearTimeout(patience);
    if (!answer) return;
    if (!restored?.y && (this.results.find !== answer.find || this.#shown !== this.#wanted)) scrollTo(0, 0);
    this.#shown = this.#wanted;
    this.depth = hasQuery() ? depth : answer.hits.length;
    this.#more = answer.more && !page.state.sort; // further hits would break the sort order
    this.#show(answer);
    while (!hasQuery() && this.#more && this.depth < depth) if (!(await this.deeper())) return;
    if (restored?.y) scrollTo(0, restored.y);
    this.onShown();
    if (this.results.endIsNear) this.deeper();
  }

  /** Request twice as many hits, and append the new ones. Return whether hits were requested. */
  async deeper() {
    const there = hasQuery() ? [] : this.results.hits; // without a query, only further pictures are requested
    const most = hasQuery() ? (page.info?.limits.k ?? MOST) : Infinity;
    if (!this.#more || this.requests.busy || this.depth >= most || this.#shown !== request()) return false;
    const depth = Math.min(2 * this.depth, hasQuery() ? most : this.depth + MOST);
    const answer = await this.#send(depth, there, () => this.deeper());
    if (!answer) return false;
    this.depth = hasQuery() ? depth : there.length + answer.hits.length;
    this.#more = answer.more && depth < most;
    const unseen = answer.hits.filter((hit) => !this.results.at.has(hit.id));
    this.results.append(unseen);
    if (hasQuery()) this.meter.count(this.results.hits.length, answer.find);
    if (unseen.length) this.notices.tell(`${unseen.length} more`);
    if (this.results.endIsNear) this.deeper();
    return true;
  }

  /** Report an error. Run `again` automatically if that may help. */
  failed(error, again) {
    this.root.removeAttribute("aria-busy");
    if (!(error instanceof api.Away) && !(error instanceof api.Refused)) throw error;
    if (error.status === 401) return this.onToken();
    if (error instanceof api.Refused && error.status !== 429) return this.#refused(error.message);
    this.notices.show(error.message, this.requests.retry(again, error.wait));
  }

  /** Handle that the server responds again. */
  recovered() {
    this.root.classList.remove("stale");
    this.root.removeAttribute("aria-busy");
    if (this.requests.failures) this.notices.tell("The server is back.");
    this.requests.failures = 0;
    this.notices.hide();
  }

  /** The response with `k` hits (for a library, without the hits `there`), or null if there is a newer request or this
   * request failed. */
  async #send(k, there, again) {
    this.root.classList.toggle("stale", this.#shown !== request());
    this.root.setAttribute("aria-busy", "true");
    const { state, picture } = page;
    try {
      const answer = await this.requests.send((signal) =>
        hasQuery() ? api.search(state, picture?.file ?? null, k, signal) : api.library(state, there, Math.min(k - there.length, MOST), signal),
      );
      if (answer) this.recovered();
      return answer;
    } catch (error) {
      this.failed(error, again);
      return null;
    }
  }

  #welcome() {
    this.requests.stop();
    this.#shown = this.#wanted;
    this.#more = false;
    this.recovered();
    this.meter.show("");
    this.onWelcome();
  }

  #show(answer) {
    this.root.dataset.shows = hasQuery() ? "hits" : "library";
    const found = many(answer.hits.length, answer.find === "text" ? "sentence" : "picture");
    if (answer.hits.length) this.results.show(answer.hits, answer.find, found);
    else this.results.replace(nothingFound(page.state, this.onRemove));
    if (!hasQuery()) {
      const text = `${many(answer.pictures, "picture")}, newest first`;
      this.meter.show(text);
      return this.notices.tell(text);
    }
    this.meter.show(found);
    this.#spell(answer.notes ?? []);
    this.notices.tell(found);
  }

  /** Once typing has stopped, show the notes and the unknown words of the sentence, and suggest a correction. */
  #spell(notes) {
    clearTimeout(this.spelling);
    const { q } = page.state;
    if (page.picture || !q.trim()) return;
    const [shown, wrong] = [this.#shown, page.info && advice(q, page.info)];
    this.spelling = setTimeout(async () => {
      if (wrong) return this.meter.say(wrong.text, wrong.right, this.onQuery);
      const words = await api.unknownWords(q).catch(() => []); // only a hint, so errors are ignored
      if (shown !== request()) return;
      if (!words.length) return notes.length && this.meter.say(notes.join("; "));
      const right = words.reduce((text, { word, near }) => (near ? text.replace(new RegExp(`(?<!\\p{L})${word}(?!\\p{L})`, "giu"), near) : text), q);
      const names = words.map(({ word }) => `“${word}”`).join(", ");
      const unknown = `${names} ${words.length > 1 ? "are" : "is"} unknown to this library and its model.`;
      // If all words are unknown, the notes already say so.
      const said = notes.some((each) => each.includes("does not know any word")) ? notes : [...notes, unknown];
      this.meter.say(said.join("; "), right !== q && right, this.onQuery);
      this.notices.tell(`Unknown: ${names}`);
    }, QUIET);
  }

  #sayWaiting() {
    if (this.results.hits.length || this.root.childElementCount) return;
    this.results.replace(h("p", { class: "searching" }, "Searching …"));
  }

  #refused(text) {
    if (this.results.hits.length) return this.notices.show(text);
    this.notices.hide();
    this.meter.show("");
    this.results.replace(message("The search failed", text));
  }
}
