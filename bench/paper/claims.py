"""Judges which claims of the Bag of Concepts paper hold on these data, with the figures that decide.

    python -m bench.paper.claims ROWS...

ROWS are files that ``table1.py`` and ``sparsity_recall.py`` wrote; a claim is judged once for each that has what it
needs. One row per claim: held, not held, tie, or cannot be checked here; the difference that decides, in points of
percent (of table1: of the sum of the six recalls), and its standard error; the figures in words; the paper's own
figures; and the reading of the codes that the verdict rests on.

A difference is one where it is more than twice its standard error; below that it is a tie. Claims that two codes are
alike hold if they differ by no more than twice the error, or than SAME points a recall.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from bench.report.rows import Rows, Writer, read

SAME = 0.5  # points of one recall; the paper's own figures differ by less where it calls them equal
MUCH, LITTLE = 0.5, 0.2  # lost parts of the sum of recalls; hard and soft codes of the paper lie beyond them on COCO
ERRORS = 2
RECALLS = 6
SPARSEST = 0.99
STRONG = (0.9, 0.95, 0.98, SPARSEST)
DEPTHS = (1, 2, 5, 10, 20, 50)
HARD = (
    "No context", "With context", "No cont., no stop-words", "With cont., no stop-words",
    "No cont., no stop-words (inference)",
)  # fmt: skip
COLUMNS = ("claim", "data", "direction", "verdict", "difference", "error", "figures", "paper", "reading")
HELD, NOT, TIE, UNKNOWN = "held", "not held", "tie", "cannot be checked here"

Row = Mapping[str, str]


@dataclass(frozen=True)
class Judgement:
    """What decides a claim on one file of rows."""

    verdict: str
    difference: float
    error: float
    figures: str
    direction: str = "both"
    paper: str = ""


def alike(difference: float, error: float, points: float) -> str:
    """Whether the two are as good as each other."""
    return HELD if abs(difference) <= max(ERRORS * error, points) else NOT


def better(difference: float, error: float) -> str:
    """Whether the first is better than the second."""
    if abs(difference) <= ERRORS * error:
        return TIE
    return HELD if difference > 0 else NOT


class Table:
    """Rows of ``table1.py``; LookupError for a model that is not there."""

    def __init__(self, table: Sequence[Row]) -> None:
        self.rows = {(row["model"], row["minus"]): row for row in table}

    def total(self, model: str, minus: str = "") -> tuple[float, float]:
        """The sum of six recalls, or the difference of two such sums, and its standard error."""
        row = self.rows[model, minus]
        return float(row["sum"]), float(row["sum +-"])

    def told(self, *models: str) -> str:
        return "; ".join(f"{model} {self.total(model)[0]:.1f}" for model in models)

    def paper(self, one: str, other: str | None = None) -> str:
        """The paper's sums, or differences of them."""
        row = self.rows[one, other or ""]
        sums = []
        for data in ("coco", "flickr30k"):
            cells = [row[f"paper {data} {d} R@{k}"] for d in ("image", "sentence") for k in (1, 5, 10)]
            if all(cells):
                sums.append(f"{data} {sum(map(float, cells)):{'.1f' if other is None else '+.1f'}}")
        return ", ".join(sums)


Judge = Callable[[Table], Judgement]


def same(one: str, other: str) -> Judge:
    """The claim that two models are alike."""

    def judge(table: Table) -> Judgement:
        difference, error = table.total(one, other)
        verdict = alike(difference, error, RECALLS * SAME)
        return Judgement(verdict, difference, error, table.told(one, other), paper=table.paper(one, other))

    return judge


def more(one: str, other: str) -> Judge:
    """The claim that the first of two models is better."""

    def judge(table: Table) -> Judgement:
        difference, error = table.total(one, other)
        figures = table.told(one, other)
        return Judgement(better(difference, error), difference, error, figures, paper=table.paper(one, other))

    return judge


