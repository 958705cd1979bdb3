"""Test the claims of the Bag of Concepts paper on given data, and report the figures behind each
verdict.

    python -m bench.paper.claims ROWS... > docs/rows/claims.csv

ROWS are files from ``table1.py`` and ``sparsity_recall.py``. A claim is tested on each file that
contains the necessary rows. Differences are in percentage points (for table1, of the sum of the six
recalls), with errors over pictures. p is computed from a normal distribution, with Holm's
correction over all claims that are tested together. A claim with p below .05 holds or does not
hold. Without a significant p, a claim that a code is better, or loses some amount, is undecided,
and a claim that two codes are alike holds unless they differ by more than SAME points per recall.
If the readings of a claim lead to different verdicts, a line reports that the paper is
inconsistent, because no single reading fits its text, table and figure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from scipy.stats import norm

from bench.report.rows import Rows, Writer, read

SAME = 0.5  # points of recall; figures that the paper calls equal differ by less
# lost fractions of the sum of recalls; the paper's hard and soft codes lose more on COCO
MUCH = 0.5
LITTLE = 0.2
RECALLS = 6
LEVEL = 0.05
SPARSEST = 0.99
HARD = (
    "No context",
    "With context",
    "No cont., no stop-words",
    "With cont., no stop-words",
    "No cont., no stop-words (inference)",
)
COLUMNS = (
    "claim",
    "data",
    "direction",
    "verdict",
    "difference",
    "error",
    "holm",
    "figures",
    "paper",
    "reading",
)
HELD = "held"
NOT = "not held"
UNDECIDED = "undecided"
TWO = "the paper is inconsistent here"
Row = Mapping[str, str]


class Evidence(NamedTuple):
    """Difference with its error. ``supported`` is the number of points by which the claim is
    supported, or refuted if negative. ``tolerant`` claims hold unless they are refuted."""

    difference: float
    error: float
    supported: float
    figures: str
    tolerant: bool = False
    paper: str = ""

    @property
    def p(self) -> float:
        """Return the probability that a difference at least as large occurs by chance."""
        return float(2 * norm.sf(abs(self.supported) / max(self.error, 1e-9)))

    def verdict(self, p: float) -> str:
        """Return the verdict for a corrected p-value."""
        if p >= LEVEL:
            return HELD if self.tolerant else UNDECIDED
        return HELD if self.supported > 0 else NOT


class Source:
    """Rows of ``table1.py``, or rows of ``sparsity_recall.py`` in one direction. Raises KeyError
    for missing rows."""

    def __init__(self, rows: Rows, direction: str) -> None:
        self.name = rows.name
        self.direction = direction
        key = ("model", "minus") if direction == "both" else ("code", "chain", "sparsity")
        mine = [row for row in rows.table if row.get("direction", "both") == direction]
        self.rows = {tuple(row[name] for name in key): row for row in mine}

    def total(self, model: str, minus: str = "") -> tuple[float, float]:
        """Return the sum of six recalls, or the difference of two such sums, and its error."""
        row = self.rows[model, minus]
        return float(row["sum"]), float(row["sum +-"])

    def at(self, code: str, chain: str, sparsity: float, rm: int = 1) -> tuple[float, float]:
        """Return R@10 and its error."""
        row = self.rows[code, chain, str(float(sparsity))]
        return float(row[f"Rm={rm}"]), float(row[f"Rm={rm} +-"])

    def paper(self, one: str, other: str) -> str:
        """Return the paper's own differences."""
        sums = []
        for data in ("coco", "flickr30k"):
            cells = [
                self.rows[one, other][f"paper {data} {d} R@{k}"]
                for d in ("image", "sentence")
                for k in (1, 5, 10)
            ]
            sums += [f"{data} {sum(map(float, cells)):+.1f}"] if all(cells) else []
        return ", ".join(sums)


Judge = Callable[[Source], Evidence]


def compare_recalls(
    one: str,
    other: str,
    support: Callable[[float, float], float],
    *,
    tolerant: bool,
) -> Judge:
    """Judge two models by ``support``, a function of their difference and the first model's sum."""

    def judge(table: Source) -> Evidence:
        difference, error = table.total(one, other)
        figures = f"{one} {table.total(one)[0]:.1f}; {other} {table.total(other)[0]:.1f}"
        supported = support(difference, table.total(one)[0])
        return Evidence(
            difference,
            error,
            supported,
            figures,
            tolerant,
            table.paper(one, other),
        )

    return judge


