"""Every code on one gallery, side by side: what it finds, what that costs, and whether both modalities share its terms.

    python -m bench.paper.all_codes dev.h5 --fit train.h5 --codebook with.npz --words words.npz

The captions of FEATURES are the queries, its pictures the items. Codes are learned from --fit. ``hard``, ``soft`` and
``mixed`` need the codebook of concepts, ``words`` a vocabulary; ``late`` and those need concepts. A row holds the code,
terms and bytes of postings per picture, postings read per query, R@10 of the own picture in percent by the code alone
and with 10 candidates re-ranked per hit, by the vectors (``late``: by MrSw), NDCG@25 by ROUGE-L of the latter, the
share of the exact top 10 by that metric among the first 100 candidates, and the share of the terms used by pictures or
captions that both use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from bench.paper.ranking import Gallery, K
from bench.report.rows import Writer
from boc.codecs import SurrogateCodec
from boc.codecs.code import parse_code
from boc.codecs.posting_stats import document_frequencies, postings_read
from boc.evaluate.metrics import DEPTH, ndcg_of_hits
from boc.evaluate.relevance import rouge_l_matrix
from boc.inputs.features import FeatureFile
from boc.rerank.alignment import alignments
from boc.topk import topk
from boc.types import MODALITIES, Embeddings, TermMatrix
from indexing.embedded.postings import Postings

RM = 10
GLOBAL = (
    "scalar:64/128", "scalar(z=64, query_z=128, reading=printed)", "permutation:64/128",
    "permutation(z=64, query_z=128, reading=offset)", "permutation(z=64, query_z=128, reading=printed)", "bits:64/128",
    "dictionary:2/64",
)  # fmt: skip
OF_CONCEPTS = (
    "hard(codebook={})",
    "soft(codebook={}, z=8, aggregate=max)",
    "soft(codebook={}, z=8)",
    "mixed(codebook={})",
)
WRITTEN = ("words(codebook={}, z=32)", "words(codebook={}, z=64)")
COLUMNS = (
    "code", "terms", "bytes", "postings", "R@10 code", "R@10", "NDCG@25", "recall@100", "shared terms",
)  # fmt: skip
BLOCK = 256  # captions aligned at a time


class Judge:
    """The scores of all pairs by a metric, what is relevant, and the pictures of the captions."""

    def __init__(self, gallery: Gallery, captions: list[str]) -> None:
        self.gallery = gallery
        self.own = gallery.groups["text"]
        self.relevance = rouge_l_matrix(captions, self.own)
        self.scores = {"dot": gallery.products["text"]}

    def by(self, metric: str) -> NDArray[np.float32]:
        """Scores (captions, pictures)."""
        if metric not in self.scores:
            words, regions = (self.gallery.of[modality].concepts for modality in ("text", "image"))
            assert words is not None
            assert regions is not None
            blocks = (range(i, min(i + BLOCK, len(words))) for i in range(0, len(words), BLOCK))
            self.scores[metric] = np.concatenate([alignments(words.take(block), regions, metric) for block in blocks])
        return self.scores[metric]

    def row(self, codec: SurrogateCodec, metric: str) -> list[str]:
        """The figures of a fitted code."""
        pictures, captions = (codec.encode_documents(self.gallery.of[modality]) for modality in ("image", "text"))
        queries = codec.encode_queries(self.gallery.of["text"])
        index, exact = Postings.from_matrix(pictures), self.by(metric)
        found = np.full((queries.shape[0], RM * DEPTH), -1)
        for row, (rows, _) in zip(found, index.top(queries, RM * DEPTH), strict=True):
            row[: len(rows)] = rows
        best = self.reranked(found, exact)
        near = self.reranked(found[:, : RM * K], exact)[:, :K]
        right = [100 * (hits[:, :K] == self.own[:, None]).any(axis=1).mean() for hits in (found, near)]
        ndcg = float(ndcg_of_hits(best[:, :DEPTH], self.relevance).mean())
        wanted = topk(exact, K)
        among = (wanted[:, :, None] == found[:, None, : RM * K]).any(axis=2).mean()
        size = sum(array.nbytes for array in (index.starts, index.rows, index.frequencies)) / index.n
        return [
            f"{pictures.nnz / index.n:.1f}", f"{size:.0f}",
            f"{postings_read(document_frequencies(pictures), queries):.0f}", f"{right[0]:.2f}", f"{right[1]:.2f}",
            f"{ndcg:.4f}", f"{among:.4f}", f"{shared(pictures, captions):.4f}",
        ]  # fmt: skip

    def reranked(self, found: NDArray[np.int64], exact: NDArray[np.float32]) -> NDArray[np.int64]:
        """Candidates by the exact score, the best first, -1 last."""
        scores = np.where(found >= 0, np.take_along_axis(exact, found, axis=1), -np.inf)
        order = np.argsort(-scores, axis=1, kind="stable")
        best: NDArray[np.int64] = np.take_along_axis(found, order, axis=1)
        return best


def shared(one: TermMatrix, other: TermMatrix) -> float:
    """The share of the terms that either of two matrices uses that both use."""
    used = [document_frequencies(matrix) > 0 for matrix in (one, other)]
    return float((used[0] & used[1]).sum() / max(1, (used[0] | used[1]).sum()))


def tried(codebook: Path | None, words: Path | None, concepts: bool, chosen: tuple[str, ...]) -> Iterator[str]:
    """The codes."""
    if chosen:
        yield from chosen
        return
    yield from GLOBAL
    if concepts:
        yield "late"
    for path, codes in ((codebook, OF_CONCEPTS), (words, WRITTEN)):
        if path is not None:
            yield from (code.format(path) for code in codes)


@click.command()
@click.argument("features", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--fit", required=True, type=click.Path(exists=True, path_type=Path), help="Feature file to learn from.")
@click.option("--codebook", type=click.Path(exists=True, path_type=Path), help="Codebook of concepts.")
@click.option("--words", type=click.Path(exists=True, path_type=Path), help="Vocabulary of boc build-codebook --words.")
@click.option("--code", "chosen", multiple=True, help="Only this code; can be repeated [default: all].")
def main(features: Path, fit: Path, codebook: Path | None, words: Path | None, chosen: tuple[str, ...]) -> None:
    """Compare all codes on FEATURES."""
    with FeatureFile(features) as file, FeatureFile(fit) as learned:
        gallery = Gallery(file)
        judge = Judge(gallery, [item.content for item in file.items("text")])
        sample: list[Embeddings] = [learned.batch(m, 0, learned.count(m)).embeddings for m in MODALITIES]
    concepts = gallery.of["image"].concepts is not None
    settings = {"features": features, "fit": fit, "codebook": codebook, "words": words}
    with Writer(sys.stdout, __file__, settings, COLUMNS) as out:
        for spec in tried(codebook, words, concepts, chosen):
            codec = parse_code(spec).codec(gallery.of["image"].vectors.shape[1]).fit(*sample)
            name = spec.replace(f"codebook={codebook}, ", "").replace(f"(codebook={codebook})", "")
            name = name.replace(f"codebook={words}, ", "")
            out.write(name, *judge.row(codec, "mrsw" if spec.startswith("late") else "dot"))


if __name__ == "__main__":
    main()
