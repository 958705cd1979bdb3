"""Compute ranking metrics (Recall@K, median rank, NDCG) in both directions.

Rankings are given as score matrices (n_texts, n_images), either arrays or memory-mapped files,
which are read in blocks of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import TypeVar

import numpy as np

from boc.errors import BocError
from boc.topk import topk_of_blocks
from boc.vectors import Doubles, Floats, Ints

CUTOFFS = (1, 5, 10)
BLOCK = 1024  # queries processed at a time
DEPTH = 25  # number of ranks that NDCG considers
ITEMS = 4096  # items compared with a block of queries at a time


@dataclass(frozen=True)
class Recall:
    """Percentages of queries with a relevant item among the first 1, 5 and 10 hits, and the median
    rank (from 1) of the first relevant item."""

    r1: float
    r5: float
    r10: float
    median_rank: float

    @property
    def total(self) -> float:
        """Return the sum of R@1, R@5 and R@10."""
        return self.r1 + self.r5 + self.r10

    @classmethod
    def of(cls, ranks: Ints) -> Recall:
        """Compute recall from the rank (from 0) of the first relevant item for each query."""
        r1, r5, r10 = (100 * float(np.mean(ranks < k)) for k in CUTOFFS)
        return cls(r1, r5, r10, float(np.floor(np.median(ranks))) + 1)


@dataclass(frozen=True)
class Recalls:
    """Recall in both directions."""

    text_to_image: Recall
    image_to_text: Recall

    @property
    def total(self) -> float:
        """Return the sum of the six recall values ("rsum")."""
        return self.text_to_image.total + self.image_to_text.total


@dataclass(frozen=True)
class Ndcg:
    """Mean NDCG in both directions, between 0 and 1."""

    text_to_image: float
    image_to_text: float


F = TypeVar("F", Recall, Ndcg)


def mean_of_folds(figures: Sequence[F]) -> F:
    """Average the results of all folds."""
    return type(figures[0])(*np.mean([astuple(each) for each in figures], axis=0).tolist())


def ranks(
    scores: Floats,
    queries: Ints,
    items: Ints,
) -> Ints:
    """Return the rank (from 0) of the first relevant item for each query. Each query must have a
    relevant item.

    ``scores`` is (n, m). An item is relevant if its number in ``items`` (m,) equals the number of
    the query in ``queries`` (n,). Items with equal scores are ordered by position, as in a stable
    sort."""
    ranks = np.empty(len(queries), dtype=np.int64)
    for start in range(0, len(queries), BLOCK):
        rows = np.ascontiguousarray(scores[start : start + BLOCK])
        right = queries[start : start + BLOCK, None] == items
        best = np.where(right, rows, -np.inf).argmax(axis=1)
        level = rows[np.arange(len(rows)), best][:, None]
        before = np.arange(len(items)) < best[:, None]
        ahead = (rows > level) | ((rows == level) & before)
        ranks[start : start + BLOCK] = ahead.sum(axis=1)
    return ranks


def evaluate_recall(
    scores: Floats,
    owners: Ints,
    fold: int | None = None,
) -> Recalls:
    """Compute recall over the whole gallery, or averaged over contiguous folds of ``fold``
    pictures.

    ``scores`` is (n_texts, n_images), and ``owners`` (n_texts,) contains the number of the picture
    that each sentence describes. Raises BocError if ``fold`` is invalid.
    """
    to_image = []
    to_text = []
    for pictures, sentences in folds(owners, scores.shape[1], fold):
        own = owners[sentences]
        numbers = np.arange(pictures.start, pictures.stop)
        part = scores[sentences, pictures]
        to_image.append(Recall.of(ranks(part, own, numbers)))
        to_text.append(Recall.of(ranks(part.T, numbers, own)))
    return Recalls(mean_of_folds(to_image), mean_of_folds(to_text))


def evaluate_ndcg(
    scores: Floats,
    owners: Ints,
    relevance: Floats,
    fold: int | None = None,
) -> Ndcg:
    """Compute NDCG@25 in both directions, over the whole gallery or averaged over folds as in
    ``evaluate_recall``.

    ``relevance`` has the same shape as ``scores``. The ideal ranking contains only items in the
    fold. Raises BocError if the shape or ``fold`` is invalid.
    """
    check_relevance(relevance, *scores.shape)
    sides = []
    for pictures, sentences in folds(owners, scores.shape[1], fold):
        part = scores[sentences, pictures]
        grades = relevance[sentences, pictures]
        sides.append(mean_ndcg(ndcg(part, grades), ndcg(part.T, grades.T)))
    return mean_of_folds(sides)


def mean_ndcg(to_image: Doubles, to_text: Doubles) -> Ndcg:
    """Average NDCG over queries. As in the code of TERN's authors, picture queries with NDCG 0 are
    ignored."""
    counted = to_text[to_text > 0]
    mean = counted.sum() / max(1, len(counted))
    return Ndcg(float(to_image.mean()), float(mean))


def check_relevance(relevance: Floats, n_texts: int, n_images: int) -> None:
    """Raise BocError if the shape of ``relevance`` is not (n_texts, n_images)."""
    if relevance.shape != (n_texts, n_images):
        raise BocError(
            f"the relevance matrix is for {relevance.shape[0]} captions and {relevance.shape[1]} "
            f"pictures, but there are {n_texts} captions and {n_images} pictures; give a matrix "
            "for these items",
        )


def ndcg(scores: Floats, relevance: Floats) -> Doubles:
    """Compute NDCG@p, p = 25, of the ranking of all items by ``scores`` for each query,
    (n_queries,). NDCG is 0 for queries without relevant items.

    DCG is the sum of (2^rel_i - 1) / log2(i + 1) over the ranks i = 1..p, with the gain 2^rel - 1
    as in the code of TERN and TERAN. NDCG is the DCG divided by the DCG of the p most relevant
    items (Jarvelin and Kekalainen, TOIS 2002; TERN, eq. 5-6). For TREC runs, ir_measures uses the
    gain rel, as in the papers on TERN and TERAN. Both arrays are (n_queries, n_items).
    ``relevance`` must not be negative, and NaN counts as 0. Items with equal scores are ordered by
    position."""
    n, m = scores.shape
    values = np.zeros(n)
    for start in range(0, n, BLOCK):
        part = slice(start, start + BLOCK)
        block = scores[part]
        columns = (block[:, i : i + ITEMS] for i in range(0, m, ITEMS))
        rows, _ = topk_of_blocks(columns, min(DEPTH, m))
        values[part] = ndcg_of_hits(rows, relevance[part])
    return values


def ndcg_of_hits(hits: Ints, relevance: Floats) -> Doubles:
    """Compute the NDCG of lists of ``hits``, best first, in the same way as ``ndcg``.

    ``hits`` (n_queries, n) contains columns of ``relevance`` (n_queries, n_items), of which the
    first 25 are evaluated. The value -1 means no hit and has a gain of 0.
    """
    grades = np.nan_to_num(relevance, nan=0.0)
    p = min(DEPTH, grades.shape[1])
    hits = hits[:, :p]
    gained = np.take_along_axis(grades, np.maximum(hits, 0), axis=1)
    gained[hits < 0] = 0
    ideal = _dcg(np.sort(np.partition(grades, -p, axis=1)[:, -p:], axis=1)[:, ::-1])
    values = np.zeros(len(hits))
    np.divide(_dcg(gained), ideal, out=values, where=ideal > 0)
    return values


def _dcg(grades: Floats) -> Doubles:
    """Return the discounted cumulative gain (n,) of ranked items with the relevance ``grades`` (n,
    p)."""
    discounts = 1 / np.log2(np.arange(2, grades.shape[1] + 2))
    gain: Doubles = np.exp2(grades.astype(np.float64)) - 1
    return gain @ discounts


def owners_of(images: Sequence[str], groups: Sequence[str]) -> Ints:
    """Return the number of the picture that each sentence describes, derived from picture ids and
    sentence groups.

    Raises BocError if a sentence has no picture or a picture has no sentence, because there would
    be no relevant item for such a query.
    """
    number = {key: i for i, key in enumerate(images)}
    lost = next((group for group in groups if group not in number), None)
    if lost is not None:
        raise BocError(
            f"a caption refers to {lost!r}, but there is no such picture; extract the pictures "
            "and the captions together",
        )
    owners = np.array([number[group] for group in groups], dtype=np.int64)
    bare = np.setdiff1d(np.arange(len(images)), owners)
    if len(bare):
        raise BocError(
            f"{len(bare)} pictures have no caption (for example {images[bare[0]]!r}); give a CSV "
            "with the columns image,caption",
        )
    return owners


def folds(
    owners: Ints,
    n: int,
    fold: int | None,
) -> Iterator[tuple[slice, slice | Ints]]:
    """Yield the pictures and sentences of each complete fold; results for an incomplete fold would
    be too high. If ``fold`` is None, yield all pictures and sentences."""
    if fold is None:
        yield slice(0, n), slice(None)
        return
    if not 1 <= fold <= n:
        raise BocError(f"fold must be between 1 and the number of pictures, {n}; got {fold}")
    for start in range(0, n + 1 - fold, fold):
        yield (
            slice(start, start + fold),
            np.flatnonzero((owners >= start) & (owners < start + fold)),
        )
