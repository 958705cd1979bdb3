"""Figures of rows as SVG and PDF, by matplotlib. Each can be read without its caption: titles,
units, names of lines.

A figure is panels side by side, a panel is named lines, eight at most; what else there is is grey.
Colours are those of Okabe and Ito; each has a marker. Several runs of the same rows make one
figure, with their medians, and bands from the least to the most.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from bench.report.rows import Row, Rows
from bench.report.views import DIRECTIONS

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A6A00")
MARKERS = "os^DvPX*"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "lines.markersize": 4.5,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "pdf.fonttype": 42,
}
SPARSITIES = (0, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99)
RMS = (1, 2, 5, 10, 20, 50)
LABELLED = 8  # lines that have a name in a panel; with the dense vectors, one more
GREY = "#aaaaaa"
EQUAL = 0.95  # recall at which engines are put in order
RECALLS = (0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1)
RECALL_TICKS = (0, 20, 40, 50, 60, 65, 68, 70, 71, 80, 90, 95, 98, 99, 99.5)
NEAREST = 1.003  # recall 1 has a place on an axis that spreads what is near to it
PARETO_LEAST = 0.7  # recall that is drawn at least
MEASURED_ON = {
    "sparsity-tern": "TERN, Flickr8k dev",
    "codebook-size": "TERN, Flickr8k dev",
    "all-codes": "TERN, Flickr8k dev",
    "race-embedded": "100,000 captions of Multi30k, MiniLM",
    "race-elasticsearch": "100,000 captions of Multi30k, MiniLM",
    "race-composed": "200,000 composed pictures, sentences",
    "growth": "synthetic vectors of 256 components",
    "server-memory": "1,000,000 synthetic vectors of 384 components",
    "rivals": "500 painted scenes",
    "training-curves": "3,000 pictures of Flickr8k, 500 of them held out",
}


@dataclass
class Line:
    """A named line; ``style`` is its place among the colours and markers.

    ``error`` are half lengths of bars, ``low`` and ``high`` the band of several runs. A ``grey``
    one is in the background: "points", a "line", or "steps".
    """

    name: str
    x: list[float]
    y: list[float]
    style: int
    dashed: bool = False
    error: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    grey: str = ""


@dataclass
class Panel:
    """Lines under a title, with names and units of the axes; ``scale`` is for axes that are not
    linear, ``level`` a dotted line to compare with."""

    title: str
    x: str
    y: str
    lines: list[Line]
    scale: Callable[[Axes], object] = lambda ax: None
    level: float | None = None


@dataclass
class Plot:
    """Panels under a title; ``numbered`` marks each point by the number of its line."""

    title: str
    panels: list[Panel]
    numbered: bool = False
    size: tuple[float, float] = (12.5, 4.3)


def log_x(
    ticks: Sequence[float],
    text: Callable[[float], str] | None = None,
) -> Callable[[Axes], None]:
    """Return a logarithmic horizontal axis with these ticks."""

    def scale(ax: Axes) -> None:
        ax.set_xscale("log")
        marks(ax.xaxis, ticks, text)

    return scale


def log_both(ticks: Sequence[float]) -> Callable[[Axes], None]:
    """Return two logarithmic axes, the horizontal one with these ticks."""

    def scale(ax: Axes) -> None:
        log_x(ticks)(ax)
        log_y(ax)

    return scale


def log_y(ax: Axes) -> None:
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def marks(axis: Any, ticks: Sequence[float], text: Callable[[float], str] | None = None) -> None:
    """Set these ticks only."""
    axis.set_major_locator(FixedLocator(sorted(set(ticks))))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: (text or short)(value)))


def short(value: float) -> str:
    """Write 10,000 as 10k, 3,000,000 as 3M, less as it is."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size and value >= 10_000:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def draw(plot: Plot, titled: bool = True) -> Figure:
    """Draw a plot. One legend stands for all panels if they have the same lines."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=plot.size, layout="constrained")
        if titled:
            figure.suptitle(plot.title, fontsize=12, x=0.01, ha="left")
        axes: list[Axes] = list(np.ravel(figure.subplots(1, len(plot.panels))))
        for ax, panel in zip(axes, plot.panels, strict=True):
            panel.scale(ax)
            for number, line in enumerate(panel.lines, 1):
                draw_line(ax, line, number if plot.numbered else 0)
            if panel.level is not None:
                ax.axhline(
                    panel.level,
                    color="#666666",
                    linestyle=":",
                    linewidth=1.4,
                    label="dense vectors",
                )
            ax.set_title(panel.title, loc="left", fontweight="bold")
            ax.set_xlabel(panel.x)
            ax.set_ylabel(panel.y)
        names = [ax.get_legend_handles_labels()[1] for ax in axes]
        if len(names) > 1 and all(each == names[0] for each in names):
            figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
        else:
            for ax in axes:
                ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
        return figure


GREYS: dict[str, dict[str, Any]] = {
    "points": {"marker": ".", "linestyle": ""},
    "line": {"marker": ".", "linewidth": 0.9},
    "steps": {"drawstyle": "steps-post", "linewidth": 1.2},
}


def draw_line(ax: Axes, line: Line, number: int) -> None:
    """Draw one line, with its number beside its first point unless that is 0."""
    if line.grey:
        ax.plot(line.x, line.y, color=GREY, label=line.name, zorder=1, **GREYS[line.grey])
        return
    colour = COLOURS[line.style % len(COLOURS)]
    mark = MARKERS[
        (line.style + line.style // len(COLOURS)) % len(MARKERS)
    ]  # another where colours repeat
    bars: Any = line.error or None
    if line.low and len(line.x) > 1:
        ax.fill_between(line.x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)
    elif line.low:
        bars = [[line.y[0] - line.low[0]], [line.high[0] - line.y[0]]]
    label = f"{number}  {line.name}" if number else line.name
    style: dict[str, Any] = {
        "color": colour,
        "marker": mark,
        "linestyle": "--" if line.dashed else "-",
    }
    ax.errorbar(line.x, line.y, bars, label=label, elinewidth=0.8, **style)
    if number:
        ax.annotate(
            str(number),
            (line.x[0], line.y[0]),
            (5, 3),
            textcoords="offset points",
            fontsize=8,
        )


def pdf(plot: Plot) -> bytes:
    """Return the figure as a page of a PDF, without a title, which is the caption's in a paper."""
    file = io.BytesIO()
    figure = draw(plot, titled=False)
    with mpl.rc_context(STYLE):
        figure.savefig(
            file,
            format="pdf",
            metadata={"CreationDate": None, "Creator": None, "Producer": None},
        )
    return file.getvalue()