def loses(model: str, least: float, most: float) -> Judge:
    """The claim that a model loses between these parts of what the vectors have."""

    def judge(table: Table) -> Judgement:
        difference, error = table.total("TERN", model)
        whole, _ = table.total("TERN")
        lost, blur = difference / whole, ERRORS * error / whole
        verdict = HELD if least <= lost <= most else TIE if least - blur <= lost <= most + blur else NOT
        figures = f"{table.told('TERN', model)}: {100 * lost:.0f} % lost"
        return Judgement(verdict, difference, error, figures, paper=table.paper("TERN", model))

    return judge


def worst(model: str, others: Sequence[str]) -> Judge:
    """The claim that a model is worse than each of the others: the nearest of them decides."""

    def judge(table: Table) -> Judgement:
        nearest = min(others, key=lambda other: table.total(other, model)[0])
        difference, error = table.total(nearest, model)
        figures = table.told(model, *others)
        return Judgement(better(difference, error), difference, error, figures, paper=table.paper(nearest, model))

    return judge


RANKS = "c-ReLU; top-z, then ranks among what is kept"
RANKS_FIRST = "c-ReLU; ranks of all 2d components, then top-z"
LEVELS = "c-ReLU; top-z, then floor(1000 v)"
LEVELS_FIRST = "c-ReLU; floor(1000 v), then top-z"
SHIFTED = "c-ReLU of both signs plus a constant, without top-z"
NEAREST = "nearest centroid; items in context"
INVERSE = "1 / (1 + D) to all centroids; items in context"
SUM, MAXIMUM = f"{INVERSE}; sum", f"{INVERSE}; maximum"
SPARSE = "1 / (1 + D), each concept keeps its z nearest; items in context"

Claim = tuple[str, str, Callable[..., Judgement]]
"""What is claimed, the reading of the codes that the verdict rests on, and what judges."""

TABLE: tuple[Claim, ...] = (
    ("Unsparsified, deep permutation loses nothing.", RANKS, same("TERN", "Deep Permutation")),
    ("Unsparsified, scalar quantisation loses nothing.", LEVELS, same("TERN", "Scalar Quantization")),
    ("Unsparsified, deep permutation of the printed order loses nothing.", RANKS_FIRST,
     same("TERN", "Deep Permutation, printed order")),
    ("Unsparsified, deep permutation without c-ReLU loses nothing.", "signed; ranks of all d components",
     same("TERN", "Deep Permutation, without c-ReLU")),
    ("Unsparsified, scalar quantisation of the printed order loses nothing.", LEVELS_FIRST,
     same("TERN", "Scalar Quantization, printed order")),
    ("Unsparsified, scalar quantisation without c-ReLU loses nothing.", "signed; floor(1000 v)",
     same("TERN", "Scalar Quantization, without c-ReLU")),
    ("Ours: shifted, deep permutation of eight rotations loses nothing.", f"{SHIFTED}; ranks",
     same("TERN", "Deep Permutation, shifted, rotated x 8")),
    ("Ours: shifted, scalar quantisation loses nothing.", f"{SHIFTED}; floor(10,000 v)",
     same("TERN", "Scalar Quantization, shifted")),
    ("Hard assignment loses much (more than half), with context.", NEAREST, loses("With context", MUCH, 1)),
    ("Hard assignment loses much (more than half), without context.", NEAREST, loses("No context", MUCH, 1)),
    ("Soft assignment loses little (less than a fifth), with context.", SUM, loses("SUM-aggr W-cont.", -1, LITTLE)),
    ("Soft assignment loses little (less than a fifth), without context.", SUM,
     loses("SUM-aggr No-cont.", -1, LITTLE)),
    ("Unsparsified, soft assignment is below the global features.", SUM, more("TERN", "SUM-aggr W-cont.")),
    ("Context helps hard assignment.", NEAREST, more("With context", "No context")),
    ("Context helps soft assignment by sum.", SUM, more("SUM-aggr W-cont.", "SUM-aggr No-cont.")),
    ("Context helps soft assignment by maximum.", MAXIMUM, more("MAX-aggr W-cont.", "MAX-aggr No-cont.")),
    ("Stop-words help where codebooks are clustered, with context.", NEAREST,
     more("With context", "With cont., no stop-words")),
    ("Stop-words help where codebooks are clustered, without context.", NEAREST,
     more("No context", "No cont., no stop-words")),
    ("Stop-words help where codebooks are clustered and where items are indexed, without context.", NEAREST,
     more("No context", "No cont., no stop-words (inference)")),
    ("The English dictionary is the worst codebook.", f"{NEAREST}; centroids are means of words out of context",
     worst("English dict.", HARD)),
    ("Sum and maximum are alike, with context.", INVERSE, same("SUM-aggr W-cont.", "MAX-aggr W-cont.")),
    ("Sum and maximum are alike, without context.", INVERSE, same("SUM-aggr No-cont.", "MAX-aggr No-cont.")),
)  # fmt: skip


