"""Format rows as tables, with the columns, headings and digits of each table.

A view is a function of rows, and of words that select some of the rows. It returns a `Table` in
Markdown. Most views map headings to templates, whose fields are columns: ``{p50_ms:,.2f}`` formats
a number as Python does, and ``{recall:.3s}`` formats a fraction without the leading zero (.953).
Cells that are not numbers are copied unchanged. Empty columns are omitted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from string import Formatter
from typing import Any

from bench.report.rows import Row, Rows

DIRECTIONS = {"text to image": "sentence to picture", "image to text": "picture to sentence"}
CUTOFFS = (1, 5, 10)
Template = str | Callable[[Row], str]


class ViewError(ValueError):
    """The view does not exist for these rows, or a row is missing."""


@dataclass(frozen=True)
class Table:
    """Table with a heading row, and lines with one cell per column."""

    head: list[str]
    lines: list[list[str]]

    def markdown(self) -> str:
        lines = [self.head, ["---"] * len(self.head), *self.lines]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("+-", "±")

    def folded(self) -> str:
        """Return the table for a page, split into parts of at most eight columns that all begin
        with the first column. All parts except the first are collapsed."""
        parts = []
        for start in range(1, len(self.head), 7):
            columns = [0, *range(start, min(start + 7, len(self.head)))]
            head, *lines = ([line[i] for i in columns] for line in (self.head, *self.lines))
            parts.append(Table(head, lines).markdown())
        if len(parts) > 1:
            parts = [parts[0], "<details><summary>More columns</summary>", *parts[1:], "</details>"]
        return "\n\n".join(parts)


class CellFormatter(Formatter):
    """Format the cells of a row by column. A number is formatted as a number; a missing column
    becomes an empty cell."""

    def get_value(self, key: int | str, args: object, kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key), "")

    def format_field(self, value: Any, format_spec: str) -> str:
        try:
            number = float(value)
        except ValueError:
            return str(value)
        if format_spec.endswith("s"):
            return share(number, f"{format_spec[:-1]}f")
        return format(number, format_spec) if format_spec else str(value)


def share(value: float, form: str) -> str:
    """Format a fraction without the zero before the decimal point."""
    return re.sub(r"^(-?)0\.", r"\1.", format(value, form))


def fill(template: Template, row: Row) -> str:
    """Fill in a template for one row. If all cells of the template are empty, return an empty
    text."""
    if callable(template):
        return template(row)
    form = CellFormatter()
    text = form.vformat(template, (), row)
    return "" if text == form.vformat(template, (), {}) else text


def rows_table(table: Iterable[Row], columns: Mapping[str, Template]) -> Table:
    """Return one line per row. ``columns`` maps headings to templates."""
    lines = [[fill(template, row) for template in columns.values()] for row in table]
    shown = [i for i in range(len(columns)) if any(line[i] for line in lines)]
    head = list(columns)
    return Table(
        [head[i] for i in shown],
        [[line[i] for i in shown] for line in lines],
    )


def only(rows: Rows, **cells: str) -> Row:
    """Return the only row with these values. Raises ViewError unless exactly one row matches."""
    matching = [
        row for row in rows.table if all(row.get(key) == value for key, value in cells.items())
    ]
    if len(matching) != 1:
        raise ViewError(
            f"{rows.name}: {len(matching)} rows have {cells}; name columns that select one row",
        )
    return matching[0]


def unique(table: Iterable[Row], *columns: str) -> list[tuple[str, ...]]:
    """Return the distinct cells of these columns, in row order."""
    return list(dict.fromkeys(tuple(row[column] for column in columns) for row in table))


def everything(rows: Rows) -> Table:
    """Show all rows unchanged."""
    return Table(list(rows.columns), [list(row.values()) for row in rows.table])


def models(rows: Rows) -> Table:
    """Show one line per encoder and metric, with both directions side by side."""
    head = ["model, ranked by"]
    lines = []
    for side in DIRECTIONS.values():
        head += [f"{side} R@1 / 5 / 10", "+- of R@10", "median rank", "NDCG@25"]
    forms = (
        "{R@1:.1f} / {R@5:.1f} / {R@10:.1f}",
        "{R@10 +-:.1f}",
        "{median rank:.0f}",
        "{NDCG@25 ROUGE-L:.3s}",
    )
    for model, metric in unique(rows.table, "model", "scored by"):
        sides = [
            only(rows, model=model, direction=side, **{"scored by": metric}) for side in DIRECTIONS
        ]
        lines.append(
            [f"{model}, {metric}", *(fill(form, side) for side in sides for form in forms)],
        )
    return Table(head, lines)


def index(rows: Rows) -> Table:
    """Show the R@10 of the vectors, and of the default code with and without re-ranking."""
    sides = [only(rows, code="scalar", chain="default", direction=side) for side in DIRECTIONS]
    code = fill("the index, {z} terms per item and {query z} per query", sides[0])
    measures = {"dense vectors": "{dense:.1f}", f"{code}, not re-ranked": "{Rm=1:.1f}"}
    measures["the same, 10 candidates re-ranked per hit"] = "{Rm=10:.1f}"
    lines = [[name, *(fill(form, side) for side in sides)] for name, form in measures.items()]
    return Table(["R@10, %", *DIRECTIONS.values()], lines)


def table1(rows: Rows) -> Table:
    """Show Table I of the Bag of Concepts paper, with sections as bold lines."""
    columns: dict[str, Template] = {"Model": "{model}"}
    for side in ("image", "sentence"):
        recalls = " / ".join(f"{{{side} R@{k}:.1f}}" for k in CUTOFFS)
        columns[f"{side} retrieval R@1 / 5 / 10"] = recalls
    columns |= {"sum": "{sum:.1f}", "+-": "{sum +-:.1f}", "seeds +-": "{seeds +-:.1f}"}
    lines = []
    section = ""
    for row in (row for row in rows.table if not row["minus"]):
        if row["section"] != section:
            section = row["section"]
            lines.append([f"**{section}**", *[""] * (len(columns) - 1)])
        lines.append([fill(template, row) for template in columns.values()])
    return Table(list(columns), lines)


def verdicts(rows: Rows) -> Table:
    """Show one line per claim of the paper, with the verdicts and the differences behind them."""
    lines = []
    for (claim,) in unique(rows.table, "claim"):
        mine = [row for row in rows.table if row["claim"] == claim]
        counts = Counter(row["verdict"] for row in mine)
        summary = ", ".join(
            f"**{v}**" + (f" {n} of {len(mine)}" if n < len(mine) else "")
            for v, n in counts.items()
        )
        differences = filter(None, (fill("{difference:+.1f} +- {error:.1f}", row) for row in mine))
        lines.append([claim, summary, "; ".join(differences), mine[0].get("reading", "")])
    return Table(
        [
            "the paper's claim",
            "here",
            "difference, points +- standard error",
            "as the codes are read",
        ],
        lines,
    )


def postings(rows: Rows, what: str = "recall", *patterns: str) -> Table:
    """Show the recall of the exact top ten (or "right", R@10) by number of candidates. ``patterns``
    select codes and settings."""
    name, form = ("recall", "{recall:.3s}") if what == "recall" else ("R@10", "{right:.1f}")
    depths = [depth for (depth,) in unique(rows.table, "R")]
    lines = []
    for code, setting in unique(rows.table, "code", "setting"):
        if not patterns or any(fnmatch(f"{code} {setting}", pattern) for pattern in patterns):
            mine = {r["R"]: r for r in rows.table if (r["code"], r["setting"]) == (code, setting)}
            costs = [
                fill(cost, next(iter(mine.values())))
                for cost in ("{postings:,.0f}", "{bytes:,.0f}")
            ]
            lines.append(
                [code, setting, *costs, *(fill(form, mine.get(depth, {})) for depth in depths)],
            )
    head = ["code", "terms per item / per query", "postings per query", "bytes per item"]
    return Table([*head, *(f"{name}, R = {depth}" for depth in depths)], lines)


def race(rows: Rows, at: str = "0.95") -> Table:
    """Show every index with its fastest setting that reached a recall on the validation queries.
    Codes of boc are in bold."""

    def loading(row: Row) -> str:
        seconds = float(row["encode_s"] or 0) + float(row["build_s"] or 0)
        return fill("{fit_s:,.0f}", row) + f" + {seconds:,.0f}"

    def sizes(row: Row) -> str:
        parts = ("index_mb", "vectors_mb", "codec_mb", "rest_mb")
        megabytes = [float(row[part] or 0) for part in parts]
        return f"{sum(megabytes):,.0f}: {' + '.join(f'{size:,.0f}' for size in megabytes)}"

    marks = {"1": "**", "0": ""}
    return rows_table(
        [{**row, "mark": marks[row["ours"]]} for row in rows.table if at in row["at"].split()],
        {
            "index": "{mark}{engine} {index}{mark}",
            "setting": "{setting}",
            "vectors read": "{vectors_read:,.0f}",
            "recall@10": "{recall:.3s}",
            "p50 ms (least-most round)": "{p50_ms:,.2f} ({p50_least:,.2f}-{p50_most:,.2f})",
            "of it the server, ms": "{took_ms:,.2f}",
            "p95": "{p95_ms:,.2f}",
            "p99": "{p99_ms:,.2f}",
            "queries/s, 1 / 2 threads": "{qps_1:,.0f} / {qps_2:,.0f}",
            "learning + loading, s": loading,
            "disk MB: index + vectors + code + rest": sizes,
            "memory MB, own / mapped": lambda row: " / ".join(
                fill(f"{{{key}:,.0f}}", row) or "-" for key in ("anon_mb", "file_mb")
            ),
        },
    )


def ratios(rows: Rows, at: str, race_of: str, ours: str) -> Table:
    """Show boc beside each other index at equal recall."""
    key = (at, race_of, ours)
    chosen = [row for row in rows.table if (row["at"], row["race"], row["ours"]) == key]
    return rows_table(
        chosen,
        {
            "ours (recall@10)": "{ours} ({recall:.3s})",
            "theirs (recall@10)": "{theirs} ({their_recall:.3s})",
            "one query": partial(ratio, "p50", "faster", "slower"),
            "batches, one thread": partial(ratio, "qps_1", "fewer per second", "more per second"),
            "loading": partial(ratio, "build", "sooner", "later"),
            "with learning": partial(ratio, "with_fit", "sooner", "later"),
            "disk": partial(ratio, "disk", "smaller", "larger"),
            "own memory": partial(ratio, "anon", "less", "more"),
        },
    )


def ratio(column: str, below: str, above: str, row: Row) -> str:
    """Format a ratio as a factor, such as "2.0 x faster", with the minimum and maximum over the
    rounds. ``below`` and ``above`` are the words for ratios below and above one."""
    if not row[column]:
        return ""
    value = float(row[column])
    if value == 0:
        return f"none, {below}"
    word = above
    power = 1
    if value <= 1:
        word = below
        power = -1
    times = value**power
    text = "even"
    if times >= 100:
        text = f"{times:.0f} x {word}"
    elif times >= 1.05:
        text = f"{times:.1f} x {word}"
    if row.get(f"{column}_least"):
        least, most = sorted(float(row[column + end]) ** power for end in ("_least", "_most"))
        text += f" ({least:.1f}-{most:.1f})"
    return text


def growth(rows: Rows) -> Table:
    """Show one line per number of items, or on a server per number of items, shards and index."""
    return rows_table(
        rows.table,
        {
            "items": "{n:,.0f}",
            "shards": "{shards}",
            "index": "{index}",
            "recall": "{recall:.3s}",
            "server, processor ms": "{server_ms:.2f}",
            "client": "{client_ms:.2f}",
            "p50 ms": "{p50_ms:,.2f}",
            "p95": "{p95_ms:,.2f}",
            "p99": "{p99_ms:,.2f}",
            "`boc index`, s": "{index_s:,.1f}",
            "processor s": "{cpu_s:,.1f}",
            "processor s of the server": "{server_s:,.1f}",
            "builder MB": "{build_peak_mb:,.0f}",
            "disk MB": "{disk_mb:,.0f}",
            "memory MB": "{anon_mb:,.1f}",
            "mapped MB": "{file_mb:,.0f}",
        },
    )


def crowd(rows: Rows, what: str) -> Table:
    """Show searches by many clients (``clients``), or one client's searches under ``filters``."""
    return rows_table(
        [row for row in rows.table if bool(row["qps"]) == (what == "clients")],
        {
            "case": "{case}",
            "index": "{index}",
            "clients": "{clients}",
            "recall": "{recall:.3s}",
            "queries/s": "{qps:,.0f}",
            "p50 ms": "{p50_ms:,.2f}",
            "server, processor ms": "{server_s:.2f}",
            "client": "{client_s:.2f}",
        },
    )


