"""Table I of the Bag of Concepts paper: Recall@1, 5, 10 of every representation, in both directions.

DEV is searched, TRAIN is what codebooks are made of. The rows without context need the concepts of single regions and
words: the same photographs extracted by the encoder ``tern:FOLDER?alone`` (a part of TRAIN is enough). "No context"
is about the codebook: what is encoded with it keeps its context, as section IV of the paper has it ("during the
clustering phase"). Items are ranked by exact products of the whole-number term frequencies, whose rows have unit
length but for rounding: cosine. A Markdown table goes to stdout with the orderings that the paper reports, held or
not; rows go to a CSV file if asked.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc import codebook
from boc.codebook import Codebook
from boc.codecs import SurrogateCodec, global_code
from boc.codecs.concepts import concept_steps
from boc.evaluation import Recall, image_to_text_ranks, owners_of, text_to_image_ranks
from boc.features import FeatureFile, embeddings
from boc.types import MODALITIES, Embeddings, Modality, Ragged, TermMatrix

GLOBAL, HARD, SOFT, MORE = (
    "Global features",
    "Bag of Concepts, hard assignment",
    "Bag of Concepts, soft assignment",
    "Beyond the paper",
)
FIT = 2000  # global vectors of each modality that a code is fitted on
SAME = 0.5  # points of recall that two rankings may differ by and count as one
CLAIMS = (
    ("Deep Permutation ranks as TERN does", "Deep Permutation", "~", "TERN"),
    ("Scalar Quantization ranks as TERN does", "Scalar Quantization", "~", "TERN"),
    ("Deep Permutation, shifted, does", "Deep Permutation, shifted, rotated x 8", "~", "TERN"),
    ("Scalar Quantization, shifted, does", "Scalar Quantization, shifted", "~", "TERN"),
    ("hard: context helps", "With context", ">", "No context"),
    ("hard: dropping stop-words lowers, no context", "No context", ">", "No cont., no stop-words"),
    ("hard: dropping stop-words lowers, with context", "With context", ">", "With cont., no stop-words"),
    ("hard: dropping them at inference lowers more", "No cont., no stop-words", ">",
     "No cont., no stop-words (inference)"),
    ("hard: the dictionary is worse than clusters without context", "No context", ">", "English dict."),
    ("soft is far better than hard, no context", "SUM-aggr No-cont.", ">>", "No context"),
    ("soft is far better than hard, with context", "SUM-aggr W-cont.", ">>", "With context"),
    ("soft: sum at least as good as max, no context", "SUM-aggr No-cont.", ">=", "MAX-aggr No-cont."),
    ("soft: sum at least as good as max, with context", "SUM-aggr W-cont.", ">=", "MAX-aggr W-cont."),
    ("soft: context helps", "SUM-aggr W-cont.", ">", "SUM-aggr No-cont."),
    ("soft is below the global features", "TERN", ">", "SUM-aggr W-cont."),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    section: str
    model: str
    images: Recall
    sentences: Recall

    @property
    def figures(self) -> list[float]:
        """R@1, 5, 10 of image retrieval, then of sentence retrieval."""
        return [value for r in (self.images, self.sentences) for value in (r.r1, r.r5, r.r10)]


class Gallery:
    """All items of a feature file, and who belongs to whom."""

    def __init__(self, file: FeatureFile) -> None:
        self.of: dict[Modality, Embeddings] = {m: embeddings(file.rows(m, 0, file.count(m)), m) for m in MODALITIES}
        self.owners = owners_of(
            [item.id for item in file.items("image")], [caption.group for caption in file.items("text")]
        )

    def dense(self, section: str, model: str) -> Row:
        """The line of the global vectors themselves."""
        return self._row(section, model, lambda m, _: self.of[m].vectors)

    def code(self, section: str, model: str, codec: SurrogateCodec) -> Row:
        """The line of a fitted codec."""
        return self._row(section, model, lambda m, side: exact(getattr(codec, f"encode_{side}")(self.of[m])))

    def _row(self, section: str, model: str, encode: Callable[[Modality, str], NDArray[np.float32]]) -> Row:
        to_image = text_to_image_ranks(encode("image", "documents"), encode("text", "queries"), self.owners)
        to_text = image_to_text_ranks(encode("image", "queries"), encode("text", "documents"), self.owners)
        return Row(section, model, Recall.of(to_image), Recall.of(to_text))


def exact(terms: TermMatrix) -> NDArray[np.float64]:
    """Whole numbers whose products float64 sums without rounding."""
    return terms.toarray().astype(np.float64)


class Codebooks:
    """The codebooks of the table by name; made when asked for, kept in a folder if one is given."""

    def __init__(self, train: FeatureFile, alone: FeatureFile | None, folder: Path | None, size: int) -> None:
        self.folder = folder
        self.size = size
        self.files = {"with": train, "no": alone}
        self.made: dict[str, Codebook] = {}

    def __getitem__(self, name: str) -> Codebook:
        """ "with" or "no" (context), "with-stop" and "no-stop" without stop-words, "with-words" and "no-words" the
        dictionary."""
        if name not in self.made:
            path = self.folder / f"{name}.npz" if self.folder else None
            if path is not None and path.exists():
                self.made[name] = Codebook.load(path)
            else:
                click.echo(f"codebook {name}", err=True)
                self.made[name] = self._make(*name.partition("-")[::2])
                if path is not None:
                    self.made[name].save(path)
        return self.made[name]

    def _make(self, context: str, kind: str) -> Codebook:
        files = [self.files[context]]
        if kind == "words":
            return codebook.dictionary(files, self.size)
        return codebook.cluster(files, self.size, drop_stopwords=kind == "stop")


def rows(dev: Gallery, alone_dev: Gallery | None, train: Sequence[Embeddings], books: Codebooks) -> Iterator[Row]:
    """The lines of the table, one by one."""

    def global_row(section: str, model: str, code: str, **options: object) -> Row:
        return dev.code(section, model, global_code(code, center=False, **options).fit(*train))

    def concept_row(section: str, model: str, book: str, gallery: Gallery = dev, **options: object) -> Row:
        assignment = "hard" if section == HARD or options.pop("hard", False) else "soft"
        codec = SurrogateCodec(concept_steps(books[book], assignment, **options))
        return gallery.code(section, model, codec.fit(*gallery.of.values()))

    yield dev.dense(GLOBAL, "TERN")
    yield global_row(GLOBAL, "Deep Permutation", "permutation", rotate=False)
    yield global_row(GLOBAL, "Scalar Quantization", "scalar", rotate=False)
    yield concept_row(HARD, "With context", "with")
    yield concept_row(HARD, "With cont., no stop-words", "with-stop")
    yield concept_row(SOFT, "MAX-aggr W-cont.", "with", aggregate="max")
    yield concept_row(SOFT, "SUM-aggr W-cont.", "with")
    yield concept_row(MORE, "SUM-aggr W-cont., scale 1,000", "with", scale=1000)
    yield global_row(MORE, "Deep Permutation, shifted, rotated x 8", "permutation", shift=True, expand=8)
    yield global_row(MORE, "Scalar Quantization, shifted", "scalar", rotate=False, shift=True)
    yield concept_row(MORE, "hard, With cont., no stop-words (inference)", "with-stop", hard=True, drop_stopwords=True)
    yield concept_row(MORE, "hard, English dict. with context", "with-words", hard=True)
    if books.files["no"] is not None:
        yield concept_row(HARD, "No context", "no")
        yield concept_row(HARD, "No cont., no stop-words", "no-stop")
        yield concept_row(HARD, "No cont., no stop-words (inference)", "no-stop", drop_stopwords=True)
        yield concept_row(HARD, "English dict.", "no-words")
        yield concept_row(SOFT, "MAX-aggr No-cont.", "no", aggregate="max")
        yield concept_row(SOFT, "SUM-aggr No-cont.", "no")
    if books.files["no"] is not None and alone_dev is not None:
        yield concept_row(MORE, "hard, No context in codebook and items", "no", alone_dev, hard=True)
        yield concept_row(
            MORE, "hard, the same without stop-words", "no-stop", alone_dev, hard=True, drop_stopwords=True
        )
        yield concept_row(MORE, "SUM-aggr, No context in codebook and items", "no", alone_dev)
        yield concept_row(MORE, "hard, English dict., no context in items", "no-words", alone_dev, hard=True)


ORDER = (
    "TERN", "Deep Permutation", "Scalar Quantization", "No context", "With context", "No cont., no stop-words",
    "With cont., no stop-words", "No cont., no stop-words (inference)", "English dict.", "MAX-aggr No-cont.",
    "SUM-aggr No-cont.", "MAX-aggr W-cont.", "SUM-aggr W-cont.",
)  # fmt: skip


def within(sets: Ragged) -> float:
    """The part of the variance of concepts that lies within items, in percent."""
    values = sets.values.astype(np.float64)
    item = np.repeat(np.arange(len(sets)), np.diff(sets.offsets))
    sums = sparse.csr_array((np.ones(len(item)), (item, np.arange(len(item)))), shape=(len(sets), len(item)))
    means = (sums @ values) / np.maximum(np.diff(sets.offsets), 1)[:, None]
    return float(100 * ((values - means[item]) ** 2).sum() / ((values - values.mean(axis=0)) ** 2).sum())


def context(gallery: Gallery, book: Codebook) -> Iterator[str]:
    """How much of its own a concept has beside its context."""
    codec = SurrogateCodec(concept_steps(book, "hard")).fit(*gallery.of.values())
    for modality, found in gallery.of.items():
        used = codec.encode_documents(found).nnz / len(found)
        share = within(found.concepts)
        yield f"- {modality}: {share:.2f} % of the variance of concepts within items, {used:.2f} codewords an item"


def markdown(found: Sequence[Row]) -> Iterator[str]:
    """The table in the paper's order."""
    yield "| Model | image retrieval R@1 / 5 / 10 | sentence retrieval R@1 / 5 / 10 |"
    yield "|---|---|---|"
    for section in (GLOBAL, HARD, SOFT, MORE):
        yield f"| **{section}** | | |"
        for row in (row for row in found if row.section == section):
            cells = [f"{value:.1f}" for value in row.figures]
            yield f"| {row.model} | {' / '.join(cells[:3])} | {' / '.join(cells[3:])} |"


