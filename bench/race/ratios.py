"""Compute ratios of boc to each other index at equal recall, from the rows of races.

    python -m bench.race.ratios race.csv race-elasticsearch.csv > race-ratios.csv

Only indexes of the same race are compared, because their rounds ran on the same machine. At each
recall, each index is represented by the setting that reached the recall fastest on the validation
queries (``at`` in race.py). A ratio is the value of boc divided by the value of the other index.
Below 1, boc is faster, smaller or builds faster; for queries per second, boc is better above 1. For
times and rates, a row contains the median over rounds with minimum and maximum, and a verdict:
``ours`` or ``theirs`` if all rounds agree, and ``even`` otherwise. ``build`` includes encoding all
items, and ``with_fit`` also includes learning the code. ``without_vectors`` is the ratio of bytes
when boc does not re-rank and stores no vectors; indexes that search by vectors cannot omit the
vectors. A cell is empty if one of the two values is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from bench.options import FILE
from bench.report.rows import Writer, read

HEAD = (
    "race",
    "at",
    "ours",
    "setting",
    "recall",
    "theirs",
    "their_setting",
    "their_recall",
    "p50",
    "p50_least",
    "p50_most",
    "p50_verdict",
    "qps_1",
    "qps_1_least",
    "qps_1_most",
    "qps_1_verdict",
    "qps_2",
    "qps_2_least",
    "qps_2_most",
    "qps_2_verdict",
    "build",
    "with_fit",
    "cpu",
    "disk",
    "without_vectors",
    "anon",
    "anon_file",
)

Cells = Mapping[str, str]


def pairs(table: Sequence[Cells]) -> Iterator[tuple[str, Cells, Cells]]:
    """Yield (recall, ours, theirs) for all comparable rows."""
    recalls = sorted({at for row in table for at in row["at"].split()})
    for recall, one, other in product(recalls, table, table):
        both = recall in one["at"].split() and recall in other["at"].split()
        if both and one["ours"] == "1" and other["ours"] != "1":
            yield recall, one, other


def compare(recall: str, one: Cells, other: Cells) -> list[str]:
    """Return all cells except the race name."""
    rates = [
        cell
        for name in ("qps_1", "qps_2")
        for cell in compare_rounds(one, other, f"{name}_rounds", better=1)
    ]
    built = ("encode_s", "build_s")
    without = ""
    if one["disk_mb"] and one["vectors_mb"] and other["disk_mb"]:
        rest = float(one["disk_mb"]) - float(one["vectors_mb"])
        without = quotient(rest, float(other["disk_mb"]))
    return [
        recall,
        name_of(one),
        one["setting"],
        one["recall"],
        name_of(other),
        other["setting"],
        other["recall"],
        *compare_rounds(one, other, "p50_rounds", better=-1),
        *rates,
        ratio(one, other, *built),
        ratio(one, other, *built, "fit_s"),
        ratio(one, other, "cpu_s"),
        ratio(one, other, "disk_mb"),
        without,
        ratio(one, other, "anon_mb"),
        ratio(one, other, "anon_mb", "file_mb"),
    ]


def name_of(row: Cells) -> str:
    return f"{row['engine']} {row['index']}"


def ratio(one: Cells, other: Cells, *names: str) -> str:
    """Return the ratio of the sums of several columns."""
    if not all(row[name] for row in (one, other) for name in names):
        return ""
    ours, theirs = (sum(float(row[name]) for name in names) for row in (one, other))
    return quotient(ours, theirs)


def quotient(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.3f}" if theirs else ""


def compare_rounds(one: Cells, other: Cells, name: str, better: int) -> list[str]:
    """Return the median, minimum and maximum ratio over rounds, and the verdict. ``better`` is 1 if
    higher values are better."""
    if not one[name] or not other[name]:
        return [""] * 4
    ratios = values(one[name]) / values(other[name])
    ahead = better * np.sign(ratios - 1)
    verdict = "even"
    if (ahead > 0).all():
        verdict = "ours"
    elif (ahead < 0).all():
        verdict = "theirs"
    return [f"{f(ratios):.3f}" for f in (np.median, np.min, np.max)] + [verdict]


def values(cell: str) -> NDArray[np.float64]:
    return np.array([float(part) for part in cell.split()])


@click.command()
@click.argument(
    "races",
    nargs=-1,
    required=True,
    type=FILE,
)
def main(races: tuple[Path, ...]) -> None:
    """Print ratios at equal recall from rows of race.py."""
    with Writer(sys.stdout, __file__, {"races": list(races)}, HEAD) as out:
        for path in races:
            rows = read(path)
            if "p50_rounds" not in rows.columns or not rows.is_complete:
                raise click.UsageError(
                    f"{path}: incomplete rows of a race; pass the complete output of race.py",
                )
            for recall, one, other in pairs(rows.table):
                out.write(rows.name, *compare(recall, one, other))


if __name__ == "__main__":
    main()
