/** What an answer cost: milliseconds by stage, postings read, candidates re-ranked; beside it what it was before. */

import { count, h, many, milliseconds } from "./dom.js";

const STAGES = [
  ["encode", "encode_ms", "the encoder turns the query into a vector"],
  ["code", "code_ms", "the vector becomes a few whole-number terms"],
  ["postings", "postings_ms", "the posting lists of these terms are read and summed"],
  ["re-rank", "rerank_ms", "the candidates are re-ranked with the dense vectors"],
  ["content", "content_ms", "names, sizes and fields of the hits are looked up"],
  ["network", "network_ms", "everything else: the way to the server and back"],
];
const SETTLED = 1000; // milliseconds after which an answer is what the next one is compared with

export class Meter {
  constructor(root) {
    this.root = root;
    this.now = null;
    this.before = null;
    this.summary = h("p", { class: "summary" });
    this.bar = h("div", { class: "bar", "aria-hidden": "true" });
    this.was = h("div", { class: "bar was", "aria-hidden": "true" });
    this.cells = h("dl", { class: "cells" });
    root.append(this.summary, h("div", { class: "bars" }, this.bar, this.was), this.cells);
    this.clear();
  }

  /** Show an answer that took `wall` ms, and its change from the last answer to the same `asked`; `probable` of its
   * hits are probably right. */
  show(answer, wall, asked, probable) {
    const stages = { ...answer.stages };
    const known = STAGES.slice(0, -1).reduce((sum, [, key]) => sum + (stages[key] ?? 0), 0);
    stages.network_ms = Math.max(0, wall - known);
    const now = { ...answer, stages, wall, asked, probable, at: performance.now(), ids: answer.hits.map((hit) => hit.id) };
    const last = this.now;
    if (last.asked !== asked || last.find !== now.find) this.before = null;
    else if (now.at - last.at > SETTLED) this.before = last;
    this.now = now;
    this.draw();
  }

  /** Show a text in place of an answer. */
  clear(text = "") {
    this.now = { hits: [], ids: [], stages: {}, wall: 0, probable: 0 };
    this.before = null;
    this.draw();
    this.shown.textContent = text;
    this.root.classList.add("blank"); // the text keeps its room, so that the first answer moves nothing
  }

  draw() {
    const { now, before, root } = this;
    root.classList.remove("blank");
    this.shown = h("b");
    this.summary.replaceChildren(
      this.shown,
      h(
        "span",
        { class: "time" },
        `in ${milliseconds(now.wall)} ms`,
        before ? h("span", { class: "was", text: ` was ${milliseconds(before.wall)}` }) : "",
      ),
    );
    this.count(now.hits.length, now.probable);
    const longest = Math.max(now.wall, before?.wall ?? 0);
    segments(this.bar, now.stages, longest);
    segments(this.was, before?.stages ?? {}, longest);
    const cells = STAGES.map(([name, key, title], i) =>
      cell(name, now.stages[key], before?.stages[key], { format: milliseconds, unit: "ms", title, stage: i }),
    );
    cells.push(
      cell("postings read", now.postings, before?.postings, {
        title: "entries of the posting lists of the query's terms",
      }),
      cell("query terms", now.terms, before?.terms, { title: "terms of the query's code" }),
      cell("re-ranked", now.candidates, before?.candidates, { title: "candidates that were re-ranked" }),
      cell("as before", before ? kept(now.ids, before.ids) : null, null, {
        title: "hits that the setting before found too",
      }),
    );
    cells.at(-1).classList.toggle("empty", !before);
    this.cells.replaceChildren(...cells);
  }

  /** Say how many hits are on the page by now, or probably right; the figures are those of the first answer. */
  count(shown, probable) {
    const noun = this.now.find === "text" ? "sentence" : "picture";
    const certain = probable ? `${many(probable, noun)}, then less certain ones` : `${many(shown, noun)}, none certain`;
    this.shown.textContent = probable < shown ? certain : many(shown, noun);
  }
}

function kept(ids, before) {
  const there = new Set(before);
  return `${ids.filter((id) => there.has(id)).length} of ${ids.length}`;
}

function segments(bar, stages, longest) {
  bar.replaceChildren(
    ...STAGES.filter(([, key]) => stages[key]).map(([, key]) => {
      const stage = STAGES.findIndex((each) => each[1] === key);
      return h("i", { "data-stage": stage, style: { width: `${(100 * stages[key]) / longest}%` } });
    }),
  );
}

function cell(
  name,
  value,
  was,
  { format = (x) => (typeof x === "number" ? count(x) : x), unit = "", title, stage = null },
) {
  const shown = value === null || value === undefined ? "–" : format(value);
  const changed = was !== null && was !== undefined && format(was) !== shown;
  return h(
    "div",
    { class: "cell", title, "data-stage": stage },
    h("dt", {}, name),
    h(
      "dd",
      {},
      shown,
      unit && shown !== "–" ? h("small", { text: ` ${unit}` }) : "",
      changed ? h("span", { class: "was", text: ` was ${format(was)}` }) : "",
    ),
  );
}