def same(one: str, other: str) -> Judge:
    """Judge the claim that two models are alike."""
    return compare_recalls(
        one,
        other,
        lambda difference, _: RECALLS * SAME - abs(difference),
        tolerant=True,
    )


def more(one: str, other: str) -> Judge:
    """Judge the claim that the first of two models is better."""
    return compare_recalls(one, other, lambda difference, _: difference, tolerant=False)


def loses(model: str, least: float, most: float) -> Judge:
    """Judge the claim that a model loses a fraction between ``least`` and ``most`` of the vectors'
    sum of recalls."""
    return compare_recalls(
        "TERN",
        model,
        lambda d, whole: min(d - least * whole, most * whole - d),
        tolerant=False,
    )


def worst(model: str, others: Sequence[str]) -> Judge:
    """Judge the claim that a model is worse than all other models, by the model nearest to it."""
    return lambda table: more(min(others, key=lambda other: table.total(other, model)[0]), model)(
        table,
    )


def curves(
    first: tuple[str, str],
    second: tuple[str, str],
    *,
    alike: bool = False,
    rm: int = 1,
) -> Judge:
    """Judge whether the first of two codes is better, or both are alike, at their highest common
    sparsity."""

    def judge(source: Source) -> Evidence:
        chain = " minus ".join(dict.fromkeys((first[1], second[1])))
        difference, error = source.at(f"{first[0]} minus {second[0]}", chain, SPARSEST, rm)
        figures = "; ".join(
            f"{' '.join(code)} {source.at(*code, SPARSEST, rm)[0]:.1f}" for code in (first, second)
        )
        return Evidence(
            difference,
            error,
            SAME - abs(difference) if alike else difference,
            figures,
            alike,
        )

    return judge


def loss_at(sparsity: float, *, alike: bool) -> Judge:
    """Judge whether scalar quantisation loses no recall (``alike``) or some recall when terms are
        dropped.

    c-ReLU itself sets half of the components to zero, so the code is compared with the code of all
    terms rather than with dense vectors. The error is an upper bound: the sum of the errors of both
    codes' differences from the dense vectors.
    """

    def judge(source: Source) -> Evidence:
        (whole, one), (left, other) = (
            source.at("dense minus scalar", "plain", s) for s in (0, sparsity)
        )
        values = (source.at("scalar", "plain", s)[0] for s in (0, sparsity))
        figures = "scalar {:.1f} with all terms, {:.1f} at {:g}".format(*values, sparsity)
        lost = left - whole
        return Evidence(lost, one + other, SAME - lost if alike else lost, figures, alike)

    return judge


def catches_up(source: Source) -> Evidence:
    """Judge the gap between soft assignment and quantisation with 50 candidates re-ranked per
    hit."""
    gaps = {
        rm: source.at("scalar minus soft sum", "plain minus with context", SPARSEST, rm)
        for rm in (1, 10, 50)
    }
    figures = ", ".join(f"{gap:+.1f} at Rm={rm}" for rm, (gap, _) in gaps.items())
    return Evidence(
        *gaps[50],
        2 * SAME - gaps[50][0],
        f"scalar minus soft {figures}",
        tolerant=True,
    )


RANKS = "c-ReLU; top-z, then ranks among what is kept (the authors' package)"
LEVELS = "c-ReLU; top-z, then floor(1000 v)"
RANKS_FIRST = "c-ReLU; ranks of all 2d components, then top-z"
LEVELS_FIRST = "c-ReLU; floor(1000 v), then top-z"
SHIFTED = "c-ReLU of both signs plus a constant, without top-z"
NEAREST = "nearest centroid; items in context"
INVERSE = "1 / (1 + D) to all centroids; items in context"
SIGNED = "1 / (1 - D) with its sign, as the text prints it"
SPARSE = "1 / (1 + D), each concept keeps its z nearest; items in context"
SIGN = ", 1/(1-D) with its sign"
ALIKE = "Sum and maximum are alike"
SOFT = ("soft sum", "with context")
MAX = ("soft max", "with context")
FREE = "no context"