def svg(plot: Plot, name: str) -> str:
    """Return the figure as an SVG element that may stand in a page beside others."""
    file = io.StringIO()
    figure = draw(plot)
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    return re.sub(r'<g id="[^"]*"', "<g", text)


def numbers(rows: Sequence[Row], column: str) -> list[float]:
    return [float(row[column]) for row in rows]


CURVES = {  # line: code, chain ("" for any), style, dashed
    "scalar quantisation": ("scalar", "plain", 0, False),
    "deep permutation": ("permutation", "plain", 1, False),
    "scalar, rotated (ours)": ("scalar", "centred, rotated", 0, True),
    "permutation, rotated (ours)": ("permutation", "centred, rotated", 1, True),
    "soft sum, context": ("soft sum", "with context", 2, False),
    "soft max, context": ("soft max", "with context", 3, True),
    "soft sum, no context": ("soft sum", "no context", 4, False),
    "soft max, no context": ("soft max", "no context", 5, True),
    "dictionary (ours)": ("dictionary", "", 6, False),
}


def curve(rows: Rows, name: str, direction: str) -> list[Row]:
    """Return the rows of ``sparsity_recall.py`` that make a line, the least sparse first."""
    code, chain, *_ = CURVES[name]
    mine = [
        r
        for r in rows.table
        if (r["code"], r["direction"]) == (code, direction) and chain in ("", r["chain"])
    ]
    return sorted(mine, key=lambda row: (float(row["sparsity"]), -float(row.get("query z") or 0)))


def by_sparsity(rows: Rows, what: str, names: Sequence[str], least: float = 0) -> Plot:
    """Plot R@10 against sparsity from ``least`` on, not re-ranked (Fig. 3a and 3b).

    c-ReLU makes half of the components zero, so that a code of components drops nothing at a
    sparsity below .5.
    """
    panels = []

    def scale(ax: Axes) -> None:
        log_x([1 - s for s in SPARSITIES if s >= least], lambda share: f"{1 - share:.2g}")(ax)
        ax.invert_xaxis()

    for direction, side in DIRECTIONS.items():
        curves = {
            n: [r for r in curve(rows, n, direction) if float(r["sparsity"]) >= least]
            for n in names
        }
        lines = [
            Line(
                name,
                [max(1 - s, 1e-3) for s in numbers(mine, "sparsity")],
                numbers(mine, "Rm=1"),
                *CURVES[name][2:],
                numbers(mine, "Rm=1 +-"),
            )
            for name, mine in curves.items()
            if mine
        ]
        dense = next((float(mine[0]["dense"]) for mine in curves.values() if mine), None)
        panels.append(
            Panel(
                side,
                "sparsity (share of components that are zero)",
                "R@10, %, not re-ranked",
                lines,
                scale,
                dense,
            ),
        )
    return Plot(f"R@10 against sparsity: {what}", panels)