def rivals(rows: Rows, kind: str) -> Table:
    """Show one line per code and one column per limit of a kind, with the median, minimum and
    maximum over all seeds."""
    values: dict[str, dict[str, list[float]]] = {}
    for row in rows.table:
        if row["kind"] == kind:
            cells = values.setdefault(row["code"], {})
            cells.setdefault(row["limit"], []).append(float(row["near"]))
    limits = sorted({limit for cells in values.values() for limit in cells}, key=float)

    def cell(near: Sequence[float]) -> str:
        if not near:
            return ""
        near = sorted(near)
        middle = near[len(near) // 2]
        low, median, high = (share(value, ".3f") for value in (near[0], middle, near[-1]))
        return median if low == high else f"{median} ({low}-{high})"

    lines = [
        [code, *(cell(cells.get(limit, ())) for limit in limits)] for code, cells in values.items()
    ]
    return Table(["code", *(f"{kind} <= {limit}" for limit in limits)], lines)


def truth(rows: Rows) -> Table:
    """Show one family of sentences and one metric per line, with the expected value for a random
    order in parentheses."""
    table = [row for row in rows.table if row["measure"] != "pointing"]
    names = [name for (name,) in unique(table, "measure")]
    lines = []
    for by, family in unique(table, "by", "family"):
        mine = {row["measure"]: row for row in table if (row["family"], row["by"]) == (family, by)}
        shares = [fill("{share:.3s} ({chance:.3s})", mine.get(name, {})) for name in names]
        lines.append([f"{family}, {by}", next(iter(mine.values()))["count"], *shares])
    return Table(["family, ranked by", "sentences", *names], lines)


def pointing(rows: Rows) -> Table:
    """Show the pointing game by the number of things in a picture."""
    return rows_table(
        [row for row in rows.table if row["measure"] == "pointing"],
        {
            "pictures with": "{family}",
            "region by": "{by}",
            "things": "{count}",
            "on the thing": "{share:.3s} ({chance:.3s})",
        },
    )


def ablations(rows: Rows, number: str) -> Table:
    """Show the lines of Table 5 or 6 of VSRN++, with the paper's value in parentheses after the
    measured value."""
    lines: dict[str, dict[str, str]] = {}
    for row in rows.table:
        if row["table"] == number:
            lines.setdefault(row["line"], {})[row["measure"]] = fill(
                "{found:.1f} ({printed})",
                row,
            )
    measures = list(next(iter(lines.values()), {}))
    return Table(
        ["line", *measures],
        [[line, *(cells[m] for m in measures)] for line, cells in lines.items()],
    )


def filtered(rows: Rows) -> Table:
    """Show a line per filter and index."""
    return rows_table(
        rows.table,
        {
            "filter": "{filter}",
            "passes, %": lambda row: f"{100 * float(row['passed']):.3g}",
            "index": "{index}",
            "setting": "{setting}",
            "recall@10": "{recall:.3s}",
            "short answers": "{few:.2s}",
            "p50 ms (least-most round)": "{p50_ms:,.3f} ({p50_least:,.3f}-{p50_most:,.3f})",
        },
    )


View = Callable[..., Table]
VIEWS: dict[str, View] = {
    "all": everything,
    "models": models,
    "index": index,
    "table1": table1,
    "verdicts": verdicts,
    "postings": postings,
    "at": race,
    "ratios": ratios,
    "growth": growth,
    "crowd": crowd,
    "truth": truth,
    "pointing": pointing,
    "ablations": ablations,
    "rivals": rivals,
    "filtered": filtered,
}


def table(rows: Rows, name: str, words: Sequence[str] = ()) -> Table:
    """Return a view of rows by its name. Raises ViewError for an unknown view, or if the rows lack
    a column."""
    if name not in VIEWS:
        raise ViewError(f"{rows.name}: no view {name!r}; known: {', '.join(sorted(VIEWS))}")
    try:
        return VIEWS[name](rows, *words)
    except (KeyError, TypeError) as error:
        raise ViewError(
            f"{rows.name}: these rows have no view {name!r} with {list(words)} ({error})",
        ) from error