CLAIMS: tuple[tuple[str, str, Judge], ...] = (
    ("Unsparsified, deep permutation loses nothing.", RANKS, same("TERN", "Deep Permutation")),
    (
        "Unsparsified, scalar quantisation loses nothing.",
        LEVELS,
        same("TERN", "Scalar Quantization"),
    ),
    (
        "Unsparsified, deep permutation of the printed order loses nothing.",
        RANKS_FIRST,
        same("TERN", "Deep Permutation, printed order"),
    ),
    (
        "Unsparsified, deep permutation without c-ReLU loses nothing.",
        "signed; ranks of all d components",
        same("TERN", "Deep Permutation, without c-ReLU"),
    ),
    (
        "Unsparsified, scalar quantisation of the printed order loses nothing.",
        LEVELS_FIRST,
        same("TERN", "Scalar Quantization, printed order"),
    ),
    (
        "Unsparsified, scalar quantisation without c-ReLU loses nothing.",
        "signed; floor(1000 v)",
        same("TERN", "Scalar Quantization, without c-ReLU"),
    ),
    (
        "Ours: shifted, deep permutation of eight rotations loses nothing.",
        f"{SHIFTED}; ranks",
        same("TERN", "Deep Permutation, shifted, rotated x 8"),
    ),
    (
        "Ours: shifted, scalar quantisation loses nothing.",
        f"{SHIFTED}; floor(10,000 v)",
        same("TERN", "Scalar Quantization, shifted"),
    ),
    (
        "Hard assignment loses much (more than half), with context.",
        NEAREST,
        loses("With context", MUCH, 1),
    ),
    (
        "Hard assignment loses much (more than half), without context.",
        NEAREST,
        loses("No context", MUCH, 1),
    ),
    (
        "Soft assignment loses little (less than a fifth), with context.",
        f"{INVERSE}; sum",
        loses("SUM-aggr W-cont.", -1, LITTLE),
    ),
    (
        "Soft assignment loses little (less than a fifth), without context.",
        f"{INVERSE}; sum",
        loses("SUM-aggr No-cont.", -1, LITTLE),
    ),
    (
        "Unsparsified, soft assignment is below the global features.",
        f"{INVERSE}; sum",
        more("TERN", "SUM-aggr W-cont."),
    ),
    ("Context helps hard assignment.", NEAREST, more("With context", "No context")),
    (
        "Context helps soft assignment by sum.",
        f"{INVERSE}; sum",
        more("SUM-aggr W-cont.", "SUM-aggr No-cont."),
    ),
    (
        "Context helps soft assignment by maximum.",
        f"{INVERSE}; maximum",
        more("MAX-aggr W-cont.", "MAX-aggr No-cont."),
    ),
    (
        "Stop-words help where codebooks are clustered, with context.",
        NEAREST,
        more("With context", "With cont., no stop-words"),
    ),
    (
        "Stop-words help where codebooks are clustered, without context.",
        NEAREST,
        more("No context", "No cont., no stop-words"),
    ),
    (
        "Stop-words help where codebooks are clustered and where items are indexed, without "
        "context.",
        NEAREST,
        more("No context", "No cont., no stop-words (inference)"),
    ),
    (
        "The English dictionary is the worst codebook.",
        f"{NEAREST}; centroids are means of words out of context",
        worst("English dict.", HARD),
    ),
    (f"{ALIKE}, with context.", INVERSE, same("SUM-aggr W-cont.", "MAX-aggr W-cont.")),
    (
        f"{ALIKE}, with context{SIGN}.",
        SIGNED,
        same(f"SUM-aggr W-cont.{SIGN}", f"MAX-aggr W-cont.{SIGN}"),
    ),
    (f"{ALIKE}, without context.", INVERSE, same("SUM-aggr No-cont.", "MAX-aggr No-cont.")),
    (f"{ALIKE} at sparsity 0.99.", SPARSE, curves(SOFT, MAX, alike=True)),
    (
        "Recall stays until sparsity is massive: at 0.75 scalar quantisation has lost nothing.",
        LEVELS,
        loss_at(0.75, alike=True),
    ),
    (
        "Massive sparsity costs recall: at 0.9 scalar quantisation has lost some.",
        LEVELS,
        loss_at(0.9, alike=False),
    ),
    (
        "Scalar quantisation stands strong sparsity (0.99) better than deep permutation.",
        f"{LEVELS}; {RANKS}",
        curves(("scalar", "plain"), ("permutation", "plain")),
    ),
    (
        "Scalar quantisation stands strong sparsity (0.99) better than deep permutation, both of "
        "the printed order.",
        f"{LEVELS_FIRST}; {RANKS_FIRST}",
        curves(("scalar", "printed order"), ("permutation", "printed order")),
    ),
    (
        "Scalar quantisation stands strong sparsity (0.99) better than deep permutation with an "
        "offset.",
        f"{LEVELS}; ranks plus z",
        curves(("scalar", "plain"), ("permutation", "offset")),
    ),
    (
        "Context helps soft assignment by sum at sparsity 0.99.",
        f"{SPARSE}; sum",
        curves(SOFT, (SOFT[0], FREE)),
    ),
    (
        "Context helps soft assignment by maximum at sparsity 0.99.",
        f"{SPARSE}; maximum",
        curves(MAX, (MAX[0], FREE)),
    ),
    (
        "At sparsity 0.99 soft assignment nearly catches up with scalar quantisation as Rm grows "
        "to 50.",
        f"{LEVELS}; {SPARSE}; sum",
        catches_up,
    ),
)
"""The claims, each with the reading of the codes that the verdict is based on, and a function that
returns the verdict."""


