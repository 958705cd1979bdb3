"""Plots of rows, as SVG: ``python -m bench.report.plot ROWS.csv... -o FOLDER``.

What is drawn follows from the script that wrote the rows. Each plot can be read without its caption: its title says
what was measured on what, axes have units, lines have names.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.report.drawing import Line, bars, decades, draw, figure, svg, ticks_at
from bench.report.rows import Rows, read
from bench.report.tables import Row, loading
from bench.report.views import DIRECTIONS

TOLD = {"text to image": "sentence to picture", "image to text": "picture to sentence"}
SPARSITIES = (0, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99)
RMS = (1, 2, 5, 10, 20, 50)
RECALLS = (0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1)
COSTS = {"postings": "postings read per query (log)", "bytes": "bytes of postings per item (log)"}
NEAREST = 1.003  # recall 1 has a place on an axis that spreads what is near to it


@dataclass(frozen=True)
class Plot:
    """``name`` is that of its rows and what it shows."""

    name: str
    title: str
    figure: Figure

    @property
    def svg(self) -> str:
        return svg(self.figure, self.name)


def titled(rows: Rows, name: str, title: str, figure: Figure) -> Plot:
    """The plot ``name`` of ``rows``, with the title above its panels."""
    figure.suptitle(title, fontsize=12)
    return Plot(f"{rows.name}-{name}", title, figure)


@dataclass(frozen=True)
class Curve:
    """Which rows of ``sparsity_recall.py`` make a line, and how it looks in all plots; no chain is any."""

    name: str
    code: str
    chain: str
    style: int
    dashed: bool = False

    def rows(self, table: Sequence[Row], direction: str) -> list[Row]:
        mine = [r for r in table if (r["code"], r["direction"]) == (self.code, direction)]
        found = [r for r in mine if self.chain in ("", r["chain"])]
        return sorted(found, key=lambda row: (float(row["sparsity"]), -float(row.get("query z") or 0)))


PLAIN = (
    Curve("scalar quantisation", "scalar", "plain", 0),
    Curve("deep permutation", "permutation", "plain", 1),
    Curve("scalar, rotated (ours)", "scalar", "centred, rotated", 0, True),
    Curve("permutation, rotated (ours)", "permutation", "centred, rotated", 1, True),
)
SOFT = (
    Curve("soft sum, context", "soft sum", "with context", 2),
    Curve("soft max, context", "soft max", "with context", 3, True),
    Curve("soft sum, no context", "soft sum", "no context", 4),
    Curve("soft max, no context", "soft max", "no context", 5, True),
)
OURS = (Curve("dictionary (ours)", "dictionary", "", 6),)


def figure_3a(rows: Rows, data: str) -> Iterator[Plot]:
    """R@10 against sparsity, of global vectors."""
    yield from _by_sparsity(rows, data, "fig3a", "codes of the global vector (the paper's Fig. 3a)", PLAIN)


def figure_3b(rows: Rows, data: str) -> Iterator[Plot]:
    """R@10 against sparsity, of soft assignment."""
    yield from _by_sparsity(rows, data, "fig3b", "soft Bag of Concepts (the paper's Fig. 3b)", SOFT)


def _by_sparsity(rows: Rows, data: str, name: str, what: str, curves: Sequence[Curve]) -> Iterator[Plot]:
    made, axes = figure(2)
    for ax, direction in zip(axes, DIRECTIONS, strict=True):
        lines, dense = [], None
        for curve in curves:
            found = curve.rows(rows.table, direction)
            kept = [max(1 - float(row["sparsity"]), 1e-3) for row in found]
            if found:
                dense = float(found[0]["dense"])
                lines.append(_line(curve, kept, found, "Rm=1"))
        if not lines:
            return
        ax.set_xscale("log")
        ticks_at(ax.xaxis, [1 - s for s in SPARSITIES], lambda kept: f"{1 - kept:.2g}")
        ax.invert_xaxis()
        _named(ax, TOLD[direction], "sparsity (share of components that are zero)", "R@10, %, not re-ranked")
        draw(ax, lines, dense)
    yield titled(rows, name, f"R@10 against sparsity: {what}. {data}", made)


def _line(curve: Curve, x: Sequence[float], rows: Sequence[Row], column: str) -> Line:
    errors = [float(row[f"{column} +-"]) for row in rows] if f"{column} +-" in rows[0] else []
    return Line(curve.name, list(x), [float(row[column]) for row in rows], curve.style, curve.dashed, errors)


def figure_3c(rows: Rows, data: str) -> Iterator[Plot]:
    """R@10 against Rm where codes are sparsest."""
    made, axes = figure(2)
    for ax, direction in zip(axes, DIRECTIONS, strict=True):
        lines, dense = [], None
        for curve in (*PLAIN[:2], *SOFT[::2], *SOFT[1::2], *OURS):
            found = [row for row in curve.rows(rows.table, direction) if float(row["sparsity"]) > 0.98]
            if found:
                row = found[0]
                dense = float(row["dense"])
                errors = [float(row[f"Rm={rm} +-"]) for rm in RMS]
                values = [float(row[f"Rm={rm}"]) for rm in RMS]
                lines.append(Line(curve.name, list(RMS), values, curve.style, curve.dashed, errors))
        if not lines:
            return
        ax.set_xscale("log")
        ticks_at(ax.xaxis, RMS)
        _named(ax, TOLD[direction], "Rm (candidates re-ranked for each hit)", "R@10, %")
        draw(ax, lines, dense)
    yield titled(rows, "fig3c", f"R@10 after re-ranking, sparsity 0.99 (the paper's Fig. 3c). {data}", made)


def by_cost(rows: Rows, data: str) -> Iterator[Plot]:
    """R@10 against what costs money: postings read per query, and bytes per item."""
    for cost, unit in COSTS.items():
        made, axes = figure(2)
        for ax, direction in zip(axes, DIRECTIONS, strict=True):
            lines, dense = [], None
            for curve in (*PLAIN, *SOFT[::2], *OURS):
                found = [r for r in curve.rows(rows.table, direction) if float(r[cost] or 0) > 0]
                found = sorted(found, key=lambda r: (float(r[cost]), -float(r["Rm=10"])))
                if curve in OURS:  # of its budgets those that no cheaper one beats
                    best = list(itertools.accumulate((float(r["Rm=10"]) for r in found), max, initial=0.0))
                    found = [r for r, before in zip(found, best, strict=False) if float(r["Rm=10"]) > before]
                if found:
                    dense = float(found[0]["dense"])
                    lines.append(_line(curve, [float(row[cost]) for row in found], found, "Rm=10"))
            if not lines:
                return
            ax.set_xscale("log")
            ticks_at(ax.xaxis, decades([x for line in lines for x in line.x]))
            _named(ax, TOLD[direction], unit, "R@10, %, Rm = 10")
            draw(ax, lines, dense)
        yield titled(rows, cost, f"R@10 against {unit.partition(' (')[0]}. {data}", made)


def codebook_size(rows: Rows, data: str) -> Iterator[Plot]:
    """R@10 against the number of centroids, and of concepts that they are learned from."""
    sample = max(int(row["sample"]) for row in rows.table)
    sizes = [int(row["clusters"]) for row in rows.table if int(row["sample"]) < sample]
    usual = sizes[0] if sizes else int(rows.table[0]["clusters"])
    for key, unit, fixed in (
        ("clusters", "centroids of the codebook (log)", ("sample", sample)),
        ("concepts", "concepts that it is learned from (log)", ("clusters", usual)),
    ):
        made, axes = figure(2)
        for ax, direction in zip(axes, DIRECTIONS, strict=True):
            found = [r for r in rows.table if r["direction"] == direction and int(r[fixed[0]]) == fixed[1]]
            lines = []
            for i, kind in enumerate(dict.fromkeys(map(_assigned, found))):
                chosen = sorted((r for r in found if _assigned(r) == kind), key=lambda r: int(r[key]))
                x, y, errors = ([float(r[column]) for r in chosen] for column in (key, "R@10", "R@10 +-"))
                lines.append(Line(kind, x, y, i, error=errors))
            ax.set_xscale("log")
            ticks_at(ax.xaxis, sorted({x for line in lines for x in line.x}))
            _named(ax, TOLD[direction], unit, "R@10, %, not re-ranked")
            draw(ax, lines, float(found[0]["dense"]))
        yield titled(rows, key, f"R@10 against {unit.partition(' (')[0]}. {data}", made)


def _assigned(row: Row) -> str:
    """The assignment, and how many centroids of a concept it keeps."""
    if row["assignment"] == "hard":
        return "hard"
    return f"{row['assignment']}, {'8' if row['z'] == '8' else '1 %'} kept"


def recall_postings(rows: Rows, data: str) -> Iterator[Plot]:
    """Recall of the exact top ten against postings, and bytes."""
    depth = sorted({int(row["R"]) for row in rows.table})[-2:][0]
    made, axes = figure(2)
    for ax, (cost, unit) in zip(axes, COSTS.items(), strict=True):
        lines = []
        for i, code in enumerate(dict.fromkeys(row["code"] for row in rows.table)):
            found = [r for r in rows.table if r["code"] == code and int(r["R"]) == depth and float(r[cost]) > 0]
            found.sort(key=lambda row: float(row[cost]))
            if found:
                lines.append(Line(code, [float(r[cost]) for r in found], [float(r["recall"]) for r in found], i))
        ax.set_xscale("log")
        ticks_at(ax.xaxis, decades([x for line in lines for x in line.x]))
        _named(ax, f"{depth} candidates re-ranked", unit, "recall of the exact top ten (share)")
        draw(ax, lines)
    yield titled(rows, "cost", f"Recall against what is read and stored. {data}", made)


def race(rows: Rows, data: str) -> Iterator[Plot]:
    """Latency and throughput against recall, and what an index takes."""
    names = list(dict.fromkeys((row["engine"], row["index"]) for row in rows.table))
    ours = {(r["engine"], r["index"]): r["ours"] == "1" for r in rows.table}
    styles = {name: i for i, name in enumerate(sorted(names, key=lambda name: not ours[name]))}
    made, axes = figure(2, height=5.2)
    for ax, column, unit in (
        (axes[0], "p50_ms", "milliseconds a query, median (log)"),
        (axes[1], "qps_1", "queries per second in batches, one thread (log)"),
    ):
        lines = []
        for name in names:
            found = [r for r in rows.table if (r["engine"], r["index"]) == name and float(r[column] or 0) > 0]
            best = _pareto(found, column, least=column == "p50_ms")
            if best:
                label = " ".join(part for part in name if part)
                x, y = [float(r["recall"]) for r in best], [float(r[column]) for r in best]
                lines.append(Line(label, x, y, styles[name], dashed=not ours[name]))
        if not lines:
            continue
        ax.set_yscale("log")
        ticks_at(ax.yaxis, decades([y for line in lines for y in line.y], (1, 2, 5)))
        ys = [y for line in lines for y in line.y]
        ax.set_ylim(min(ys) / 1.3, max(ys) * 1.3)
        ax.set_xscale("function", functions=(lambda r: -np.log10(NEAREST - r), lambda t: NEAREST - 10.0**-t))
        ax.set_xlim(max(0.7, min(x for line in lines for x in line.x) - 0.01), 1.0002)
        ticks_at(ax.xaxis, RECALLS, str)
        better = "down and right is better" if column == "p50_ms" else "up and right is better"
        _named(ax, better, "recall of the exact top ten (share)", unit)
        draw(ax, lines)
    yield titled(rows, "pareto", f"Speed at equal recall; solid: ours, dashed: others. {data}", made)
    yield from _race_bars(rows, data)


def _pareto(found: Sequence[Row], column: str, least: bool) -> list[Row]:
    """Those that no other beats in recall and in the column."""
    sign = 1 if least else -1
    kept: list[Row] = []
    for row in sorted(found, key=lambda r: (-float(r["recall"]), sign * float(r[column]))):
        if not kept or sign * float(row[column]) < sign * float(kept[-1][column]):
            kept.append(row)
    return [row for row in kept[::-1] if float(row["recall"]) >= 0.7]


def _race_bars(rows: Rows, data: str) -> Iterator[Plot]:
    one = {(row["engine"], row["index"]): row for row in rows.table}
    for row in rows.table:  # memory is measured for some settings only
        if row["anon_mb"]:
            one[row["engine"], row["index"]] = row
    order = sorted(one.values(), key=lambda row: (row["ours"] != "1", row["engine"], row["index"]))
    names = [f"{row['engine']} {row['index']}".strip() for row in order]
    marks = [row["ours"] == "1" for row in order]
    load = [float(row["fit_s"] or 0) + loading(row) for row in order]
    made, axes = figure(3, height=0.7 + 0.3 * len(order) + 0.8)
    columns = (
        ("learning the code, and loading", load, "seconds"),
        ("on the disk", [float(row["disk_mb"] or 0) for row in order], "MB"),
        ("memory of its own, after 100 queries", [float(row["anon_mb"] or 0) for row in order], "MB"),
    )
    for ax, (title, values, unit) in zip(axes, columns, strict=True):
        bars(ax, names, values, marks, unit)
        ax.set_title(title, loc="left", fontweight="bold")
        if ax is not axes[0]:
            ax.set_yticklabels([])
    yield titled(rows, "bars", f"What an index takes; less is better; blue: ours. {data}", made)


def growth(rows: Rows, data: str) -> Iterator[Plot]:
    """Time, bytes and memory against the number of items, with exponents; nothing of one number."""
    if len({row["n"] for row in rows.table}) < 2:
        return
    latency = {"p50_ms": "median", "p95_ms": "95th percentile", "p99_ms": "99th percentile"}
    seconds = {"fit_s": "learn the code", "load_s": "load the items", "cpu_s": "processor, both"}
    panels = (
        ("a query", "milliseconds (log)", latency),
        ("loading", "seconds (log)", seconds),
        ("bytes and memory", "MB (log)", {"disk_mb": "disk", "build_peak_mb": "builder", "file_mb": "mapped"}),
    )
    table = [{**row, "load_s": str(loading(row))} for row in rows.table]
    n = [float(row["n"]) for row in table]
    made, axes = figure(3, width=14)
    for ax, (what, unit, columns) in zip(axes, panels, strict=True):
        lines: list[Line] = []
        for column, name in columns.items():
            if column in table[0]:
                points = [(x, float(row[column])) for x, row in zip(n, table, strict=True)]
                x, y = ([point[i] for point in points if point[1] > 0] for i in (0, 1))  # 0.00: too little to tell
                if y:
                    label = f"{name}: n^{exponent(x, y):.2f}" if len(y) > 1 else name
                    lines.append(Line(label, x, y, len(lines)))
        ax.set_xscale("log")
        ax.set_yscale("log")
        ticks_at(ax.xaxis, n)
        every = [y for line in lines for y in line.y] or [1.0]
        ticks_at(ax.yaxis, [t for t in decades(every, (1, 2, 5)) if min(every) / 2 < t < max(every) * 2])
        _named(ax, what, "items (log)", unit)
        draw(ax, lines)
    yield titled(rows, "growth", f"Growth of the embedded engine. {data}", made)


def beyond(rows: Rows, data: str) -> Iterator[Plot]:
    """A server's indexes against the memory that is left for their files."""
    panels = (
        ("first pass, nothing in memory", "cold", "p95_ms", "95th percentile, milliseconds (log)"),
        ("after as many other queries", "warm", "p95_ms", "95th percentile, milliseconds (log)"),
        ("the same", "warm", "read_kb", "kB read per query (log)"),
    )
    names = list(dict.fromkeys(row["index"] for row in rows.table))
    made, axes = figure(3, width=15)
    for ax, (what, state, column, unit) in zip(axes, panels, strict=True):
        lines: list[Line] = []
        for style, name in enumerate(names):
            found = [row for row in rows.table if (row["index"], row["state"]) == (name, state)]
            pairs = [
                (1.0 if row["memory"] == "all" else float(row["memory"]), float(row[column] or 0)) for row in found
            ]
            x, y = ([pair[i] for pair in sorted(pairs, reverse=True) if pair[1] > 0] for i in (0, 1))
            if y:
                lines.append(Line(name, x, y, style, dashed=":" not in name))
        if not lines:
            return
        every, shares = [y for line in lines for y in line.y], sorted({x for line in lines for x in line.x})
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.invert_xaxis()
        ticks_at(ax.xaxis, shares, lambda share: "all" if share == 1 else f"{share:g}")
        ticks_at(ax.yaxis, [t for t in decades(every, (1, 2, 5)) if min(every) / 2 < t < max(every) * 2])
        _named(ax, what, "memory for files, of the bytes of the vectors", unit)
        draw(ax, lines)
    title = f"A server with less memory than its vectors; solid: ours, dashed: the server's own. {data}"
    made.suptitle(title, fontsize=12)
    yield Plot(f"{rows.name}-memory", title, made)