def by_candidates(rows: Rows) -> Plot:
    """Plot R@10 against Rm where codes are sparsest (Fig. 3c)."""
    panels = []
    for direction, side in DIRECTIONS.items():
        sparse = {
            n: [r for r in curve(rows, n, direction) if float(r["sparsity"]) > 0.98] for n in CURVES
        }
        lines = [
            Line(
                name,
                list(RMS),
                [float(mine[0][f"Rm={rm}"]) for rm in RMS],
                *CURVES[name][2:],
                [float(mine[0][f"Rm={rm} +-"]) for rm in RMS],
            )
            for name, mine in sparse.items()
            if mine and "rotated" not in name
        ]
        dense = next((float(mine[0]["dense"]) for mine in sparse.values() if mine), None)
        panels.append(
            Panel(
                side,
                "Rm (candidates re-ranked for each hit)",
                "R@10, %",
                lines,
                log_x(RMS),
                dense,
            ),
        )
    return Plot("R@10 after re-ranking, sparsity 0.99 (the paper's Fig. 3c)", panels)


def codebook_size(rows: Rows) -> Plot:
    """Plot R@10 against the number of centroids, learned from the largest sample."""
    largest = max(numbers(rows.table, "sample"))
    panels = []
    for direction, side in DIRECTIONS.items():
        mine = [
            r for r in rows.table if r["direction"] == direction and float(r["sample"]) == largest
        ]
        kinds: dict[str, list[Row]] = {}
        for row in sorted(mine, key=lambda row: int(row["clusters"])):
            budget = (
                ""
                if row["assignment"] == "hard"
                else ", 8 kept"
                if row["z"] == "8"
                else ", 1 % kept"
            )
            kinds.setdefault(row["assignment"] + budget, []).append(row)
        lines = [
            Line(
                kind,
                numbers(group, "clusters"),
                numbers(group, "R@10"),
                i,
                error=numbers(group, "R@10 +-"),
            )
            for i, (kind, group) in enumerate(sorted(kinds.items()))
        ]
        panels.append(
            Panel(
                side,
                "centroids of the codebook (log)",
                "R@10, %, not re-ranked",
                lines,
                log_x(numbers(mine, "clusters")),
                float(mine[0]["dense"]),
            ),
        )
    return Plot("R@10 against centroids of the codebook", panels)


def pareto(rows: Rows) -> Plot:
    """Plot latency and throughput against recall, of settings that no other of the same index
    beats."""
    ours = {(row["engine"], row["index"]): row["ours"] == "1" for row in rows.table}
    times = {
        name: [
            float(r["p50_ms"])
            for r in rows.table
            if (r["engine"], r["index"]) == name and r["p50_ms"] and float(r["recall"]) >= EQUAL
        ]
        for name in ours
    }
    order = sorted(ours, key=lambda name: (not ours[name], min(times[name], default=np.inf)))
    panels = []
    for column, title, unit in (
        ("p50_ms", "down and right is better", "milliseconds per query, median (log)"),
        ("qps_1", "up and right is better", "queries per second in batches, one thread (log)"),
    ):
        lines = []
        for style, name in enumerate(order):
            mine = [
                r
                for r in rows.table
                if (r["engine"], r["index"]) == name and float(r[column] or 0) > 0
            ]
            best = pareto_rows(mine, column, -1 if column == "p50_ms" else 1)
            if best:
                label = " ".join(filter(None, name))
                lines.append(
                    Line(
                        label,
                        numbers(best, "recall"),
                        numbers(best, column),
                        style,
                        not ours[name],
                    ),
                )
                if style >= LABELLED:  # the first of them has the name of all
                    lines[-1].name = "others" if style == LABELLED else "_others"
                    lines[-1].grey = "line"
        if lines:
            panels.append(
                Panel(title, "recall of the exact top ten (share)", unit, lines, near_one),
            )
    title = f"Speed at equal recall; solid: ours, dashed: others, named where fast at {EQUAL}"
    return Plot(title, panels, size=(14, 5.6))


