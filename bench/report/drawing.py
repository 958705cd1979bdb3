"""How plots look: the colours of Okabe and Ito with a marker each, lines named at their ends, SVG with text as text."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A6A00")
MARKERS = "os^DvPX*"
GREY = "#666666"
LABEL_POINTS = 9.5
PANEL = 0.72  # of a figure's height, about: the rest are titles and the axis
STYLE = {
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.titlesize": 10.5,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "lines.markersize": 4.5,
    "lines.linewidth": 1.6,
}


@dataclass
class Line:
    """A named line; ``style`` is its place among the colours and markers."""

    name: str
    x: list[float]
    y: list[float]
    style: int
    dashed: bool = False
    error: list[float] = field(default_factory=list)


def figure(columns: int, width: float = 12.5, height: float = 4.3) -> tuple[Figure, list[Axes]]:
    """A figure of panels side by side; inches."""
    with mpl.rc_context(STYLE):
        made = Figure(figsize=(width, height), layout="constrained")
        made.get_layout_engine().set(w_pad=0.08, h_pad=0.1)  # type: ignore[union-attr]
        return made, list(np.ravel(made.subplots(1, columns)))


def draw(ax: Axes, lines: Sequence[Line], dense: float | None = None, dense_name: str = "dense vectors") -> None:
    """Lines with their names to the right of the panel; ``dense`` is a level to compare with."""
    for line in lines:
        colour = COLOURS[line.style % len(COLOURS)]
        style = {
            "color": colour,
            "marker": marker(line.style),
            "linestyle": "--" if line.dashed else "-",
        }
        ax.plot(line.x, line.y, **style)
        if line.error:
            ax.errorbar(line.x, line.y, yerr=line.error, fmt="none", ecolor=colour, elinewidth=0.8, alpha=0.5)
    ends: list[End] = [(line.name, line.x[-1], line.y[-1], line.style) for line in lines]
    if dense is not None:
        ax.axhline(dense, color=GREY, linestyle=":", linewidth=1.4)
        ends.append((dense_name, None, dense, None))
    name_ends(ax, ends)


def marker(style: int) -> str:
    """Another one when colours begin again."""
    return MARKERS[(style + style // len(COLOURS)) % len(MARKERS)]


End = tuple[str, float | None, float, int | None]


def name_ends(ax: Axes, ends: Sequence[End]) -> None:
    """Names (text, x, y, style) in a column right of the panel, kept apart, each joined to its point.

    Without x the line ends at the panel's edge; without a style it is grey.
    """
    ax.autoscale_view()
    order = sorted(range(len(ends)), key=lambda i: _axes_xy(ax, None, ends[i][2])[1])
    places = [_axes_xy(ax, ends[i][1], ends[i][2]) for i in order]
    step = LABEL_POINTS * 1.35 / 72 / (PANEL * ax.figure.get_figheight())
    for i, (x, y), level in zip(order, places, apart([y for _, y in places], step), strict=True):
        text, _, _, style = ends[i]
        colour = GREY if style is None else COLOURS[style % len(COLOURS)]
        beside = {"transform": ax.transAxes, "color": colour, "clip_on": False}
        ax.plot([x, 1.03], [y, level], lw=0.6, alpha=0.6, **beside)
        if style is not None:
            ax.plot([1.045], [level], marker(style), **beside)
        ax.text(1.065, level, text, transform=ax.transAxes, color=colour, va="center", fontsize=LABEL_POINTS)


def apart(wish: Sequence[float], step: float) -> list[float]:
    """Rising places near the rising ``wish``, at least ``step`` from each other: clusters are centred on their mean."""
    groups: list[list[float]] = []
    for place in wish:
        groups.append([place])
        while len(groups) > 1 and _low(groups[-1], step) < _low(groups[-2], step) + step * len(groups[-2]):
            last = groups.pop()
            groups[-1] += last
    return [_low(group, step) + step * i for group in groups for i in range(len(group))]


def _low(group: Sequence[float], step: float) -> float:
    return float(np.mean(group)) - step * (len(group) - 1) / 2


def _axes_xy(ax: Axes, x: float | None, y: float) -> tuple[float, float]:
    """Where a point is, in parts of the panel; without x, its right edge."""
    high = ax.get_xlim()[1]
    a, b = ax.transAxes.inverted().transform(ax.transData.transform((high if x is None else x, y)))
    return (1.0 if x is None else float(a)), float(b)


def ticks_at(axis: Any, ticks: Sequence[float], told: Any = None) -> None:
    """These ticks only, told as ``told`` gives, or as `short`."""
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: (told or short)(value)))


def decades(values: Sequence[float], each: Sequence[int] = (1,)) -> list[float]:
    """Ticks ``each`` times the powers of ten that hold the values."""
    low, high = int(np.floor(np.log10(min(values)))), int(np.ceil(np.log10(max(values))))
    return [m * 10.0**p for p in range(low, high + 1) for m in each]


def short(value: float) -> str:
    """1,000 as 1k, 3,000,000 as 3M, 0.05 as it is."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:.3g}"


def bars(ax: Axes, names: Sequence[str], values: Sequence[float], marked: Sequence[bool], unit: str) -> None:
    """Horizontal bars, the first on top, with their figures; ``marked`` are coloured."""
    colours = [COLOURS[0] if mark else "#b5b5b5" for mark in marked]
    places = np.arange(len(names))[::-1]
    ax.barh(places, values, color=colours, height=0.7)
    ax.set_yticks(places, names)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(unit)
    most = max(values, default=0) or 1
    ax.set_xlim(0, most * 1.22)
    for place, value in zip(places, values, strict=True):
        ax.text(value + most * 0.015, place, told(value), va="center", fontsize=LABEL_POINTS)


def told(value: float) -> str:
    """Three digits that matter."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def svg(drawn: Figure, name: str) -> str:
    """The figure as an SVG element that may stand in a page beside others."""
    file = io.StringIO()
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        drawn.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    return re.sub(r'<g id="[^"]*"', "<g", text)
