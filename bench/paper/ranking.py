"""Measure retrieval between pictures and captions: the hits of a code, its cost, and standard
errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boc.codecs import SurrogateCodec
from boc.errors import BocError
from boc.evaluate.metrics import owners_of
from boc.inputs.features import FeatureFile
from boc.plan import Plan
from boc.topk import topk
from boc.types import MODALITIES, Embeddings, Modality, TermMatrix
from indexing.embedded.kernel import Kernel
from indexing.embedded.postings import Postings

K = 10
RMS = (1, 2, 5, 10, 20, 50)
DIRECTIONS: tuple[tuple[Modality, Modality], ...] = (("text", "image"), ("image", "text"))


@dataclass(frozen=True)
class Retrieval:
    """Hits of a code in one direction, with their cost.

    ``hits`` is a bool array (queries, Rm) that is true if a query's own item is among the 10 best
    of Rm * 10 candidates. ``postings`` is the number of postings read per query, ``terms`` is the
    number of terms stored per item, and ``size`` is the size of these terms in bytes per item in
    the embedded engine.
    """

    hits: NDArray[np.bool_]
    postings: float
    terms: float
    size: float


class Gallery:
    """All items in a feature file, with the groups of items that belong together, and the dot
    products of their vectors.

    ``of`` contains the embeddings of each modality, and ``groups`` contains the number of each
    item's picture.
    """

    def __init__(self, file: FeatureFile) -> None:
        self.of: dict[Modality, Embeddings] = {
            m: file.batch(m, 0, file.count(m)).embeddings for m in MODALITIES
        }
        owners = owners_of(
            [item.id for item in file.items("image")],
            [item.group for item in file.items("text")],
        )
        self.groups: dict[Modality, NDArray[np.int64]] = {
            "image": np.arange(len(self.of["image"]), dtype=np.int64),
            "text": owners,
        }
        products = self.of["text"].vectors @ self.of["image"].vectors.T
        self.products = {"text": products, "image": products.T}

    def exact(self, asking: Modality, target: Modality, k: int = K) -> NDArray[np.bool_]:
        """Return, for each query (queries,), whether its own item is among the ``k`` best by
        vectors."""
        rows = topk(self.products[asking], k)
        return self.own(asking, target, rows)

    def own(
        self,
        asking: Modality,
        target: Modality,
        rows: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Return, for each query, whether its own item is among its rows (queries, k). Rows of -1
        are padding."""
        same = self.groups[target][rows] == self.groups[asking][:, None]
        hits: NDArray[np.bool_] = (same & (rows >= 0)).any(axis=1)
        return hits

    def search(
        self,
        codec: SurrogateCodec,
        asking: Modality,
        target: Modality,
        rms: Sequence[int] = RMS,
    ) -> Retrieval:
        """Search by a fitted code as an engine does. Items that share a term with the query are
        ordered by the exact product of frequencies, then by file order, and the first items are
        re-ranked by vectors."""
        documents = codec.encode_documents(self.of[target])
        queries = codec.encode_queries(self.of[asking])
        postings = Postings.from_matrix(documents)
        rows = first(postings, queries, max(rms) * K)
        columns = []
        for rm in rms:
            best = rerank(rows[:, : rm * K], self.products[asking])
            columns.append(self.own(asking, target, best[:, :K]))
        return Retrieval(
            hits=np.stack(columns, axis=1),
            postings=postings_read(document_frequencies(documents), queries),
            terms=documents.nnz / postings.n,
            size=item_bytes(postings),
        )


def first(index: Postings, queries: TermMatrix, depth: int) -> NDArray[np.int64]:
    """Return the rows (queries, depth) of the hits, best first, padded with -1."""
    hits = np.full((queries.shape[0], depth), -1)
    kernel = Kernel([((*index.arrays, *6 * [None]), index.n)])
    answer = kernel.best(queries, depth, Plan("terms", depth, depth))
    if answer is not None:
        for i, row in enumerate(hits):
            _, rows, _ = answer[0].query(i)
            row[: len(rows)] = rows
        return hits
    # NumPy is used for scores of 2**32 and above.
    for i, row in enumerate(hits):
        span = slice(queries.indptr[i], queries.indptr[i + 1])
        scores = index.scores(queries.indices[span], queries.data[span])
        found = np.flatnonzero(scores > 0)
        rows = found[topk(scores[found], depth)]
        row[: len(rows)] = rows
    return hits


def rerank(candidates: NDArray[np.int64], exact: NDArray[np.float32]) -> NDArray[np.int64]:
    """Sort the candidates of each query by the exact score, best first, -1 last."""
    scores = np.take_along_axis(exact, candidates, axis=1)
    scores[candidates < 0] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")
    best: NDArray[np.int64] = np.take_along_axis(candidates, order, axis=1)
    return best


def item_bytes(index: Postings) -> float:
    """Return the bytes of posting lists per item."""
    return sum(array.nbytes for array in (index.starts, index.rows, index.frequencies)) / index.n


def share(values: NDArray[np.generic], groups: NDArray[np.int64]) -> tuple[float, float]:
    """Return the mean of ``values`` (n,) in percent, and its `standard_error`. Each group counts as
    one sample."""
    return 100 * float(values.mean(dtype=np.float64)), standard_error([(values, groups)])


def standard_error(columns: Sequence[tuple[NDArray[np.generic], NDArray[np.int64]]]) -> float:
    """Return the standard error, in percent, of the sum of the means of columns (values (n,),
    groups (n,)).

    A mean is a ratio of sums over groups 0 ... G - 1. After linearisation, group g changes the mean
    by (s_g - mean n_g) / n, and the error is the square root of G / (G - 1) times the sum of
    squares of these changes (Cochran, Sampling Techniques, 1977, 2.11). Therefore the five captions
    of a picture do not count as five pictures.
    """
    count = 1 + max(int(groups.max()) for _, groups in columns)
    shifts: NDArray[np.float64] = np.zeros(count)
    for values, groups in columns:
        apart = values.astype(np.float64) - values.mean(dtype=np.float64)
        sums = np.bincount(groups, apart, minlength=count)
        shifts += sums / len(values)
    variance = count / max(1, count - 1) * (shifts @ shifts)
    return 100 * float(np.sqrt(variance))


def document_frequencies(documents: TermMatrix) -> NDArray[np.int64]:
    """Return the length of each term's posting list, int64 (V,), which is the number of rows in
    ``documents`` (n, V) that contain the term."""
    return np.bincount(documents.indices, minlength=documents.shape[1]).astype(np.int64, copy=False)


def postings_read(frequencies: NDArray[np.int64], queries: TermMatrix) -> float:
    """Return the mean number of postings, over ``queries`` (q, V), in the lists of their terms, as
    read by term-at-a-time scoring.

    ``frequencies`` (V,) are document frequencies. Raises BocError without queries, or if the
    numbers of terms differ.
    """
    n, n_terms = queries.shape
    if n_terms != len(frequencies) or n == 0:
        raise BocError(
            f"postings: {n} queries over {n_terms} terms, lists of {len(frequencies)}; use one "
            "code for both",
        )
    return float(frequencies[queries.indices].sum() / n)