class Curves:
    """Rows of ``sparsity_recall.py`` in one direction; LookupError for one that is not there."""

    def __init__(self, table: Sequence[Row], direction: str) -> None:
        self.direction = direction
        self.rows = {
            (row["code"], row["chain"], float(row["sparsity"])): row for row in table if row["direction"] == direction
        }

    def at(self, code: str, chain: str, sparsity: float, rm: int = 1) -> tuple[float, float]:
        """R@10 and its standard error."""
        row = self.rows[code, chain, sparsity]
        return float(row[f"Rm={rm}"]), float(row[f"Rm={rm} +-"])

    def over(self, code: str, chain: str, sparsities: Sequence[float]) -> str:
        """R@10 at those sparsities that there are."""
        known = [s for s in sparsities if (code, chain, s) in self.rows]
        return ", ".join(f"{self.at(code, chain, s)[0]:.1f} at {s:g}" for s in known)


def resilient(scalar: str, permutation: str) -> Callable[[Curves], Judgement]:
    """The claim that quantisation beats permutation where sparsity is strongest, for these chains of the two; what they
    reach where it is less is told."""

    def judge(curves: Curves) -> Judgement:
        chain = " minus ".join(dict.fromkeys((scalar, permutation)))
        difference, error = curves.at("scalar minus permutation", chain, SPARSEST)
        codes = (("scalar", scalar), ("permutation", permutation))
        figures = "; ".join(f"{code} {curves.over(code, chain, (0, *STRONG))}" for code, chain in codes)
        return Judgement(better(difference, error), difference, error, figures, curves.direction)

    return judge


def retains(curves: Curves) -> Judgement:
    """Nothing is lost before sparsity is massive: the plain quantiser at half of the components decides."""
    difference, error = curves.at("dense minus scalar", "plain", 0.5)
    figures = f"dense {curves.rows['scalar', 'plain', 0.5]['dense']}; "
    figures += f"scalar {curves.over('scalar', 'plain', (0, 0.5, 0.75, *STRONG))}"
    return Judgement(alike(difference, error, SAME), difference, error, figures, curves.direction)


def context(aggregate: str) -> Callable[[Curves], Judgement]:
    """The claim that context helps soft assignment where it is sparse."""

    def judge(curves: Curves) -> Judgement:
        code = f"soft {aggregate}"
        difference, error = curves.at(f"{code} minus {code}", "with context minus no context", SPARSEST)
        figures = "; ".join(f"{chain} {curves.over(code, chain, STRONG)}" for chain in ("with context", "no context"))
        return Judgement(better(difference, error), difference, error, figures, curves.direction)

    return judge


def aggregates(curves: Curves) -> Judgement:
    """Sum against maximum where soft assignment is sparse."""
    difference, error = curves.at("soft sum minus soft max", "with context", SPARSEST)
    figures = "; ".join(f"{code} {curves.over(code, 'with context', STRONG)}" for code in ("soft sum", "soft max"))
    return Judgement(alike(difference, error, SAME), difference, error, figures, curves.direction)


