"""Tables for people, made of rows: which columns, in which order, with how many digits.

A view takes rows and words that choose among them, and gives a heading and lines of cells, Markdown inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rows import Rows

Row = Mapping[str, str]
DIRECTIONS = ("text to image", "image to text")
CUTOFFS = (1, 5, 10)


class ViewError(ValueError):
    """There is no such view of these rows, or no such row."""


@dataclass(frozen=True)
class Table:
    """A heading, and lines that have a cell for each of its columns."""

    head: list[str]
    lines: list[list[str]]

    def markdown(self) -> str:
        lines = [self.head, ["---"] * len(self.head), *self.lines]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(cell: str, digits: int = 1) -> str:
    """The cell with so many digits, thousands apart; what is no number, as it is."""
    try:
        return f"{float(cell):,.{digits}f}"
    except ValueError:
        return cell


def share(cell: str, digits: int = 3) -> str:
    """A share as in print: .953."""
    return f"{float(cell):.{digits}f}".replace("0.", ".", 1) if cell else ""


def joined(row: Row, columns: Sequence[str], digits: int = 1) -> str:
    return " / ".join(number(row[column], digits) for column in columns)


def everything(rows: Rows) -> Table:
    """All rows as they are."""
    return Table(list(rows.columns), [list(row.values()) for row in rows.table])


def models(rows: Rows) -> Table:
    """An encoder a line."""
    head = ["model, ranked by"]
    for told in ("sentence to picture", "picture to sentence"):
        head += [f"{told} R@1 / 5 / 10", "+- of R@10", "median rank", "NDCG@25"]
    lines = []
    for model, scored in dict.fromkeys((row["model"], row["scored by"]) for row in rows.table):
        line = [f"{model}, {scored}"]
        for direction in DIRECTIONS:
            row = cell(rows, model=model, direction=direction, **{"scored by": scored})
            line += [
                joined(row, [f"R@{k}" for k in CUTOFFS]), number(row["R@10 +-"]), number(row["median rank"], 0),
                share(row["NDCG@25 ROUGE-L"]),
            ]  # fmt: skip
        lines.append(line)
    return Table(head, lines)


def encoders(rows: Rows) -> Table:
    """R@10 both ways, an encoder a column."""
    known = dict.fromkeys((row["model"], row["scored by"]) for row in rows.table)
    cells = []
    for model, scored in known:
        of = [cell(rows, model=model, direction=d, **{"scored by": scored})["R@10"] for d in DIRECTIONS]
        cells.append(" / ".join(number(value) for value in of))
    return Table([model for model, _ in known], [cells])


def sparsity(rows: Rows, code: str = "scalar", chain: str = "plain") -> Table:
    """R@10 of a code by the terms kept, both ways."""
    rms = ["Rm=1", "Rm=2", "Rm=5", "Rm=10"]
    told = ", Rm = 1 / 2 / 5 / 10"
    chosen = [r for r in rows.table if (r["code"], r["chain"]) == (code, chain)]
    lines = []
    for z in dict.fromkeys(row["z"] for row in chosen):
        one, other = (next(r for r in chosen if r["z"] == z and r["direction"] == d) for d in DIRECTIONS)
        lines.append([number(z, 0), f"{float(one['sparsity']):.2f}", joined(one, rms), joined(other, rms)])
    return Table(["terms kept", "sparsity", "sentence to picture" + told, "picture to sentence" + told], lines)


def table1(rows: Rows, paper: str = "") -> Table:
    """Table I; with the word "paper", beside the paper's own figures, which are of other data."""
    directions = {"image": "image retrieval", "sentence": "sentence retrieval"}
    head = ["Model", *(f"{told} R@1 / 5 / 10" for told in directions.values()), "sum", "+-"]
    sets = {"coco": "COCO", "flickr30k": "Flickr30K"} if paper else {}
    head += [f"paper, {name}: {told}" for name in sets.values() for told in directions.values()]
    lines, section = [], ""
    for row in (row for row in rows.table if not row["minus"]):
        if row["section"] != section:
            section = row["section"]
            lines.append([f"**{section}**", *[""] * (len(head) - 1)])
        line = [row["model"], *(joined(row, [f"{d} R@{k}" for k in CUTOFFS]) for d in directions)]
        line += [number(row["sum"]), number(row["sum +-"])]
        for name in sets:
            line += [joined(row, [f"paper {name} {d} R@{k}" for k in CUTOFFS]).strip(" /") for d in directions]
        lines.append(line)
    return Table(head, lines)


