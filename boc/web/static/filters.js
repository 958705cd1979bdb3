/** Filters in words: how they are written in the search box, completed, and shown. */

const WRITTEN = /(^|\s)([\p{L}_][\p{L}\p{N}_]*)(:|!=|<=|>=|=|<|>)("[^"]*"|[^\s"]+)(?=\s)/gu;
const BEGUN = /(^|\s)([\p{L}_][\p{L}\p{N}_]*)(?:(:)("[^"]*"?|\S*))?$/u;
const SIGNS = { "=": "is", "!=": "is not", "<=": "≤", ">=": "≥" };
const YEAR = "year"; // also where only a date is known

/** A filter as the API writes it, taken apart for people: "year ≥ 2020". */
function spoken(filter) {
  const [, field, op, value] = /^(.*?)(!=|<=|>=|==|=|<|>)(.*)$/s.exec(filter) ?? [null, filter, "", ""];
  return [field, SIGNS[op] ?? op, value].filter(Boolean).join(" ");
}

/** The filters as chips, {text, filters}: the first and the last day of a year are one. */
export function chips(filters) {
  return filters.flatMap((filter, i) => {
    const [, field, year] = /^(.*)>=(\d{4})-01-01$/.exec(filter) ?? [];
    if (field && filters[i + 1] === `${field}<${Number(year) + 1}-01-01`) return { text: `${field} ${year}`, filters: [filter, filters[i + 1]] };
    const [, of, after] = /^(.*)<(\d{4})-01-01$/.exec(filter) ?? [];
    if (of && filters[i - 1] === `${of}>=${Number(after) - 1}-01-01`) return [];
    return { text: spoken(filter), filters: [filter] };
  });
}

const fieldOf = (name, { fields }) => (name in fields ? name : name === YEAR && "taken" in fields ? "taken" : null);

/** The filters that one written condition stands for: of dates a year, month or day; of others a value or a part of one. */
function meant(name, sign, text, info) {
  const field = fieldOf(name, info);
  const value = text.replaceAll('"', "");
  if (sign === ":" && info.fields[field] === "date" && /^\d{4}(-\d\d){0,2}$/.test(value)) {
    const [year, month = 0, day = 0] = value.split("-").map(Number);
    const after = new Date(Date.UTC(month ? year : year + 1, day ? month - 1 : month, day + 1));
    return [`${field}>=${`${value}-01-01`.slice(0, 10)}`, `${field}<${after.toISOString().slice(0, 10)}`];
  }
  const names = info.fields[field] === "keyword" ? (info.facets[field] ?? []) : [];
  const known = names.find((each) => each.toLowerCase().includes(value.toLowerCase()));
  return [`${field}${sign === ":" ? "=" : sign}${sign === ":" && known ? known : value}`];
}

/** What is typed, as {words, filters}: conditions on fields of the index that are complete, and the rest. */
export function taken(text, info) {
  const filters = [];
  const words = text.replace(WRITTEN, (whole, space, name, sign, value) => {
    if (!fieldOf(name, info)) return whole;
    filters.push(...meant(name, sign, value, info));
    return "";
  });
  return { words, filters };
}

/** `text` without the condition that is still being typed at its end. */
export const withoutBegun = (text, info) => text.replace(BEGUN, (whole, space, name, sign) => (sign && fieldOf(name, info) ? space : whole));

/** What of a sentence looks like a filter and is none, as {text, right}, with what may be meant; else null. */
export function advice(q, info) {
  const [, name] = /(?<!\S)-?([\p{L}_][\p{L}\p{N}_]*):\S/u.exec(q) ?? [];
  const known = Object.keys(info.facets);
  if (name && !fieldOf(name, info))
    return { text: `“${name}:” is no filter here; ${known.length ? `these are: ${known.join(", ")}` : "there is none"}.` };
  const [year] = /(?<!\S)(19|20)\d\d(?!\S)/.exec(q) ?? [];
  const written = year && year !== q.trim() && fieldOf(YEAR, info) && q.replace(year, `${YEAR}:${year}`);
  return written ? { text: `“${year}” is looked for as a word.`, right: written } : null;
}

/** How what is typed may go on: with a field, or with a value of the field before a colon. */
export function completions(text, info) {
  const [whole, , name, sign, part = ""] = BEGUN.exec(text) ?? [];
  if (!whole) return [];
  const head = text.slice(0, text.length - whole.trimStart().length);
  const begins = (each) => each.toLowerCase().includes(part.replaceAll('"', "").toLowerCase());
  if (!sign)
    return Object.keys(info.facets)
      .filter((each) => each.startsWith(name))
      .map((each) => `${head}${each}:`);
  const written = (value) => `${head}${name}:${/[\s"]/.test(value) ? `"${value}"` : value} `;
  return (info.facets[fieldOf(name, info)] ?? []).filter(begins).map(written);
}