def catches_up(curves: Curves) -> Judgement:
    """Whether what soft assignment lacks to quantisation all but vanishes as more candidates are re-ranked."""
    code, chain = "scalar minus soft sum", "plain minus with context"
    gaps = [curves.at(code, chain, SPARSEST, rm) for rm in DEPTHS]
    (first, _), (last, error) = gaps[0], gaps[-1]
    behind = last > max(ERRORS * error, 2 * SAME)
    verdict = NOT if behind else HELD
    gap = ", ".join(f"{value:+.1f} +- {of:.1f} at Rm={rm}" for rm, (value, of) in zip(DEPTHS, gaps, strict=True))
    figures = f"scalar minus soft {gap}"
    if first <= 0:
        figures += "; soft is not behind to begin with"
    return Judgement(verdict, last, error, figures, curves.direction)


CURVES: tuple[Claim, ...] = (
    ("Recall stays until sparsity is massive: half of the components are enough for scalar quantisation.", LEVELS,
     retains),
    ("Scalar quantisation stands strong sparsity (0.99) better than deep permutation.", f"{LEVELS}; {RANKS}",
     resilient("plain", "plain")),
    ("Scalar quantisation stands strong sparsity (0.99) better than deep permutation, both of the printed order.",
     f"{LEVELS_FIRST}; {RANKS_FIRST}", resilient("printed order", "printed order")),
    ("Scalar quantisation stands strong sparsity (0.99) better than deep permutation with an offset.",
     f"{LEVELS}; {RANKS}, plus z", resilient("plain", "offset")),
    ("Context helps soft assignment by sum at sparsity 0.99.", f"{SPARSE}; sum", context("sum")),
    ("Context helps soft assignment by maximum at sparsity 0.99.", f"{SPARSE}; maximum", context("max")),
    ("Sum and maximum are alike at sparsity 0.99.", SPARSE, aggregates),
    ("At sparsity 0.99 soft assignment nearly catches up with scalar quantisation as Rm grows to 50.",
     f"{LEVELS}; {SPARSE}; sum", catches_up),
)  # fmt: skip


def judged(files: Sequence[Rows]) -> Iterator[list[object]]:
    """Each claim on each file that can decide it; or that there is none."""
    tables = [(file.name, Table(file.table)) for file in files if file.head["script"] == "table1.py"]
    both = ("text to image", "image to text")
    curves = [
        (file.name, Curves(file.table, direction))
        for file in files
        if file.head["script"] == "sparsity_recall.py"
        for direction in both
    ]
    for claims, sources in ((TABLE, tables), (CURVES, curves)):
        for claim, reading, judge in claims:
            found = [row for name, source in sources for row in judgements(claim, name, judge, source)]
            missing: list[object] = [claim, None, None, UNKNOWN, None, None, "no row file has the rows it needs", None]
            yield from ([*row, reading] for row in found or [missing])


def judgements(
    claim: str, name: str, judge: Callable[..., Judgement], source: Table | Curves
) -> Iterator[list[object]]:
    """The row of a claim on one source, if that has what decides."""
    try:
        judgement = judge(source)
    except KeyError:
        return
    figures = [f"{value:.2f}" for value in (judgement.difference, judgement.error)]
    yield [claim, name, judgement.direction, judgement.verdict, *figures, judgement.figures, judgement.paper]


@click.command()
@click.argument("files", metavar="ROWS...", nargs=-1, required=True, type=click.Path(path_type=Path))
def main(files: tuple[Path, ...]) -> None:
    """Judge the claims of the paper by the figures in ROWS."""
    for path in files:
        if not path.exists():
            click.echo(f"{path}: no such file, so no claim is judged by it", err=True)
    tables = [read(path) for path in files if path.exists()]
    for file in tables:
        if not file.done:
            click.echo(f"{file.name}: its rows are not all there, so no claim is judged by it", err=True)
    known = [file for file in tables if file.done]
    with Writer(sys.stdout, __file__, {"rows": files}, COLUMNS) as out:
        for row in judged(known):
            out.write(*row)


if __name__ == "__main__":
    main()