def training(rows: Rows, data: str) -> Iterator[Plot]:
    """Recall and NDCG on the pictures held out, after each epoch (TERAN, Fig. 3 and 6); a dashed line ranks captions
    for a picture."""
    made, axes = figure(2)
    names = list(dict.fromkeys(row["model"] for row in rows.table))
    for ax, (what, unit) in zip(axes, (("R@10", "R@10, %"), ("NDCG", "NDCG@25")), strict=True):
        lines: list[Line] = []
        for style, (name, side) in enumerate(itertools.product(names, TOLD.values())):
            found = [row for row in rows.table if row["model"] == name and row[f"{side} {what}"]]
            if found:
                x, y = ([float(row[column]) for row in found] for column in ("step", f"{side} {what}"))
                lines.append(Line(f"{name}, {side}", x, y, style // 2, style % 2 == 1))
        _named(ax, f"{what} on pictures held out", "steps", unit)
        draw(ax, lines)
    yield titled(rows, "training", f"Validation while training. {data}", made)


def all_codes(rows: Rows, data: str) -> Iterator[Plot]:
    """What each code finds against the postings that it reads."""
    made, axes = figure(2, width=16, height=9)
    panels = (("R@10 code", "by the code alone", "R@10, %"), ("NDCG@25", "10 candidates re-ranked per hit", "NDCG@25"))
    for ax, (column, how, unit) in zip(axes, panels, strict=True):
        points = [
            Line(_brief(row["code"]), [float(row["postings"])], [float(row[column])], style)
            for style, row in enumerate(rows.table)
        ]
        ax.set_xscale("log")
        every = [line.x[0] for line in points]
        ticks_at(ax.xaxis, [t for t in decades(every, (1,)) if min(every) / 10 < t < max(every) * 10])
        _named(ax, how, "postings read per query (log)", unit)
        draw(ax, points)
    yield titled(rows, "codes", f"Codes by what they read. {data}", made)


def _brief(code: str) -> str:
    """A code in few letters: soft(codebook=many, z=8, query_z=64, similarity=excess) is "soft many 8/64"."""
    name = re.sub(r"z=(\d+), query_z=(\d+)", r"\1/\2", code)
    return re.sub(r"[(), ]+", " ", re.sub(r"similarity=excess|\w+=|:64/128", "", name)).strip()


def exponent(n: Sequence[float], y: Sequence[float]) -> float:
    """Of the power law through the points, by least squares of logarithms."""
    return float(np.polyfit(np.log(n), np.log(y), 1)[0])


def _named(ax: Axes, title: str, x: str, y: str) -> None:
    ax.set_title(title, loc="left", fontweight="bold")
    ax.set_xlabel(x)
    ax.set_ylabel(y)


PLOTS: dict[str, tuple[Callable[[Rows, str], Iterator[Plot]], ...]] = {
    "sparsity_recall.py": (figure_3a, figure_3b, figure_3c, by_cost),
    "codebook_size.py": (codebook_size,),
    "recall_postings.py": (recall_postings,),
    "race.py": (race,),
    "embedded_growth.py": (growth,),
    "server_memory.py": (beyond,),
    "training_curve.py": (training,),
    "all_codes.py": (all_codes,),
}


def plots(rows: Rows, data: str = "") -> Iterator[Plot]:
    """All plots of a file of rows; ``data`` says in their titles what was measured on."""
    for make in PLOTS.get(rows.head["script"], ()):
        if rows.table:
            yield from make(rows, data or rows.name)


@click.command()
@click.argument("files", metavar="ROWS...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder.")
def main(files: tuple[Path, ...], output: Path) -> None:
    """Draw ROWS."""
    output.mkdir(parents=True, exist_ok=True)
    for file in files:
        for plot in plots(read(file)):
            path = output / f"{plot.name}.svg"
            path.write_text(plot.svg, encoding="utf-8")
            click.echo(path)


if __name__ == "__main__":
    main()
