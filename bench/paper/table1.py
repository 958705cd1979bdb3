"""Reproduce Table I of the Bag of Concepts paper: Recall@1, 5, 10 of every representation in both
directions.

    python -m bench.paper.table1 DEV --fit TRAIN

The script searches DEV, and builds codebooks from TRAIN. The rows without context need the concepts
of single regions and words, extracted from the same photographs by the encoder
``tern:FOLDER?alone`` (a subset of TRAIN is sufficient). "No context" refers to the codebook only.
Items are encoded with context, as in section IV of the paper ("during the clustering phase"). Items
are ranked by exact products of the integer term frequencies. The rows have unit length except for
rounding, so the products are cosines.

The section "Other readings" contains the codes of the global vector in the printed order, which
quantises before components are dropped, and without c-ReLU. Without c-ReLU, scalar quantisation
produces negative numbers, which cannot be term frequencies, so this row is the cosine of the
vectors floor(1000 v).

A row of a codebook made by k-means is the mean over ``--seeds`` codebooks with different seeds, and
"seeds +-" is the standard deviation of the sum over these codebooks.

A row contains the six recalls in percent, their sum and its standard error over pictures, and the
paper's figures on COCO (5,000 pictures) and Flickr30K (10,000), which are based on other data and
another TERN. A row with another model under "minus" contains differences on the same queries, and
the paper's differences.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from bench.options import CLUSTERS, CODEBOOKS, PATH
from bench.paper import variants
from bench.paper.codebooks import Codebooks
from bench.paper.ranking import DIRECTIONS, Gallery, standard_error
from bench.report.rows import Writer
from boc.codecs import DeepPermutation, ScalarQuantizer, SurrogateCodec, UnitNorm, global_code
from boc.codecs.bag_of_concepts import HardAssignment, SoftAssignment
from boc.codecs.presets import CONCEPT_SCALE
from boc.evaluate.metrics import CUTOFFS, ranks
from boc.inputs.features import FeatureFile
from boc.types import MODALITIES, Embeddings, Modality, TermMatrix
from boc.vectors import unit_rows

GLOBAL = "Global features"
READINGS = "Other readings of the global codes"
HARD = "Bag of Concepts, hard assignment"
SOFT = "Bag of Concepts, soft assignment"
MORE = "Beyond the paper"
PAIRS = "Differences"
FIT = 2000  # number of global vectors per modality for fitting a code
RETRIEVED = ("image", "sentence")
COLUMNS = (
    "section",
    "model",
    "minus",
    *(f"{d} R@{k}" for d in RETRIEVED for k in CUTOFFS),
    "sum",
    "sum +-",
    "seeds +-",
    *(
        f"paper {data} {d} R@{k}"
        for data in ("coco", "flickr30k")
        for d in RETRIEVED
        for k in CUTOFFS
    ),
)
PAPER = {
    "TERN": (28.7, 59.7, 72.7, 38.4, 69.5, 81.3, 13.1, 30.1, 39.5, 17.0, 37.1, 47.8),
    "Deep Permutation": (28.7, 59.8, 72.7, 38.5, 69.6, 81.3, 13.2, 30.1, 39.5, 17.1, 37.1, 47.9),
    "Scalar Quantization": (28.7, 59.8, 72.7, 38.4, 69.6, 81.3, 13.1, 30.1, 39.5, 17.0, 37.1, 48.0),
    "No context": (3.5, 14.0, 24.2, 4.0, 14.7, 23.1, 0.8, 2.9, 4.9, 1.1, 3.9, 6.1),
    "With context": (7.5, 29.9, 43.6, 8.3, 27.3, 41.4, 1.4, 5.5, 9.3, 1.8, 6.2, 9.5),
    "No cont., no stop-words": (3.4, 13.6, 23.6, 4.0, 14.2, 22.3, 0.8, 2.9, 4.9, 1.1, 3.6, 5.8),
    "With cont., no stop-words": (6.7, 27.5, 42.0, 6.9, 25.0, 39.0, 1.3, 5.1, 8.8, 1.6, 5.8, 9.1),
    "No cont., no stop-words (inference)": (
        3.1,
        12.8,
        21.8,
        3.7,
        12.9,
        20.9,
        0.8,
        2.7,
        4.5,
        0.9,
        3.0,
        5.0,
    ),
    "English dict.": (2.7, 9.4, 16.4, 2.8, 10.0, 16.5, 1.1, 4.2, 7.1, 1.3, 4.7, 7.7),
    "MAX-aggr No-cont.": (25.4, 54.2, 67.4, 32.0, 63.6, 76.2, 10.1, 24.1, 32.6, 13.2, 30.3, 40.5),
    "SUM-aggr No-cont.": (25.7, 54.5, 67.4, 32.7, 64.4, 77.0, 10.3, 24.7, 33.1, 14.1, 32.5, 42.5),
    "MAX-aggr W-cont.": (26.8, 57.0, 70.4, 35.1, 65.1, 77.9, 10.6, 25.5, 34.1, 14.1, 32.4, 42.3),
    "SUM-aggr W-cont.": (27.2, 57.4, 70.4, 34.9, 65.9, 78.4, 10.7, 25.8, 34.4, 14.6, 33.1, 43.5),
}
"""The figures of Table I: image retrieval and sentence retrieval on COCO, then on Flickr30K."""
DP = "Deep Permutation"
SQ = "Scalar Quantization"
PAPER |= {
    f"{model}, {how}": PAPER[model]
    for model, how in (
        (DP, "printed order"),
        (DP, "offset"),
        (DP, "without c-ReLU"),
        (SQ, "printed order"),
        (SQ, "without c-ReLU"),
    )
}
COMPARED = (
    ("TERN", "Deep Permutation"),
    ("TERN", "Scalar Quantization"),
    ("TERN", "Deep Permutation, printed order"),
    ("TERN", "Deep Permutation, offset"),
    ("TERN", "Deep Permutation, without c-ReLU"),
    ("TERN", "Scalar Quantization, printed order"),
    ("TERN", "Scalar Quantization, without c-ReLU"),
    ("TERN", "Deep Permutation, shifted, rotated x 8"),
    ("TERN", "Scalar Quantization, shifted"),
    ("TERN", "With context"),
    ("TERN", "No context"),
    ("TERN", "SUM-aggr W-cont."),
    ("TERN", "SUM-aggr No-cont."),
    ("With context", "No context"),
    ("SUM-aggr W-cont.", "SUM-aggr No-cont."),
    ("MAX-aggr W-cont.", "MAX-aggr No-cont."),
    ("With context", "With cont., no stop-words"),
    ("No context", "No cont., no stop-words"),
    ("No context", "No cont., no stop-words (inference)"),
    ("With context", "English dict."),
    ("No context", "English dict."),
    ("With cont., no stop-words", "English dict."),
    ("No cont., no stop-words", "English dict."),
    ("No cont., no stop-words (inference)", "English dict."),
    ("SUM-aggr W-cont.", "MAX-aggr W-cont."),
    ("SUM-aggr No-cont.", "MAX-aggr No-cont."),
    ("SUM-aggr W-cont., 1/(1-D) with its sign", "MAX-aggr W-cont., 1/(1-D) with its sign"),
)
"""The pairs to compare. If the paper states which model of a pair is better, the better model comes
first."""


@dataclass(frozen=True)
class Line:
    """Table row for one model: the rank (from 0) of each query's first right item with each
    codebook, as arrays (codebooks, queries), for image and for sentence retrieval."""

    section: str
    model: str
    ranks: dict[Modality, NDArray[np.int64]]

    def hits(self) -> list[NDArray[np.int8]]:
        """Return an array (codebooks, queries) for each of the six recalls, with 1 for each query
        that finds a right item and 0 for each other query."""
        return [
            (self.ranks[asking] < k).astype(np.int8)
            for asking in ("text", "image")
            for k in CUTOFFS
        ]


class Table:
    """Table rows for the items in one feature file."""

    def __init__(self, file: FeatureFile) -> None:
        self.gallery = Gallery(file)
        self.of = self.gallery.of

    def dense(self, section: str, model: str) -> Line:
        """Return the row for global vectors."""
        return self._line(section, model, lambda m, _: self.of[m].vectors)

    def code(self, section: str, model: str, codec: SurrogateCodec) -> Line:
        """Return the row for a fitted codec."""

        def encode(modality: Modality, side: str) -> NDArray[np.float64]:
            terms: TermMatrix = getattr(codec, f"encode_{side}")(self.of[modality])
            # Sums of products are exact in float64.
            rows: NDArray[np.float64] = terms.toarray().astype(np.float64)
            return rows

        return self._line(section, model, encode)

    def signed_floor(self, section: str, model: str, scale: float = 1000) -> Line:
        """Return the row for floor(scale * v) compared by cosine, including negative numbers."""
        return self._line(
            section,
            model,
            lambda m, _: unit_rows(np.floor(scale * self.of[m].vectors.astype(np.float64))),
        )

    def cells(self, line: Line, minus: Line | None = None) -> list[object]:
        """Return the cells of a row, or of its difference from another row."""
        groups = self.gallery.groups
        values = line.hits()
        section = line.section
        other = None
        if minus is not None:
            pairs = zip(line.hits(), minus.hits(), strict=True)
            values = [more.mean(axis=0) - less.mean(axis=0) for more, less in pairs]
            section = PAIRS
            other = minus.model
        asking = [groups["text"]] * len(CUTOFFS) + [groups["image"]] * len(CUTOFFS)
        tables = [np.atleast_2d(table) for table in values]
        sums = 100 * np.sum([table.mean(axis=1) for table in tables], axis=0)
        columns = [table.mean(axis=0) for table in tables]
        recalls = [100 * float(column.mean()) for column in columns]
        error = standard_error(list(zip(columns, asking, strict=True)))
        texts = [f"{value:.2f}" for value in (*recalls, sum(recalls), error)]
        spread = f"{np.std(sums, ddof=1):.2f}" if len(sums) > 1 else None
        return [section, line.model, other, *texts, spread, *paper_cells(line.model, other)]

    def _line(
        self,
        section: str,
        model: str,
        encode: Callable[[Modality, str], NDArray[Any]],
    ) -> Line:
        positions: dict[Modality, NDArray[np.int64]] = {}
        for asking, target in DIRECTIONS:
            scores = encode(asking, "queries") @ encode(target, "documents").T
            found = ranks(scores, self.gallery.groups[asking], self.gallery.groups[target])
            positions[asking] = found[None]
        return Line(section, model, positions)


def paper_cells(model: str, minus: str | None) -> list[object]:
    """Return the paper's figures for a model, or the differences between two models. Cells without
    a figure are empty."""
    if model not in PAPER or (minus is not None and minus not in PAPER):
        return [None] * 12
    if minus is None:
        return list(PAPER[model])
    return [f"{a - b:.1f}" for a, b in zip(PAPER[model], PAPER[minus], strict=True)]


def lines(
    dev: Table,
    alone_dev: Table | None,
    train: Sequence[Embeddings],
    books: Codebooks,
    seeds: int,
) -> Iterator[Line]:
    """Yield the table lines."""

    def row(section: str, model: str, codec: SurrogateCodec) -> Line:
        return dev.code(section, model, codec.fit(*train))

    def concept_row(
        section: str,
        model: str,
        book: str,
        table: Table = dev,
        scale: float = CONCEPT_SCALE,
        kind: type[HardAssignment | SoftAssignment] | None = None,
        **options: Any,
    ) -> Line:
        made = kind or (HardAssignment if section == HARD else SoftAssignment)
        found = []
        for seed in range(1 if book.endswith("words") else seeds):
            step = made.from_codebook(books[f"{book}.{seed}" if seed else book], **options)
            codec = SurrogateCodec([step, UnitNorm(), ScalarQuantizer(scale)])
            found.append(table.code(section, model, codec.fit(*table.of.values())).ranks)
        return Line(
            section,
            model,
            {asking: np.concatenate([each[asking] for each in found]) for asking in found[0]},
        )

    yield dev.dense(GLOBAL, "TERN")
    yield row(GLOBAL, "Deep Permutation", global_code("permutation", plain=True))
    yield row(GLOBAL, "Scalar Quantization", global_code("scalar", plain=True))
    yield row(READINGS, "Deep Permutation, printed order", variants.printed_order("permutation"))
    yield row(READINGS, "Deep Permutation, offset", variants.offset_ranks())
    yield row(READINGS, "Deep Permutation, without c-ReLU", SurrogateCodec([DeepPermutation()]))
    yield row(READINGS, "Scalar Quantization, printed order", variants.printed_order("scalar"))
    yield row(READINGS, "Scalar Quantization, authors' package", variants.authors_scalar())
    yield dev.signed_floor(READINGS, "Scalar Quantization, without c-ReLU")
    free = "no" in books.contexts
    if free:
        yield concept_row(HARD, "No context", "no")
    yield concept_row(HARD, "With context", "with")
    if free:
        yield concept_row(HARD, "No cont., no stop-words", "no-stop")
    yield concept_row(HARD, "With cont., no stop-words", "with-stop")
    if free:
        yield concept_row(
            HARD,
            "No cont., no stop-words (inference)",
            "no-stop",
            kind=variants.WithoutStopwords,
        )
        yield concept_row(HARD, "English dict.", "no-words")
        yield concept_row(SOFT, "MAX-aggr No-cont.", "no", aggregate="max")
        yield concept_row(SOFT, "SUM-aggr No-cont.", "no")
    yield concept_row(SOFT, "MAX-aggr W-cont.", "with", aggregate="max")
    yield concept_row(SOFT, "SUM-aggr W-cont.", "with")
    for aggregate in ("sum", "max"):
        model = f"{aggregate.upper()}-aggr W-cont., 1/(1-D) with its sign"
        yield concept_row(MORE, model, "with", aggregate=aggregate, kind=variants.PrintedSimilarity)
    yield concept_row(MORE, "SUM-aggr W-cont., scale 1,000", "with", scale=1000)
    yield row(
        MORE,
        "Deep Permutation, shifted, rotated x 8",
        variants.shifted_crelu("permutation", rotations=8),
    )
    yield row(MORE, "Scalar Quantization, shifted", variants.shifted_crelu("scalar"))
    model = "hard, With cont., no stop-words (inference)"
    yield concept_row(MORE, model, "with-stop", kind=variants.WithoutStopwords)
    yield concept_row(MORE, "hard, English dict. with context", "with-words", kind=HardAssignment)
    if free and alone_dev is not None:
        without = "hard, the same without stop-words"
        yield concept_row(
            MORE,
            "hard, No context in codebook and items",
            "no",
            alone_dev,
            kind=HardAssignment,
        )
        yield concept_row(MORE, without, "no-stop", alone_dev, kind=variants.WithoutStopwords)
        yield concept_row(MORE, "SUM-aggr, No context in codebook and items", "no", alone_dev)
        yield concept_row(
            MORE,
            "hard, English dict., no context in items",
            "no-words",
            alone_dev,
            kind=HardAssignment,
        )


@click.command()
@click.argument("dev", type=PATH)
@click.option(
    "--fit",
    "train",
    required=True,
    type=PATH,
    help="Embeddings to learn from.",
)
@click.option(
    "--alone-train",
    type=PATH,
    help="Embeddings of all or some of these items by the encoder FOLDER?alone.",
)
@click.option(
    "--alone-dev",
    type=PATH,
    help="Embeddings of DEV by the encoder FOLDER?alone.",
)
@CLUSTERS
@CODEBOOKS
@click.option("--seeds", default=3, show_default=True, help="Number of codebooks per row.")
def main(
    dev: Path,
    train: Path,
    alone_train: Path | None,
    alone_dev: Path | None,
    clusters: int,
    codebooks: Path | None,
    seeds: int,
) -> None:
    """Print Table I of the Bag of Concepts paper on the embeddings in DEV."""
    with ExitStack() as stack:
        gallery, fit = (stack.enter_context(FeatureFile(path)) for path in (dev, train))
        alone, alone_fit = (
            stack.enter_context(FeatureFile(p)) if p else None for p in (alone_dev, alone_train)
        )
        books = Codebooks(fit, alone_fit, codebooks, clusters)
        sample = []
        for modality in MODALITIES:
            step = max(1, fit.count(modality) // FIT)
            sample.append(Embeddings(modality, fit.vectors(modality)[::step]))
        table = Table(gallery)
        out = stack.enter_context(
            Writer(sys.stdout, __file__, click.get_current_context().params, COLUMNS),
        )
        lines_by_model = {}
        for line in lines(table, Table(alone) if alone else None, sample, books, seeds):
            click.echo(line.model, err=True)
            out.write(*table.cells(line))
            lines_by_model[line.model] = line
        for one, other in COMPARED:
            if one in lines_by_model and other in lines_by_model:
                out.write(*table.cells(lines_by_model[one], lines_by_model[other]))


if __name__ == "__main__":
    main()