def near_one(ax: Axes) -> None:
    """Show recall on an axis that spreads what is near to 1, beside a logarithmic one."""
    log_y(ax)
    ax.set_xscale(
        "function",
        functions=(lambda r: -np.log10(NEAREST - r), lambda t: NEAREST - 10.0**-t),
    )
    ax.set_xlim(PARETO_LEAST, 1.0002)
    marks(ax.xaxis, RECALLS, str)


def pareto_rows(rows: Sequence[Row], column: str, sign: int) -> list[Row]:
    """Return the rows that no other beats in recall and in the column, where ``sign`` 1 means that
    more is better."""
    best: list[Row] = []
    for row in sorted(rows, key=lambda r: (-float(r["recall"]), -sign * float(r[column]))):
        if not best or sign * float(row[column]) > sign * float(best[-1][column]):
            best.append(row)
    return [row for row in best[::-1] if float(row["recall"]) >= PARETO_LEAST]


def growth(rows: Rows) -> Plot:
    """Plot time, bytes and memory against the number of items, with exponents of power laws."""
    panels = []
    for title, unit, columns in (
        (
            "a query",
            "milliseconds (log)",
            {"p50_ms": "median", "p95_ms": "95th percentile", "p99_ms": "99th"},
        ),
        ("indexing", "seconds (log)", {"index_s": "all", "cpu_s": "processor"}),
        (
            "bytes and memory",
            "MB (log)",
            {"disk_mb": "disk", "build_peak_mb": "builder", "file_mb": "mapped"},
        ),
    ):
        lines = []
        for style, (column, name) in enumerate(columns.items()):
            points = [row for row in rows.table if float(row.get(column) or 0) > 0]
            if points:
                n = numbers(points, "n")
                y = numbers(points, column)
                lines.append(
                    Line(f"{name}: n^{exponent(n, y):.2f}" if len(n) > 1 else name, n, y, style),
                )
        panels.append(Panel(title, "items (log)", unit, lines, log_both(numbers(rows.table, "n"))))
    return Plot("Growth of the embedded engine", panels, size=(14, 4.8))


def exponent(n: Sequence[float], y: Sequence[float]) -> float:
    """Fit the exponent of the power law through the points, by least squares of logarithms."""
    return float(np.polyfit(np.log(n), np.log(y), 1)[0])


def memory(rows: Rows) -> Plot:
    """Plot a server's indexes against the memory that is left for their files."""
    names = list(dict.fromkeys(row["index"] for row in rows.table))
    panels = []
    for title, state, column, unit in (
        ("first pass, nothing in memory", "cold", "p95_ms", "95th percentile, milliseconds (log)"),
        ("after as many other queries", "warm", "p95_ms", "95th percentile, milliseconds (log)"),
        ("after as many other queries", "warm", "read_kb", "kB read per query (log)"),
    ):
        lines = []
        shares = {1.0}
        for style, name in enumerate(names):
            mine = [
                r
                for r in rows.table
                if (r["index"], r["state"]) == (name, state) and float(r[column] or 0) > 0
            ]
            points = sorted(
                (1.0 if r["memory"] == "all" else float(r["memory"]), float(r[column]))
                for r in mine
            )
            if points:
                x, y = ([point[i] for point in points] for i in (0, 1))
                shares.update(x)
                lines.append(Line(name, x, y, style, dashed=":" not in name))

        def scale(ax: Axes, ticks: Sequence[float] = tuple(shares)) -> None:
            log_both([])(ax)
            marks(ax.xaxis, ticks, lambda share: "all" if share == 1 else f"{share:g}")
            ax.invert_xaxis()

        panels.append(
            Panel(title, "memory for files, of the bytes of the vectors", unit, lines, scale),
        )
    title = "A server with less memory than its vectors; solid: ours, dashed: the server's own"
    return Plot(title, panels, size=(15, 5.2))