def claims(rows: Rows) -> Table:
    """Each claim with what decides."""
    lines = []
    for row in rows.table:
        difference = f"{float(row['difference']):+.1f} +- {float(row['error']):.1f}" if row["difference"] else ""
        where = ", ".join(part for part in (row["data"], row["direction"]) if part and part != "both")
        lines.append([row["claim"], f"**{row['verdict']}**", difference, where, row["figures"], row["paper"]])
    head = ["the paper's claim", "here", "difference, points", "rows", "figures", "the paper's own, on other data"]
    return Table(head, lines)


def postings(rows: Rows, what: str = "recall", *codes: str) -> Table:
    """Recall of the exact top ten (or "right", R@10) by candidates, a setting a line."""
    depths = list(dict.fromkeys(row["R"] for row in rows.table))
    lines = []
    for code, setting in dict.fromkeys((row["code"], row["setting"]) for row in rows.table):
        if codes and code not in codes:
            continue
        found = {r["R"]: r for r in rows.table if (r["code"], r["setting"]) == (code, setting)}
        one = next(iter(found.values()))
        line = [code, setting, number(one["postings"], 0), number(one["bytes"], 0)]
        for depth in depths:
            value = found[depth][what] if depth in found else ""
            line.append(share(value) if what == "recall" else number(value))
        lines.append(line)
    told = "recall" if what == "recall" else "R@10"
    head = ["code", "terms an item / a query", "postings a query", "bytes an item"]
    return Table([*head, *(f"{told}, R = {depth}" for depth in depths)], lines)


def race(rows: Rows, at: str = "0.95") -> Table:
    """Every index at its fastest setting that reached a recall where settings were chosen."""
    head = [
        "index", "setting", "recall@10", "p50 ms (least-most round)", "p95", "p99", "queries/s, 1 / 2 threads",
        "load s: learn + encode + build", "disk MB", "memory MB, own / mapped",
    ]  # fmt: skip
    lines = []
    for row in rows.table:
        if at in row["at"].split():
            p50 = f"{number(row['p50_ms'], 2)} ({number(row['p50_least'], 2)}-{number(row['p50_most'], 2)})"
            name = f"{row['engine']} {row['index']}"
            lines.append([
                f"**{name}**" if row["ours"] == "1" else name, row["setting"], share(row["recall"]), p50,
                number(row["p95_ms"], 2), number(row["p99_ms"], 2), joined(row, ["qps_1", "qps_2"], 0),
                " + ".join(number(row[key]) for key in ("fit_s", "encode_s", "build_s")), number(row["disk_mb"], 0),
                joined(row, ["anon_mb", "file_mb"], 0),
            ])  # fmt: skip
    return Table(head, lines)


def growth(rows: Rows) -> Table:
    """A number of items a line."""
    columns = {
        "p50_ms": ("p50 ms", 2), "p95_ms": ("p95", 2), "p99_ms": ("p99", 2), "fit_s": ("learn s", 1),
        "encode_s": ("encode s", 1), "build_s": ("build s", 1), "build_peak_mb": ("builder MB", 0),
        "disk_mb": ("disk MB", 0), "anon_mb": ("memory MB", 1), "file_mb": ("mapped MB", 0),
    }  # fmt: skip
    known = {key: told for key, told in columns.items() if key in rows.columns}
    lines = [
        [number(row["n"], 0), row["setting"], share(row["recall"])]
        + [number(row[key], digits) for key, (_, digits) in known.items()]
        for row in rows.table
    ]
    return Table(["items", "setting", "recall", *(name for name, _ in known.values())], lines)


