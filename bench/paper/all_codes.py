"""Compare all codes on one gallery by recall, cost, and the meaning of their terms.

    python -m bench.paper.all_codes dev.h5 --fit train.h5 --codebook plain.npz
        --centred centred.npz --rescaled rescaled.npz --words words.npz
        --learned learned.npz [--gallery GALLERY]

The captions in FEATURES are the queries, and the pictures are the items. Codes are learned from
--fit. ``hard`` and ``soft`` need a concept codebook, ``words`` needs a vocabulary, and ``learned``
needs learned terms. All these codes and ``late`` need concepts. A row contains the code; the terms
and bytes of postings per picture; the postings read per query; R@10 of the caption's own picture in
percent, without re-ranking and with 10 candidates per hit re-ranked by --rerank (``late``: by
MrSw); NDCG@25 of the re-ranked hits with ROUGE-L as relevance; the fraction of the metric's exact
top 10 among the first 100 candidates; and the fraction of terms that occur in both pictures and
captions.

``labels`` is the fraction of a term's five top pictures with a caption that contains a word of the
term's label; ``chance`` is the same fraction among all pictures. The label is stored in the code,
or is derived from the captions in --fit with the highest values of the term. If --gallery names the
painted scenes in FEATURES, a row also contains, for each family of sentences
(bench/datasets/gallery_truth.py), the fraction of sentences whose first hit without re-ranking
matches the whole sentence.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bench.datasets import gallery_truth as truth
from bench.options import FILE
from bench.paper.ranking import (
    Gallery,
    K,
    document_frequencies,
    first,
    item_bytes,
    postings_read,
    rerank,
)
from bench.report.rows import Writer
from boc import plugins
from boc.codecs import SurrogateCodec
from boc.codecs.parse import parse_code
from boc.evaluate.metrics import DEPTH, ndcg_of_hits
from boc.evaluate.relevance import rouge_l_matrix
from boc.inputs.features import FeatureFile
from boc.labels import (
    BACKGROUND,
    CAPTIONS,
    WORDS as LABEL_WORDS,
    Label,
    content_words,
    distinctive,
    unpack_labels,
)
from boc.names import METRICS
from boc.rerank.alignment import alignments
from boc.topk import topk
from boc.types import MODALITIES, Embeddings, TermMatrix
from indexing.embedded.postings import Postings

RM = 10
GLOBAL = (
    "scalar:64/128",
    "permutation:64/128",
    "bits:64/128",
    "dictionary:2/64",
    "dictionary:2/64(terms=2048)",
    "dictionary:2/128(terms=2048)",
)
OF_CONCEPTS = (
    "hard(codebook={})",
    "soft(codebook={}, z=8, aggregate=max)",
    "soft(codebook={}, z=8)",
)
RESCALED = (
    "hard(codebook={})",
    "soft(codebook={}, z=64, query_z=128, similarity=deviation)",
    "soft(codebook={}, z=256, similarity=deviation)",
)
WRITTEN = ("words(codebook={}, z=32)", "words(codebook={}, z=64)")
LEARNED = (
    "learned(codebook={})",
    "learned(codebook={}, z=8, query_z=12)",
    "learned(codebook={}, z=32, query_z=32)",
)
COLUMNS = (
    "code",
    "terms",
    "bytes",
    "postings",
    "R@10 code",
    "R@10",
    "NDCG@25",
    "recall@100",
    "shared terms",
    "labels",
    "chance",
    *truth.FAMILIES,
)
BLOCK = 256  # captions aligned in one batch
JUDGED = 200  # number of terms whose labels are judged
TOP = 5  # pictures judged per term; terms in fewer pictures are skipped
SENTENCES = 300  # maximum number of sentences per family


class Judge:
    """Scores of all caption-picture pairs by a metric, the relevance of pictures, and the picture
    of each caption."""

    def __init__(self, gallery: Gallery, captions: list[str]) -> None:
        self.gallery = gallery
        self.own = gallery.groups["text"]
        self.relevance = rouge_l_matrix(captions, self.own)
        self.scores = {"dot": gallery.products["text"]}

    def by(self, metric: str) -> NDArray[np.float32]:
        """Return the scores (captions, pictures)."""
        if metric not in self.scores:
            words, regions = (self.gallery.of[modality].concepts for modality in ("text", "image"))
            assert words is not None
            assert regions is not None
            blocks = []
            for start in range(0, len(words), BLOCK):
                block = words.take(range(start, min(start + BLOCK, len(words))))
                blocks.append(alignments(block, regions, metric))
            self.scores[metric] = np.concatenate(blocks)
        return self.scores[metric]

    def row(self, codec: SurrogateCodec, metric: str) -> list[str]:
        """Return the figures for a fitted code."""
        pictures = codec.encode_documents(self.gallery.of["image"])
        captions = codec.encode_documents(self.gallery.of["text"])
        queries = codec.encode_queries(self.gallery.of["text"])
        index = Postings.from_matrix(pictures)
        exact = self.by(metric)
        candidates = first(index, queries, RM * DEPTH)
        best = rerank(candidates, exact)
        near = rerank(candidates[:, : RM * K], exact)
        right = []
        for hits in (candidates, near):
            own = hits[:, :K] == self.own[:, None]
            right.append(100 * own.any(axis=1).mean())
        ndcg = float(ndcg_of_hits(best[:, :DEPTH], self.relevance).mean())
        exact_top = topk(exact, K)
        equal = exact_top[:, :, None] == candidates[:, None, : RM * K]
        among = equal.any(axis=2).mean()
        return [
            f"{pictures.nnz / index.n:.1f}",
            f"{item_bytes(index):.0f}",
            f"{postings_read(document_frequencies(pictures), queries):.0f}",
            f"{right[0]:.2f}",
            f"{right[1]:.2f}",
            f"{ndcg:.4f}",
            f"{among:.4f}",
            f"{shared_terms(pictures, captions):.4f}",
        ]


def shared_terms(one: TermMatrix, other: TermMatrix) -> float:
    """Return the number of terms used in both matrices, as a fraction of the terms used in at least
    one matrix."""
    uses = document_frequencies(one) > 0
    others = document_frequencies(other) > 0
    both = (uses & others).sum()
    either = (uses | others).sum()
    return float(both / max(1, either))


class Labels(Mapping[int, Label]):
    """Labels of a code's terms. Labels are either stored in the code's steps, or taken from the
    captions with the highest values of a term, as in ``boc explain``."""

    def __init__(self, codec: SurrogateCodec, captions: TermMatrix, words: list[set[str]]) -> None:
        self.stored: dict[int, Label] = {}
        for step in codec.steps:
            self.stored.update(
                enumerate(unpack_labels(getattr(step, "term_labels_", np.empty(0, np.uint8)))),
            )
        self.columns = captions.tocsc()
        self.words = words
        self.background = Counter(word for caption in words for word in sorted(caption))

    def __getitem__(self, term: int) -> Label:
        if term in self.stored and self.stored[term].words:
            return self.stored[term]
        span = slice(*self.columns.indptr[term : term + 2])
        order = np.argsort(-self.columns.data[span], kind="stable")
        rows = self.columns.indices[span][order[:CAPTIONS]]
        counts = Counter(word for row in rows for word in sorted(self.words[row]))
        found = distinctive(counts, len(rows), self.background, len(self.words))
        return Label(tuple(found[:LABEL_WORDS]))

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return int(self.columns.shape[1])


def words_of(file: FeatureFile) -> list[set[str]]:
    """Return the content words of all captions of each picture."""
    number = {item.id: i for i, item in enumerate(file.items("image"))}
    words: list[set[str]] = [set() for _ in number]
    for item in file.items("text"):
        words[number[item.group]].update(content_words(item.content))
    return words


def judge(
    terms: TermMatrix,
    labels: Mapping[int, Label],
    words: Sequence[set[str]],
) -> tuple[float, float]:
    """Judge the labels of randomly drawn terms. Return the mean fraction of pictures whose captions
    contain a word of a term's label, among the pictures with the highest values of the term, and
    among all pictures (chance). Returns NaN if no drawn term has a label with words."""
    columns = sparse.csc_array(terms)
    used = np.flatnonzero(np.diff(columns.indptr) >= TOP)
    shares = []
    rng = np.random.default_rng(0)
    for term in rng.choice(used, min(JUDGED, len(used)), replace=False).tolist():
        chosen = set(labels[term].words)
        span = slice(columns.indptr[term], columns.indptr[term + 1])
        order = np.argsort(-columns.data[span], kind="stable")
        rows = columns.indices[span][order[:TOP]]
        if chosen:
            hits = [bool(chosen & each) for each in words]
            top = [hits[row] for row in rows]
            shares.append([np.mean(top), np.mean(hits)])
    if not shares:
        return np.nan, np.nan
    return tuple(np.mean(shares, axis=0))


class Meaning:
    """Judge of term labels, with the captions of the judged pictures and the captions from which
    labels are derived."""

    def __init__(self, file: FeatureFile, learned: FeatureFile) -> None:
        self.of_pictures = words_of(file)
        step = max(1, learned.count("text") // BACKGROUND)
        batch = learned.batch("text", 0, learned.count("text"))
        chosen = list(range(0, len(batch), step))
        self.captions = batch.embeddings.take(chosen)
        self.words = [set(content_words(batch.items[n].content)) for n in chosen]

    def row(self, codec: SurrogateCodec, pictures: TermMatrix) -> list[str]:
        """Return the agreement of a fitted code's labels with the captions, and the chance
        level."""
        labels = Labels(codec, codec.encode_documents(self.captions), self.words)
        hit, chance = judge(pictures, labels, self.of_pictures)
        return ["", ""] if np.isnan(hit) else [f"{hit:.3f}", f"{chance:.3f}"]


class Families:
    """Encoded sentences about painted scenes, by family, with the true contents of the pictures."""

    def __init__(self, gallery: Path, file: FeatureFile) -> None:
        painted = truth.read_gallery(gallery / "scenes.json")
        self.queries = truth.queries(
            [painted[int(Path(id).stem)] for id in file.ids("image")],
            SENTENCES,
        )
        encoder = plugins.encoder(file.header.spec)
        self.encoded = encoder.encode_texts([query.sentence.text for query in self.queries])

    def row(self, codec: SurrogateCodec, pictures: TermMatrix) -> list[str]:
        """Return, for each family, the fraction of sentences whose first hit without re-ranking
        matches all parts."""
        hits = first(Postings.from_matrix(pictures), codec.encode_queries(self.encoded), K)
        shares = []
        for family in truth.FAMILIES:
            mine = [n for n, query in enumerate(self.queries) if query.family == family]
            rankings = [[row for row in hits[n].tolist() if row >= 0] for n in mine]
            measures = truth.judge([self.queries[n] for n in mine], rankings) if mine else {}
            shares.append(f"{measures['first: everything'].value:.3f}" if mine else "")
        return shares


def codes_to_try(
    books: Sequence[tuple[tuple[Path, ...], tuple[str, ...]]],
    concepts: bool,
    chosen: tuple[str, ...],
) -> Iterator[tuple[str, str]]:
    """Yield each code as text, and the same text with the codebook's name instead of its path."""
    if chosen:
        yield from ((code, code) for code in chosen)
        return
    yield from ((code, code) for code in (*GLOBAL, *(["late"] if concepts else [])))
    for paths, codes in books:
        yield from ((code.format(path), code.format(path.stem)) for path in paths for code in codes)