def verdicts(files: Sequence[Rows]) -> Iterator[list[object]]:
    """Yield the verdict on each claim from each file that contains the necessary rows, and lines
    for claims whose readings lead to different verdicts."""
    sides = {"table1.py": ("both",), "sparsity_recall.py": ("text to image", "image to text")}
    sources = [
        Source(file, side) for file in files for side in sides.get(str(file.head["script"]), ())
    ]
    found: list[tuple[str, str, Source, Evidence]] = []
    for claim, reading, judge in CLAIMS:
        for source in sources:
            try:
                found.append((claim, reading, source, judge(source)))
            except KeyError:  # rows from the other script, or rows without these codes
                continue
    # Holm's correction (1979) accounts for testing many claims together.
    values = np.array([evidence.p for *_, evidence in found])
    order = np.argsort(values, kind="stable")
    times = np.arange(len(values), 0, -1)
    corrected = np.empty(len(values))
    corrected[order] = np.maximum.accumulate(np.minimum(1, values[order] * times))
    by_verdict: dict[str, set[str]] = {}
    for (claim, reading, source, evidence), p in zip(found, corrected, strict=True):
        verdict = evidence.verdict(p)
        if claim.startswith(ALIKE):
            by_verdict.setdefault(verdict, set()).add(reading)
        yield [
            claim,
            source.name,
            source.direction,
            verdict,
            f"{evidence.difference:.2f}",
            f"{evidence.error:.2f}",
            f"{p:.4f}",
            evidence.figures,
            evidence.paper,
            reading,
        ]
    if len(by_verdict) > 1:
        told = "; ".join(
            f"{verdict}: {' and '.join(sorted(readings))}"
            for verdict, readings in by_verdict.items()
        )
        apart = max(
            (e for claim, *_, e in found if claim.startswith(ALIKE)),
            key=lambda e: abs(e.difference),
        )
        largest = f"{apart.difference:.2f}", f"{apart.error:.2f}"
        claim = f"{ALIKE}, in the text, the table and the figure (the largest difference)."
        yield [claim, "", "", TWO, *largest, None, apart.figures, None, told]


@click.command()
@click.argument(
    "files",
    metavar="ROWS...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, path_type=Path),
)
def main(files: tuple[Path, ...]) -> None:
    """Test the paper's claims on the figures in ROWS."""
    with Writer(sys.stdout, __file__, {"rows": files}, COLUMNS) as out:
        for row in verdicts([table for table in map(read, files) if table.is_complete]):
            out.write(*row)


if __name__ == "__main__":
    main()
