"""Draw figures of rows as SVG and PDF with pandas and matplotlib. A figure is readable without its
caption, because it shows titles, units and line names.

A figure consists of panels, one below the other. A panel has at most eight named lines, and all
other lines are grey. The colours follow Okabe and Ito, and each colour has its own marker.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from textwrap import fill
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from bench.report.rows import Rows
from bench.report.views import DIRECTIONS

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A6A00")
MARKERS = "os^DvPX*"
GREY: dict[str, Any] = {"color": "#aaaaaa", "zorder": 1}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "lines.markersize": 4.5,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "pdf.fonttype": 42,
}
WIDTH = 7.2  # inches, so that text is readable on a page 700 pixels wide
LABELLED = 8  # maximum number of named lines in a panel
MEASURED_ON = {
    "sparsity-tern": "TERN, Flickr8k dev",
    "all-codes": "TERN, Flickr8k dev",
    "race-embedded": "100,000 captions of Multi30k, MiniLM",
    "race-elasticsearch": "100,000 captions of Multi30k, MiniLM",
    "race-composed": "200,000 composed pictures, sentences",
    "growth": "synthetic vectors of 256 components",
    "rivals": "500 painted scenes",
    "recall-postings-captions": "100,000 captions of Multi30k, MiniLM",
    "race-ratios": "Queries of one thread",
}


def log_x(ax: Axes, ticks: Sequence[float], text: Callable[[float], str] | None = None) -> None:
    """Make the horizontal axis logarithmic, with these ticks."""
    ax.set_xscale("log")
    marks(ax.xaxis, ticks, text)


def log_y(ax: Axes) -> None:
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def marks(axis: Any, ticks: Sequence[float], text: Callable[[float], str] | None = None) -> None:
    """Set exactly these ticks."""
    axis.set_major_locator(FixedLocator(sorted(set(ticks))))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: (text or short)(value)))


def short(value: float) -> str:
    """Write 10,000 as 10k, 3,000,000 as 3M, and smaller numbers in full."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size and value >= 10_000:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def draw_line(
    ax: Axes,
    name: str,
    x: Any,
    y: Any,
    style: int,
    dashed: bool = False,
    error: Any = None,
) -> None:
    """Draw a named line. ``style`` is the index of its colour and marker. ``error`` contains the
    half lengths of error bars, or their lower and upper lengths."""
    ax.errorbar(
        x,
        y,
        error,
        label=name,
        elinewidth=0.8,
        color=COLOURS[style % len(COLOURS)],
        # Repeated colours get another marker.
        marker=MARKERS[(style + style // len(COLOURS)) % len(MARKERS)],
        linestyle="--" if dashed else "-",
    )


def draw_other(ax: Axes, rank: int, x: Any, y: Any) -> None:
    """Draw a line without its own name. The first line of this kind has the name for all."""
    label = "others" if rank == LABELLED else "_others"
    ax.plot(x, y, label=label, marker=".", linewidth=0.9, **GREY)


def describe(ax: Axes, title: str, x: str, y: str, dense: float | None = None) -> None:
    """Set the title of a panel and the labels of its axes. ``dense`` is the height of a dotted
    reference line."""
    if dense is not None:
        ax.axhline(
            dense,
            color="#666666",
            linestyle=":",
            linewidth=1.4,
            label="dense vectors",
        )
    ax.set_title(title, loc="left", fontweight="bold")
    ax.set_xlabel(x)
    ax.set_ylabel(y)


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


def curve(table: Any, name: str) -> Any:
    """Return the rows of ``sparsity_recall.py`` for a line, in order of increasing sparsity."""
    code, chain, *_ = CURVES[name]
    mine = table[table["code"] == code]
    if chain:
        mine = mine[mine["chain"] == chain]
    return mine.sort_values(["sparsity", "query z"], ascending=[True, False])


def by_direction(
    axes: Sequence[Axes],
    table: Any,
    x: str,
    y: str,
) -> Iterator[tuple[Axes, Any]]:
    """Describe a panel for each direction, and yield the panel and its rows."""
    for ax, (direction, side) in zip(axes, DIRECTIONS.items(), strict=True):
        mine = table[table["direction"] == direction]
        describe(ax, side, x, y, mine["dense"].max())
        yield ax, mine


def by_sparsity(axes: Sequence[Axes], table: Any, names: Sequence[str], least: float = 0) -> None:
    """Draw R@10 without re-ranking against sparsity, from ``least`` on (Fig. 3a and 3b).

    c-ReLU sets half of the components to zero, so a component code does not drop values at a
    sparsity below .5.
    """
    table = table[table["sparsity"] >= least]
    unit = "sparsity (share of components that are zero)"
    for ax, side in by_direction(axes, table, unit, "R@10, %, not re-ranked"):
        log_x(ax, (1, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01), lambda share: f"{1 - share:.2g}")
        ax.invert_xaxis()
        for name in names:
            mine = curve(side, name)
            if len(mine):
                x = (1 - mine["sparsity"]).clip(lower=1e-3)
                draw_line(ax, name, x, mine["Rm=1"], *CURVES[name][2:], mine["Rm=1 +-"])


def by_candidates(axes: Sequence[Axes], table: Any) -> None:
    """Draw R@10 against Rm at the highest sparsity of the codes (Fig. 3c)."""
    table = table[table["sparsity"] > 0.98]
    rms = (1, 2, 5, 10, 20, 50)
    unit = "Rm (candidates re-ranked for each hit)"
    for ax, side in by_direction(axes, table, unit, "R@10, %"):
        log_x(ax, rms)
        for name in CURVES:
            mine = curve(side, name)
            if len(mine) and "rotated" not in name:
                row = mine.iloc[0]
                y = [row[f"Rm={rm}"] for rm in rms]
                error = [row[f"Rm={rm} +-"] for rm in rms]
                draw_line(ax, name, rms, y, *CURVES[name][2:], error)


EQUAL = 0.95  # recall by which engines are sorted
PARETO_LEAST = 0.7  # minimum recall in the plot


def pareto(axes: Sequence[Axes], table: Any) -> None:
    """Draw latency and throughput against recall, for settings that are not beaten by another
    setting of the same index."""
    table["name"] = (table["engine"] + " " + table["index"]).str.strip()
    ours = table.groupby("name")["ours"].first() == 1
    times = table[table["recall"] >= EQUAL].groupby("name")["p50_ms"].min()
    order = sorted(
        table["name"].unique(),
        key=lambda name: (not ours[name], times.get(name, np.inf)),
    )
    for ax, column, sign, title, unit in zip(
        axes,
        ("p50_ms", "qps_1"),
        (-1, 1),
        ("down and right is better", "up and right is better"),
        (
            "milliseconds per query, median (log)",
            "queries per second in batches, one thread (log)",
        ),
        strict=True,
    ):
        near_one(ax)
        for rank, name in enumerate(order):
            mine = table[(table["name"] == name) & (table[column] > 0)]
            best = front(mine, -mine["recall"], sign * mine[column])[::-1]
            best = best[best["recall"] >= PARETO_LEAST]
            if rank >= LABELLED:
                draw_other(ax, rank, best["recall"], best[column])
            elif len(best):
                draw_line(ax, name, best["recall"], best[column], rank, not ours[name])
        describe(ax, title, "recall of the exact top ten (share)", unit)


def near_one(ax: Axes) -> None:
    """Show recall on an axis that spreads values near 1, next to a logarithmic axis."""
    # The axis includes recall 1.
    edge = 1.003
    log_y(ax)
    ax.set_xscale("function", functions=(lambda r: -np.log10(edge - r), lambda t: edge - 10.0**-t))
    ax.set_xlim(PARETO_LEAST, 1.0002)
    marks(ax.xaxis, (0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1), str)


def front(table: Any, costs: Any, gains: Any) -> Any:
    """Return the rows that are not beaten by another row in both cost and gain, in order of
    increasing cost."""
    rows = table.assign(cost=costs, gain=gains)
    rows = rows.sort_values(["cost", "gain"], ascending=[True, False])
    before = rows["gain"].cummax().shift()
    return rows[~(rows["gain"] <= before)]


def growth(axes: Sequence[Axes], table: Any) -> None:
    """Draw time, bytes and memory against the number of items, with exponents of power laws."""
    times = {"p50_ms": "median", "p95_ms": "95th percentile", "p99_ms": "99th"}
    sizes = {"disk_mb": "disk", "build_peak_mb": "builder", "file_mb": "mapped"}
    for ax, title, unit, columns in zip(
        axes,
        ("a query", "indexing", "bytes and memory"),
        ("milliseconds (log)", "seconds (log)", "MB (log)"),
        (times, {"index_s": "all", "cpu_s": "processor"}, sizes),
        strict=True,
    ):
        log_x(ax, table["n"])
        log_y(ax)
        for style, (column, name) in enumerate(columns.items()):
            points = table[table[column] > 0]
            power = exponent(points["n"], points[column])
            draw_line(ax, f"{name}: n^{power:.2f}", points["n"], points[column], style)
        describe(ax, title, "items (log)", unit)


def exponent(n: Any, y: Any) -> float:
    """Fit the exponent of a power law through the points, by least squares on logarithms."""
    return float(np.polyfit(np.log(n), np.log(y), 1)[0])


def all_codes(axes: Sequence[Axes], table: Any) -> None:
    """Draw the recall of each code against the postings that it reads, and the Pareto front of the
    codes, with names for some of them. Rows of a code with different seeds form a single point,
    with a bar from the minimum to the maximum."""
    # The axis is logarithmic.
    codes = table[table["postings"] >= 1].groupby("code", sort=False)
    costs = codes["postings"].median()
    ticks = [t for t in 10.0 ** np.arange(8) if costs.min() / 10 < t < costs.max() * 10]
    for ax, column, title in zip(
        axes,
        ("R@10 code", "R@10"),
        ("by the code alone", "10 candidates re-ranked per hit"),
        strict=True,
    ):
        recalls = codes[column].agg(["min", "median", "max"])
        best = front(recalls, costs, recalls["median"])
        log_x(ax, ticks)
        place = near_top(ax, recalls["median"])
        chosen = far_apart(np.log10(best["cost"]), place(best["gain"]), LABELLED - 1)
        named = best.iloc[chosen]
        for style, (code, row) in enumerate(named.iterrows()):
            number = str(style + 1)
            error = [[row["gain"] - row["min"]], [row["max"] - row["gain"]]]
            draw_line(
                ax,
                f"{number}  {brief(code)}",
                row["cost"],
                row["gain"],
                style,
                error=error if row["max"] > row["min"] else None,
            )
            ax.annotate(
                number,
                (row["cost"], row["gain"]),
                (5, 3),
                textcoords="offset points",
                fontsize=8,
            )
        rest = recalls.index.difference(named.index, sort=False)
        medians = recalls["median"][rest]
        ax.plot(costs[rest], medians, label="others", marker=".", linestyle="", **GREY)
        ax.plot(
            [*best["cost"], costs.max()],
            [*best["gain"], best["gain"].max()],
            label="Pareto front",
            drawstyle="steps-post",
            linewidth=1.2,
            **GREY,
        )
        describe(ax, title, "postings read per query (log)", "R@10, %")


def rivals(axes: Sequence[Axes], table: Any) -> None:
    """Draw the recall of codes at equal postings and bytes, with medians and bands over seeds.
    Codes that are beaten by most other codes are grey."""
    ours = ("scalar", "dictionary", "late", "learned", "words")
    styles: dict[str, int] = {}
    for ax, kind, unit in zip(
        axes,
        ("postings", "bytes"),
        ("postings read per query and picture (log)", "bytes per picture (log)"),
        strict=True,
    ):
        mine = table[table["kind"] == kind]
        log_x(ax, mine["limit"])
        found = mine.groupby(["code", "limit"])["near"].agg(["min", "median", "max"])
        # The rank of a code is the mean number of codes with higher recall at the same limit.
        places = found["median"].groupby("limit").rank(ascending=False, method="min")
        order = places.groupby("code").mean()[mine["code"].unique()].sort_values(kind="stable")
        for rank, code in enumerate(order.index):
            line = found.loc[code]
            if rank >= LABELLED:
                draw_other(ax, rank, line.index, line["median"])
                continue
            style = styles.setdefault(code, len(styles))
            colour = COLOURS[style % len(COLOURS)]
            ax.fill_between(
                line.index,
                line["min"],
                line["max"],
                color=colour,
                alpha=0.18,
                linewidth=0,
            )
            draw_line(ax, code, line.index, line["median"], style, code not in ours)
        describe(ax, f"at equal {kind}", unit, "share of the exact top ten")


def by_postings(axes: Sequence[Axes], table: Any) -> None:
    """Draw the recall of codes, after 300 candidates are re-ranked, against the postings that they
    read."""
    (ax,) = axes
    log_x(ax, (1000, 10_000, 100_000, 1_000_000))
    # The lines of a dictionary differ in the number of terms per item.
    table["code"] += " " + table["setting"].str.extract(r"^(\d(?=/)|)")[0]
    for style, (name, mine) in enumerate(table[table["R"] == 300].groupby("code", sort=False)):
        draw_line(ax, name, mine["postings"], mine["recall"], style)
    unit = "postings read per query (log)"
    describe(ax, "up and left is better", unit, "share of the exact top ten")


BESIDE = {
    "race-composed": "folder, 200,000 pictures",
    "race-embedded": "folder, 100,000 captions",
    "race-elasticsearch": "Elasticsearch, captions",
    "race-opensearch": "OpenSearch, captions",
}
MEASURES = {
    "qps_1": "queries per second (more is better)",
    "disk": "bytes on disk (less is better)",
    "with_fit": "indexing time (less is better)",
}


def beside(axes: Sequence[Axes], table: Any) -> None:
    """Draw speed, bytes and indexing time of boc at recall .98 as bars, where HNSW is 1."""
    (ax,) = axes
    table = table[(table["at"] == 0.98) & table["ours"].str.contains(r"dictionary:\d$")]
    table = table[table["theirs"].str.contains("HNSW32$|9 hnsw|fp32")].set_index("race")
    shown = table.loc[[*BESIDE], [*MEASURES]].rename(index=BESIDE, columns=MEASURES)
    for bars in shown.plot.barh(ax=ax, color=COLOURS, width=0.75).containers:
        ax.bar_label(bars, fmt=" %.2g")
    ax.axvline(1, label="HNSW", color="#666666", linestyle=":")
    ax.invert_yaxis()
    describe(ax, "bars: boc, dotted: HNSW", "times as much as HNSW", "index")


def near_top(ax: Axes, values: Any) -> Callable[[Any], Any]:
    """Scale the vertical axis so that values near the maximum are spread out. The effect is
    stronger if half of the values are close to the maximum. Return the scale."""
    least = values.min()
    top = values.max()
    edge = top + max(0.1, (top - values.median()) / 4)

    def place(y: Any) -> Any:
        return -np.log10(np.maximum(edge - y, 1e-9))

    apart = (place(top) - place(least)) / 18
    shown = [top]
    for tick in (99.5, 99, 98, 95, 90, 80, 71, 70, 68, 65, 60, 50, 40, 20, 0):
        if least - 5 < tick < top and place(shown[-1]) - place(tick) > apart:
            shown.append(tick)
    ax.set_yscale("function", functions=(place, lambda t: edge - 10.0**-t))
    ax.set_ylim(edge - 10.0 ** -(place(least) - apart), edge - 10.0 ** -(place(top) + apart))
    marks(ax.yaxis, shown, lambda value: f"{value:.4g}")
    return place


def far_apart(x: Any, y: Any, count: int) -> list[int]:
    """Return the indices of at most ``count`` points, in the original order. The first point is
    chosen, and then repeatedly the point that is farthest from the chosen points, with both axes
    scaled to [0, 1]. Points closer than a fortieth to a chosen point are skipped."""
    points = np.stack([x, y], axis=1)
    points /= np.maximum(np.ptp(points, axis=0), 1e-9)
    chosen = [0]
    apart = np.linalg.norm(points - points[0], axis=1)
    while len(chosen) < count and apart.max() > 1 / 40:
        chosen.append(int(apart.argmax()))
        apart = np.minimum(apart, np.linalg.norm(points - points[chosen[-1]], axis=1))
    return sorted(chosen)


def brief(code: str) -> str:
    """Abbreviate a code: soft(codebook=many, z=8, query_z=64, similarity=excess) becomes "soft many
    8/64"."""
    name = re.sub(r"z=(\d+), query_z=(\d+)", r"\1/\2", code)
    return re.sub(r"[(), ]+", " ", re.sub(r"similarity=excess|\w+=|:64/128", "", name)).strip()


class Plot(NamedTuple):
    """Plot with its title, the function that draws rows into panels, the number of panels, and the
    height in inches."""

    title: str
    draw: Callable[..., None]
    panels: int = 2
    height: float = 10


OWN = ("scalar quantisation", "deep permutation", "scalar, rotated (ours)", "dictionary (ours)")
PLOTS = {
    "fig3a": Plot(
        "R@10 against sparsity: codes of the global vector (the paper's Fig. 3a)",
        partial(by_sparsity, names=list(CURVES)[:4], least=0.5),
    ),
    "fig3b": Plot(
        "R@10 against sparsity: soft Bag of Concepts (the paper's Fig. 3b)",
        partial(by_sparsity, names=list(CURVES)[4:8]),
    ),
    "fig3c": Plot("R@10 after re-ranking, sparsity 0.99 (the paper's Fig. 3c)", by_candidates),
    "own": Plot("R@10 against sparsity", partial(by_sparsity, names=OWN, least=0.5)),
    "pareto": Plot(
        f"Speed at equal recall; solid: ours, dashed: others, named where fast at {EQUAL}",
        pareto,
    ),
    "growth": Plot("Growth of the embedded engine", growth, 3, 12),
    "codes": Plot("Codes by the postings that they read", all_codes),
    "rivals": Plot(
        "Exact top ten among the first tenth; solid: ours, dashed: others",
        rivals,
    ),
    "postings": Plot(
        "Recall by postings read, 300 candidates re-ranked",
        by_postings,
        1,
        4.4,
    ),
    "beside": Plot("boc beside HNSW at recall .98", beside, 1, 5),
}


def title(rows: Rows, name: str) -> str:
    """Return the title of a plot of rows. Raises KeyError for an unknown plot."""
    return f"{PLOTS[name].title}. {MEASURED_ON.get(rows.name, rows.name)}"


def draw(rows: Rows, name: str, titled: bool = True) -> Figure:
    """Draw a plot of rows. Raises KeyError for an
    unknown plot, or if the rows lack a column."""
    table = pd.DataFrame(rows.table)
    for column in table:
        # Columns of numbers become numbers; empty cells become NaN.
        with suppress(ValueError):
            table[column] = pd.to_numeric(table[column])
    plot = PLOTS[name]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, plot.height), layout="constrained")
        if titled:
            figure.suptitle(fill(title(rows, name), 84), fontsize=11, x=0.01, ha="left")
        axes = [figure.add_subplot(plot.panels, 1, place + 1) for place in range(plot.panels)]
        plot.draw(axes, table)
        for ax in axes:
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    return figure


def pdf(rows: Rows, name: str) -> bytes:
    """Return a plot as a PDF page without a title, because the title is part of the caption in a
    paper."""
    file = io.BytesIO()
    nothing = {"CreationDate": None, "Creator": None, "Producer": None}
    with mpl.rc_context(STYLE):
        draw(rows, name, titled=False).savefig(file, format="pdf", metadata=nothing)
    return file.getvalue()


def svg(rows: Rows, name: str) -> str:
    """Return a plot as an SVG element that can be embedded in a page."""
    file = io.StringIO()
    with mpl.rc_context({**STYLE, "svg.hashsalt": f"{rows.name}-{name}"}):
        draw(rows, name).savefig(
            file,
            format="svg",
            metadata={"Date": None, "Creator": None},
        )
    text = file.getvalue()
    text = re.sub(
        r"<metadata>.*?</metadata>\s*",
        "",
        text[text.index("<svg") :],
        flags=re.DOTALL,
    )
    return re.sub(r'<g id="[^"]*"', "<g", text)