def training(rows: Rows) -> Plot:
    """Plot recall and NDCG on the pictures held out, after each epoch (TERAN, Fig. 3 and 6)."""
    names = list(dict.fromkeys(row["model"] for row in rows.table))
    panels = []
    for what, unit in (("R@10", "R@10, %"), ("NDCG", "NDCG@25")):
        lines = []
        for style, name in enumerate(names):
            for side in DIRECTIONS.values():
                mine = [row for row in rows.table if row["model"] == name and row[f"{side} {what}"]]
                if mine:
                    line = Line(
                        f"{name}, {side}",
                        numbers(mine, "step"),
                        numbers(mine, f"{side} {what}"),
                        style,
                    )
                    line.dashed = side == "picture to sentence"
                    lines.append(line)
        panels.append(Panel(f"{what} on pictures held out", "steps", unit, lines))
    return Plot("Validation while training", panels)


def all_codes(rows: Rows) -> Plot:
    """Plot recall of each code against the postings that it reads, with the front that no code is
    beyond; some of it have names. Several rows of a code, by other seeds, are one point with a bar
    from the least to the most."""
    codes: dict[str, list[Row]] = {}
    for row in rows.table:
        if float(row["postings"]) >= 1:  # the axis is logarithmic
            codes.setdefault(row["code"], []).append(row)
    costs = {code: float(np.median(numbers(mine, "postings"))) for code, mine in codes.items()}
    ticks = [
        t
        for t in (10.0**p for p in range(8))
        if min(costs.values()) / 10 < t < max(costs.values()) * 10
    ]
    panels = []
    for column, how in (
        ("R@10 code", "by the code alone"),
        ("R@10", "10 candidates re-ranked per hit"),
    ):
        values = {code: numbers(mine, column) for code, mine in codes.items()}
        middle = {code: float(np.median(each)) for code, each in values.items()}
        front: list[str] = []
        for code in sorted(codes, key=lambda code: (costs[code], -middle[code])):
            if not front or middle[code] > middle[front[-1]]:
                front.append(code)
        scale, place = near_top(ticks, list(middle.values()))
        spread = [place(middle[code]) for code in front]
        named = [
            front[i]
            for i in far_apart([math.log10(costs[code]) for code in front], spread, LABELLED - 1)
        ]
        lines = [
            Line(brief(code), [costs[code]], [middle[code]], i) for i, code in enumerate(named)
        ]
        for line, code in zip(lines, named, strict=True):
            if len(values[code]) > 1:
                line.low = [min(values[code])]
                line.high = [max(values[code])]
        rest = [code for code in codes if code not in named]
        lines.append(
            Line("others", [costs[c] for c in rest], [middle[c] for c in rest], 0, grey="points"),
        )
        steps = [*front, max(costs, key=lambda code: costs[code])]
        heights = [middle[code] for code in (*front, front[-1])]
        lines.append(
            Line("Pareto front", [costs[code] for code in steps], heights, 0, grey="steps"),
        )
        panels.append(Panel(how, "postings read per query (log)", "R@10, %", lines, scale))
    return Plot("Codes by the postings that they read", panels, numbered=True, size=(12.5, 5))


OURS = ("scalar", "dictionary", "late", "learned", "words")


def rivals(rows: Rows) -> Plot:
    """Plot what codes find at equal postings and bytes, medians and bands of seeds; in grey those
    that most others beat."""
    panels = []
    styles = dict[str, int]()
    for kind, unit in (
        ("postings", "postings read per query and picture (log)"),
        ("bytes", "bytes per picture (log)"),
    ):
        runs: dict[str, dict[float, list[float]]] = {}
        for row in rows.table:
            if row["kind"] == kind:
                runs.setdefault(row["code"], {}).setdefault(float(row["limit"]), []).append(
                    float(row["near"]),
                )
        limits = sorted({limit for run in runs.values() for limit in run})
        middle = {
            code: {limit: float(np.median(run[limit])) for limit in run}
            for code, run in runs.items()
        }

        def places(code: str, middle: dict[str, dict[float, float]] = middle) -> float:
            return float(
                np.mean(
                    [
                        sum(other.get(limit, 0) > value for other in middle.values())
                        for limit, value in middle[code].items()
                    ],
                ),
            )

        lines = []
        for style, code in enumerate(sorted(middle, key=places)):
            x = sorted(middle[code])
            colour = styles.setdefault(code, len(styles)) if style < LABELLED else 0
            line = Line(
                code,
                x,
                [middle[code][limit] for limit in x],
                colour,
                dashed=code not in OURS,
            )
            line.low, line.high = ([end(runs[code][limit]) for limit in x] for end in (min, max))
            if style >= LABELLED:
                line.name = "others" if style == LABELLED else "_others"
                line.grey = "line"
            lines.append(line)
        panels.append(
            Panel(f"at equal {kind}", unit, "share of the exact top ten", lines, log_x(limits)),
        )
    return Plot(
        "Exact top ten among the first tenth; solid: ours, dashed: others",
        panels,
        size=(12.5, 5.2),
    )