def verdicts(found: Sequence[Row]) -> Iterator[str]:
    """Each claim of the paper whose rows are there: held or not, with the sums of the six recalls."""
    of = {row.model: row for row in found}
    for claim, one, relation, other in CLAIMS:
        if one in of and other in of:
            a, b = of[one].figures, of[other].figures
            held = {
                "~": max(abs(x - y) for x, y in zip(a, b, strict=True)) <= SAME,
                ">": sum(a) > sum(b),
                ">=": sum(a) >= sum(b),
                ">>": sum(a) > 1.5 * sum(b),
            }[relation]
            yield f"- {'held' if held else 'NOT held'}: {claim} ({sum(a):.1f} against {sum(b):.1f})"


@click.command()
@click.argument("dev", type=click.Path(path_type=Path))
@click.option("--fit", "train", required=True, type=click.Path(path_type=Path), help="Embeddings to learn from.")
@click.option("--alone-train", type=click.Path(path_type=Path), help="Those, or a part, by the encoder FOLDER?alone.")
@click.option("--alone-dev", type=click.Path(path_type=Path), help="DEV by the encoder FOLDER?alone.")
@click.option("--clusters", default=1000, show_default=True, help="Size of the codebooks.")
@click.option("--codebooks", type=click.Path(path_type=Path), help="Folder to keep codebooks in, and find them.")
@click.option("--csv", "table", type=click.Path(path_type=Path), help="Write the rows to this file.")
def main(
    dev: Path,
    train: Path,
    alone_train: Path | None,
    alone_dev: Path | None,
    clusters: int,
    codebooks: Path | None,
    table: Path | None,
) -> None:
    """Table I of the Bag of Concepts paper on the embeddings in DEV."""
    with ExitStack() as stack:
        files = [stack.enter_context(FeatureFile(p)) if p else None for p in (dev, train, alone_dev, alone_train)]
        books = Codebooks(files[1], files[3], codebooks, clusters)
        sample = [Embeddings(m, files[1].vectors(m)[:: max(1, files[1].count(m) // FIT)]) for m in MODALITIES]
        found = []
        galleries = [Gallery(file) for file in (files[0], files[2]) if file]
        for row in rows(galleries[0], galleries[1] if files[2] else None, sample, books):
            click.echo(f"{row.model}: {' '.join(f'{value:.1f}' for value in row.figures)}", err=True)
            found.append(row)
        facts = [
            line
            for name, gallery in zip(("with context", "without"), galleries, strict=False)
            for line in (f"\nConcepts {name}:", *context(gallery, books["with" if name == "with context" else "no"]))
        ]
    found.sort(key=lambda row: ORDER.index(row.model) if row.model in ORDER else len(ORDER))
    click.echo("\n".join([*markdown(found), "", *verdicts(found), *facts]))
    if table is not None:
        with table.open("w", newline="") as handle:
            out = csv.writer(handle)
            out.writerow(["section", "model", *(f"{d} R@{k}" for d in ("image", "sentence") for k in (1, 5, 10))])
            out.writerows([row.section, row.model, *(round(value, 2) for value in row.figures)] for row in found)


if __name__ == "__main__":
    main()