@click.command()
@click.argument("features", type=FILE)
@click.option("--fit", required=True, type=FILE, help="Feature file to learn from.")
@click.option("--codebook", multiple=True, type=FILE, help="Codebook of concepts.")
@click.option("--centred", multiple=True, type=FILE, help="Codebook of centred concepts.")
@click.option("--rescaled", multiple=True, type=FILE, help="Codebook of rescaled concepts.")
@click.option(
    "--words",
    multiple=True,
    type=FILE,
    help="Codebook from boc build-codebook --kind words.",
)
@click.option(
    "--learned",
    multiple=True,
    type=FILE,
    help="Codebook from boc build-codebook --kind learned.",
)
@click.option(
    "--gallery",
    type=click.Path(exists=True, path_type=Path),
    help="Gallery folder of the painted scenes in FEATURES.",
)
@click.option(
    "--rerank",
    type=click.Choice(METRICS),
    default="dot",
    show_default=True,
    help="Metric for re-ranking candidates.",
)
@click.option(
    "--code",
    "chosen",
    multiple=True,
    help="Code to measure; can be repeated [default: all].",
)
def main(
    features: Path,
    fit: Path,
    codebook: tuple[Path, ...],
    centred: tuple[Path, ...],
    rescaled: tuple[Path, ...],
    words: tuple[Path, ...],
    learned: tuple[Path, ...],
    gallery: Path | None,
    rerank: str,
    chosen: tuple[str, ...],
) -> None:
    """Compare all codes on FEATURES."""
    books = (
        (codebook, OF_CONCEPTS),
        (centred, OF_CONCEPTS),
        (rescaled, RESCALED),
        (words, WRITTEN),
        (learned, LEARNED),
    )
    with (
        FeatureFile(features) as file,
        FeatureFile(fit) as other,
        Writer(sys.stdout, __file__, click.get_current_context().params, COLUMNS) as out,
    ):
        items = Gallery(file)
        measures = Judge(items, [item.content for item in file.items("text")])
        meaning = Meaning(file, other)
        families = None if gallery is None else Families(gallery, file)
        sample: list[Embeddings] = [
            other.batch(m, 0, other.count(m)).embeddings for m in MODALITIES
        ]
        for spec, name in codes_to_try(books, items.of["image"].concepts is not None, chosen):
            codec = parse_code(spec).codec(items.of["image"].vectors.shape[1]).fit(*sample)
            pictures = codec.encode_documents(items.of["image"])
            right = (
                [None] * len(truth.FAMILIES) if families is None else families.row(codec, pictures)
            )
            figures = measures.row(codec, "mrsw" if name.startswith("late") else rerank)
            out.write(name, *figures, *meaning.row(codec, pictures), *right)


if __name__ == "__main__":
    main()