def near_top(
    ticks: Sequence[float],
    values: Sequence[float],
) -> tuple[Callable[[Axes], None], Callable[[Any], Any]]:
    """Return a logarithmic horizontal axis beside a vertical one that spreads what is near to the
    largest value, the more the nearer half of the values are to it; and the scale of the latter."""
    least = min(values)
    top = max(values)
    edge = top + max(0.1, (top - float(np.median(values))) / 4)

    def place(y: Any) -> Any:
        return -np.log10(np.maximum(edge - y, 1e-9))

    apart = (place(top) - place(least)) / 18
    shown = [top]
    for tick in sorted(RECALL_TICKS, reverse=True):
        if least - 5 < tick < top and place(shown[-1]) - place(tick) > apart:
            shown.append(tick)

    def scale(ax: Axes) -> None:
        log_x(ticks)(ax)
        ax.set_yscale("function", functions=(place, lambda t: edge - 10.0**-t))
        ax.set_ylim(edge - 10.0 ** -(place(least) - apart), edge - 10.0 ** -(place(top) + apart))
        marks(ax.yaxis, shown, lambda value: f"{value:.4g}")

    return scale, place


def far_apart(x: Sequence[float], y: Sequence[float], count: int) -> list[int]:
    """Return the places of ``count`` points at most, in their order: the first, and each time the
    farthest from those chosen, both axes scaled to one. Points nearer than a fortieth to others are
    left out."""
    points = np.stack([np.asarray(each) / max(np.ptp(each), 1e-9) for each in (x, y)], axis=1)
    chosen = [0]
    apart = np.linalg.norm(points - points[0], axis=1)
    while len(chosen) < count and apart.max() > 1 / 40:
        chosen.append(int(apart.argmax()))
        apart = np.minimum(apart, np.linalg.norm(points - points[chosen[-1]], axis=1))
    return sorted(chosen)


def brief(code: str) -> str:
    """Write a code in few letters: soft(codebook=many, z=8, query_z=64, similarity=excess) is "soft
    many 8/64"."""
    name = re.sub(r"z=(\d+), query_z=(\d+)", r"\1/\2", code)
    return re.sub(r"[(), ]+", " ", re.sub(r"similarity=excess|\w+=|:64/128", "", name)).strip()


PLOTS: dict[str, Callable[[Rows], Plot]] = {
    "fig3a": lambda rows: by_sparsity(
        rows,
        "codes of the global vector (the paper's Fig. 3a)",
        list(CURVES)[:4],
        0.5,
    ),
    "fig3b": lambda rows: by_sparsity(
        rows,
        "soft Bag of Concepts (the paper's Fig. 3b)",
        list(CURVES)[4:8],
    ),
    "fig3c": by_candidates,
    "clusters": codebook_size,
    "pareto": pareto,
    "growth": growth,
    "memory": memory,
    "training": training,
    "codes": all_codes,
    "rivals": rivals,
}


def plot(runs: Rows | Sequence[Rows], name: str) -> Plot:
    """Return a plot by its name, of rows or of several runs of them; KeyError if there is none, or
    the rows lack a column of it."""
    runs = [runs] if isinstance(runs, Rows) else runs
    drawing = merge([PLOTS[name](rows) for rows in runs])
    drawing.title += f". {MEASURED_ON.get(runs[0].name, runs[0].name)}"
    if len(runs) > 1:
        drawing.title += f"; medians of {len(runs)} runs, bands from the least to the most"
    return drawing


def merge(plots: Sequence[Plot]) -> Plot:
    """Merge plots of several runs into the first of them: a line has the medians of those lines of
    its name that have as many points, and a band from the least to the most in the place of
    errors."""
    first, *others = plots
    for number, panel in enumerate(first.panels if others else []):
        for line in panel.lines:
            same = [
                each
                for plot in plots
                for each in plot.panels[number].lines
                if each.name == line.name and len(each.x) == len(line.x)
            ]
            x, y = (np.array([getattr(each, axis) for each in same]) for axis in "xy")
            line.x, line.y = (np.median(values, axis=0).tolist() for values in (x, y))
            line.low = y.min(axis=0).tolist()
            line.high = y.max(axis=0).tolist()
            line.error = []
    return first
