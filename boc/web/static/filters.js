/** Filters as text: parsing and completing them in the search box, and displaying them. */

const WRITTEN = /(^|\s)([\p{L}_][\p{L}\p{N}_]*)(:|!=|<=|>=|=|<|>)("[^"]*"|[^\s"]+)(?=\s)/gu;
const BEGUN = /(^|\s)([\p{L}_][\p{L}\p{N}_]*)(?:(:)("[^"]*"?|\S*))?$/u;
const SIGNS = { "=": "is", "!=": "is not", "<=": "≤", ">=": "≥" };
const YEAR = "year"; // also valid if the index has only dates

/** An API filter in readable form: "year ≥ 2020". */
function spoken(filter) {
  const [, field, op, value] = /^(.*?)(!=|<=|>=|==|=|<|>)(.*)$/s.exec(filter) ?? [null, filter, "", ""];
  return [field, SIGNS[op] ?? op, value].filter(Boolean).join(" ");
}

/** The filters as chips, {text, filters}. The first and the last day of a year form a single chip. */
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

/** The filters for a condition that a user typed: a year, month or day for dates; for other fields, a value or a part of a value. */
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

/** Split typed text into {words, filters}: `filters` are the complete conditions on fields of the index, and `words` is the rest. */
export function taken(text, info) {
  const filters = [];
  const words = text.replace(WRITTEN, (whole, space, name, sign, value) => {
    if (!fieldOf(name, info)) return whole;
    filters.push(...meant(name, sign, value, info));
    return "";
  });
  return { words, filters };
}

/** `text` without an incomplete condition at its end. */
export const withoutBegun = (text, info) => text.replace(BEGUN, (whole, space, name, sign) => (sign && fieldOf(name, info) ? space : whole));

/** Advice, {text, right}, about a part of a sentence that looks like a filter but is not, with a correction; null if there is no such part. */
export function advice(q, info) {
  const [, name] = /(?<!\S)-?([\p{L}_][\p{L}\p{N}_]*):\S/u.exec(q) ?? [];
  const known = Object.keys(info.facets);
  if (name && !fieldOf(name, info))
    return { text: `“${name}:” is not a filter here; ${known.length ? `use ${known.join(", ")}` : "this library has no filters"}.` };
  const [year] = /(?<!\S)(19|20)\d\d(?!\S)/.exec(q) ?? [];
  const written = year && year !== q.trim() && fieldOf(YEAR, info) && q.replace(year, `${YEAR}:${year}`);
  return written ? { text: `“${year}” was treated as a word.`, right: written } : null;
}

/** Completions of typed text: fields, or values of the field before a colon. */
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