def alignment(rows: Rows, metric: str = "mrsw", stored: str = "float16") -> Table:
    """Re-ranking by an alignment beside that by the dot product."""
    head = ["Rm"]
    for told in ("sentence to picture", "picture to sentence"):
        head += [f"{told}, `dot` R@1 / 10", f"`{metric}`", "added ms"]
    lines = []
    for rm in dict.fromkeys(row["Rm"] for row in rows.table):
        line = [rm]
        for direction in DIRECTIONS:
            same = {"direction": direction, "Rm": rm, "stored as": stored}
            dot, other = (cell(rows, metric=name, **same) for name in ("dot", metric))
            line += [joined(dot, ["R@1", "R@10"]), joined(other, ["R@1", "R@10"]), number(other["ms"])]
        lines.append(line)
    return Table(head, lines)


def labels(rows: Rows) -> Table:
    """A kind of label a line."""
    head = ["labels", "terms", "with words", "share of top pictures", "chance", "terms above chance"]
    lines = [
        [
            row["labels"], row["terms"], row["with words"], f"{share(row['hits'], 2)} +- {share(row['hits +-'], 2)}",
            share(row["chance"], 2), share(row["above chance"], 2),
        ]
        for row in rows.table
    ]  # fmt: skip
    return Table(head, lines)


def ratios(rows: Rows, at: str = "", race_of: str = "") -> Table:
    """Ours over theirs at equal recall; below 1 is faster, sooner, smaller, but for queries a second."""
    head = [
        "race", "recall", "ours (recall@10)", "theirs (recall@10)", "p50 (least-most round)", "",
        "queries/s, one thread", "", "loading", "with learning", "disk", "own memory",
    ]  # fmt: skip
    lines = []
    for row in rows.table:
        if (at and row["at"] != at) or (race_of and row["race"] != race_of):
            continue
        line = [row["race"], row["at"]]
        line += [f"{row['ours']} ({share(row['recall'])})", f"{row['theirs']} ({share(row['their_recall'])})"]
        for name in ("p50", "qps_1"):
            told = f"{number(row[name], 2)} ({number(row[f'{name}_least'], 2)}-{number(row[f'{name}_most'], 2)})"
            line += [told if row[name] else "", row[f"{name}_verdict"]]
        lines.append([*line, *(number(row[key], 2) for key in ("build", "with_fit", "disk", "anon"))])
    return Table(head, lines)


View = Callable[..., Table]
VIEWS: dict[str, dict[str, View]] = {
    "models.py": {"models": models, "encoders": encoders},
    "sparsity_recall.py": {"sparsity": sparsity},
    "table1.py": {"table1": table1},
    "claims.py": {"claims": claims},
    "recall_postings.py": {"postings": postings},
    "race.py": {"at": race},
    "race_ratios.py": {"ratios": ratios},
    "embedded_growth.py": {"growth": growth},
    "alignment_rerank.py": {"alignment": alignment},
    "labels.py": {"labels": labels},
}


def table(rows: Rows, name: str, *words: str) -> Table:
    """A view of rows by its name; "all" has every column."""
    known = {"all": everything, **VIEWS.get(rows.head["script"], {})}
    if name not in known:
        raise ViewError(f"{rows.name}: no view {name!r}; known: {', '.join(known)}")
    return known[name](rows, *words)


def shown(rows: Rows) -> Iterator[tuple[str, Table]]:
    """The views that a report has, each with a title."""
    script = rows.head["script"]
    if script == "race.py":
        for at in sorted({at for row in rows.table for at in row["at"].split()}):
            yield f"At recall {at} (of the settings chosen on other queries)", race(rows, at)
    elif script == "table1.py":
        yield "Table I, beside the paper's figures on its own data", table1(rows, "paper")
    elif script == "recall_postings.py":
        yield "Recall of the exact top ten", postings(rows)
        yield "R@10 of the right item, %", postings(rows, "right")
    elif script in VIEWS and script != "sparsity_recall.py":
        yield "", next(iter(VIEWS[script].values()))(rows)
    elif script not in VIEWS:
        yield "", everything(rows)


def cell(rows: Rows, **chosen: str) -> Row:
    """The one row that has these values; numbers need not be written alike."""
    found = [row for row in rows.table if all(alike(row[key], value) for key, value in chosen.items())]
    if len(found) != 1:
        raise ViewError(f"{rows.name}: {len(found)} rows have {chosen}; name columns that leave one")
    return found[0]


def alike(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return one == other
