"""Measure recall after re-ranking against postings read, for each code.

    python -m bench.paper.recall_postings FEATURES

Without ``--queries``, the captions in FEATURES are the queries and the pictures are the items. With
``--queries``, all items in the given file are queries for all items in FEATURES. Codes are learned
from FEATURES, or from ``--fit``. As in every engine of boc, scores are integers from a sparse
product, hits are ordered by (-score, id), and only items that share a term with the query are hits.

A row contains the code, its settings (z / query z, and the number of terms for the dictionary), the
postings read per query, the Gini coefficient of the posting list lengths, the bytes per item of
postings (4 bytes for an id and 1 byte for a weight) and of learned arrays, R, the recall of the
exact dense top 10 after the first R candidates have been re-ranked, and the percentage of queries
with an item of their own group among these 10, and among the dense 10.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from bench.options import FILE
from bench.paper.ranking import K, document_frequencies, first, postings_read
from bench.report.rows import Writer
from boc.clustering.codebook import Codebook
from boc.codecs import SurrogateCodec, concept_code, global_code
from boc.codecs.base import stack_rows
from boc.codecs.dictionary import Dictionary, dictionary_steps
from boc.errors import BocError
from boc.inputs.features import FeatureFile
from boc.types import Embeddings, Item, Ragged, TermMatrix
from indexing.embedded.postings import Postings

CONCEPT_BUDGETS = (2, 8, 32, None)
DEPTHS = (100, 300, 500)
BUDGETS = ((64, 128), (32, 64), (16, 32))
PROBES = ((2, 16), (2, 28), *product((1, 2, 4), (32, 64, 128)))
SMALL = 10_000  # maximum number of items for codes that keep all terms
COLUMNS = (
    "code",
    "setting",
    "postings",
    "gini",
    "bytes",
    "learned",
    "R",
    "recall",
    "right",
    "dense",
)


class Truth:
    """Ground truth: dense vectors of queries and items, the exact dense top 10, and groups of items
    that belong together."""

    def __init__(
        self,
        items: Sequence[Embeddings],
        queries: Sequence[Embeddings],
        groups: tuple[list[str], list[str]],
    ):
        self.items = items
        self.queries = queries
        self.X, self.Q = (np.concatenate([e.vectors for e in side]) for side in (items, queries))
        self.own, self.asking = (np.array(side) for side in groups)
        everything = np.arange(len(self.X))
        self.top = np.stack([self._rerank(i, everything) for i in range(len(self.Q))])
        self.dense = self.right(self.top)

    def measure(
        self,
        documents: TermMatrix,
        queries: TermMatrix,
        depths: Sequence[int],
    ) -> list[tuple[float, float]]:
        """Return the recall of the dense top 10, and the percentage of queries with a right hit,
        for each depth."""
        candidates = first(Postings.from_matrix(documents), queries, max(depths))
        measures = []
        for depth in depths:
            shortlists = enumerate(candidates[:, :depth])
            best = [self._rerank(i, rows[rows >= 0]) for i, rows in shortlists]
            pairs = zip(best, self.top, strict=True)
            recall = np.mean([len(set(rows) & set(top)) / K for rows, top in pairs])
            measures.append((float(recall), self.right(best)))
        return measures

    def right(self, best: Sequence[NDArray[np.int64]] | NDArray[np.int64]) -> float:
        """Return the percentage of queries with an item of their own group among ``best``."""
        pairs = zip(best, self.asking, strict=True)
        right = [(self.own[rows] == group).any() for rows, group in pairs]
        return 100 * float(np.mean(right))

    def _rerank(self, query: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        scores = self.X[rows] @ self.Q[query]
        order = np.argsort(-scores, kind="stable")
        return rows[order[:K]]


def codes(
    only: str | None,
    sample: Sequence[Embeddings],
    terms: Sequence[int | None],
    unsparsified: bool,
) -> Iterator[tuple[str, str, SurrogateCodec]]:
    """Yield each fitted code at each setting."""
    most = 2 * sample[0].vectors.shape[1]
    budgets = [(z, q) for z, q in BUDGETS if q <= most]
    if unsparsified:
        budgets.insert(0, (most, most))
    for code in ("scalar", "bits", "permutation"):
        for z, query_z in budgets if only in (None, code) else []:
            yield code, f"{z}/{query_z}", global_code(code, z=z, query_z=query_z).fit(*sample)
    for size in terms if only in (None, "dictionary") else []:
        codec = SurrogateCodec(dictionary_steps(size)).fit(*sample)
        dictionary = codec.steps[-1]
        assert isinstance(dictionary, Dictionary)
        for z, query_z in PROBES:
            dictionary.set_params(z=z, query_z=query_z)
            yield "dictionary", f"{z}/{query_z} of {codec.n_terms}", codec


def concept_codes(
    book: Codebook,
    sample: Sequence[Embeddings],
) -> Iterator[tuple[str, str, SurrogateCodec]]:
    """Yield codes over concept sets."""
    yield "hard", f"of {len(book)}", concept_code(book, "hard").fit(*sample)
    for z in CONCEPT_BUDGETS:
        yield "soft", f"{z or 'all'} of {len(book)}", concept_code(book, z=z).fit(*sample)


def rows(
    truth: Truth,
    settings: Iterator[tuple[str, str, SurrogateCodec]],
) -> Iterator[list[object]]:
    """Yield one row per setting and depth."""
    for code, setting, codec in settings:
        documents = stack_rows([codec.encode_documents(part) for part in truth.items])
        queries = stack_rows([codec.encode_queries(part) for part in truth.queries])
        lengths = document_frequencies(documents)
        postings = postings_read(lengths, queries)
        stored = 5 * documents.nnz / documents.shape[0]
        learned = sum(array.nbytes for array in codec.arrays().values()) / documents.shape[0]
        measures = truth.measure(documents, queries, DEPTHS)
        for depth, (recall, right) in zip(DEPTHS, measures, strict=True):
            yield [
                code,
                setting,
                round(postings),
                round(gini(lengths), 3),
                round(stored),
                round(learned),
                depth,
                round(recall, 4),
                round(right, 2),
                round(truth.dense, 2),
            ]


def read(
    path: Path,
    *modalities: str,
    concepts: bool = False,
) -> tuple[list[Embeddings], list[Item]]:
    """Read the vectors and items of each modality in a file, in id order. With ``concepts``, also
    read the concepts."""
    vectors: list[Embeddings] = []
    items: list[Item] = []
    with FeatureFile(path) as file:
        for modality in ("image", "text"):
            if modality in modalities and file.count(modality):
                members = file.items(modality)
                order = sorted(range(len(members)), key=lambda i: members[i].id)
                sets = (
                    file.batch(modality, 0, len(members)).embeddings.concepts if concepts else None
                )
                sorted_sets = sets and Ragged.from_sets(
                    [sets[i] for i in order],
                    sets.values.shape[1],
                )
                vectors.append(Embeddings(modality, file.vectors(modality)[order], sorted_sets))
                items += [members[i] for i in order]
    return vectors, items


def gini(amounts: NDArray[Any]) -> float:
    """Return the Gini coefficient of amounts (n,) >= 0, which is 0 if all are equal and 1 - 1/n if
    only one is positive.

    G = sum_i (2 i - n - 1) x_i / (n sum_i x_i) over ascending x_1..x_n (Damgaard and Weiner,
    Ecology 81, 2000). Returns 0 if all are 0. Raises BocError if ``amounts`` is empty or has a
    negative value.
    """
    x = np.sort(np.asarray(amounts, dtype=np.float64))
    n = len(x)
    if n == 0 or x[0] < 0:
        raise BocError(
            f"Gini coefficient: needs amounts of 0 or more, got {f'{x[0]:g}' if n else 'none'}",
        )
    weights = 2 * np.arange(1, n + 1) - n - 1
    total = max(x.sum(), np.finfo(float).tiny)
    return float(weights @ x / (n * total))


@click.command()
@click.argument("features", type=FILE)
@click.option(
    "--queries",
    type=FILE,
    help="Feature file of queries.",
)
@click.option(
    "--fit",
    type=FILE,
    help="Feature file to learn from.",
)
@click.option(
    "--terms",
    multiple=True,
    type=int,
    help="Vocabulary sizes to test [default: chosen by collection size].",
)
@click.option("--only", help="Code over global vectors to measure instead of all codes.")
@click.option(
    "--codebook",
    type=click.Path(exists=True, path_type=Path),
    help="Codebook for additional codes over concepts.",
)
def main(
    features: Path,
    queries: Path | None,
    fit: Path | None,
    terms: tuple[int, ...],
    only: str | None,
    codebook: Path | None,
) -> None:
    """Measure recall against postings of the embeddings in FEATURES."""
    both = ("image", "text")
    vectors, items = read(
        features,
        *(both if queries else ("image",)),
        concepts=codebook is not None,
    )
    asking, askers = read(
        queries or features,
        *(both if queries else ("text",)),
        concepts=codebook is not None,
    )
    sample = read(fit or features, *both)[0]
    if not items or not askers:
        raise click.UsageError(
            "FEATURES needs pictures and captions, or --queries needs a query file",
        )
    truth = Truth(
        vectors,
        asking,
        ([i.group or i.id for i in items], [i.group or i.id for i in askers]),
    )
    sizes = terms or (None,)
    settings = [codes(only, sample, sizes, len(truth.X) <= SMALL)]
    if codebook is not None:
        settings.append(concept_codes(Codebook.load(codebook), sample))
    with Writer(sys.stdout, __file__, click.get_current_context().params, COLUMNS) as out:
        for row in rows(truth, chain.from_iterable(settings)):
            out.write(*row)


if __name__ == "__main__":
    main()
