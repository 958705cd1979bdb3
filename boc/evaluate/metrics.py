"""Compute ranking metrics in both directions (Recall@K, median rank, NDCG), and exact top k as
ground truth.

A ranking is a score matrix (n_texts, n_images), either an array or a memory-mapped file, which is
read in blocks of rows.
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
DEPTH = 25  # rank at which NDCG is truncated
ITEMS = 4096  # items scored against a block of queries at a time


@dataclass(frozen=True)
class Recall:
    """Percentages of queries with a right answer among the first 1, 5 and 10 hits, and the median
    rank (from 1)."""

    r1: float
    r5: float
    r10: float
    median_rank: float

    @property
    def total(self) -> float:
        """Return the sum R@1 + R@5 + R@10."""
        return self.r1 + self.r5 + self.r10

    @classmethod
    def of(cls, ranks: Ints) -> Recall:
        """Compute recall from each query's rank, from 0, of its first right answer."""
        r1, r5, r10 = (100 * float(np.mean(ranks < k)) for k in CUTOFFS)
        return cls(r1, r5, r10, float(np.floor(np.median(ranks))) + 1)


@dataclass(frozen=True)
class Recalls:
    """Recalls in both directions."""

    text_to_image: Recall
    image_to_text: Recall

    @property
    def total(self) -> float:
        """Return the sum of the six recalls ("rsum")."""
        return self.text_to_image.total + self.image_to_text.total


@dataclass(frozen=True)
class Ndcg:
    """Mean NDCG in both directions, between 0 and 1."""

    text_to_image: float
    image_to_text: float


F = TypeVar("F", Recall, Ndcg)


def mean_of_folds(figures: Sequence[F]) -> F:
    """Average the figures of all folds."""
    return type(figures[0])(*np.mean([astuple(each) for each in figures], axis=0).tolist())


def ranks(
    scores: Floats,
    queries: Ints,
    items: Ints,
) -> Ints:
    """Return the rank (from 0) of each query's best right item. Every query needs a right item.

    ``scores`` is (n, m); an item is right if its number in ``items`` (m,) equals the number of the
    query in ``queries`` (n,). Equal scores are ordered by position, as a stable sort does."""
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
    """Compute the recalls over the gallery, or averaged over contiguous folds of ``fold`` pictures.

    ``scores`` is (n_texts, n_images); ``owners`` (n_texts,) contains the number of each sentence's
    picture. Raises BocError for an invalid ``fold``.
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

    ``relevance`` has the shape of ``scores``. The ideal ranking ranks the items of the fold. Raises
    BocError for an invalid shape or ``fold``.
    """
    check_relevance(relevance, *scores.shape)
    sides = []
    for pictures, sentences in folds(owners, scores.shape[1], fold):
        part = scores[sentences, pictures]
        grades = relevance[sentences, pictures]
        sides.append(mean_ndcg(ndcg(part, grades), ndcg(part.T, grades.T)))
    return mean_of_folds(sides)


def mean_ndcg(to_image: Doubles, to_text: Doubles) -> Ndcg:
    """Average NDCG over queries. For picture queries, the average excludes queries with NDCG 0, as
    in the authors' code."""
    counted = to_text[to_text > 0]
    mean = counted.sum() / max(1, len(counted))
    return Ndcg(float(to_image.mean()), float(mean))


def check_relevance(relevance: Floats, n_texts: int, n_images: int) -> None:
    """Raise BocError unless ``relevance`` is (n_texts, n_images)."""
    if relevance.shape != (n_texts, n_images):
        raise BocError(
            f"the relevance matrix is for {relevance.shape[0]} captions and {relevance.shape[1]} "
            f"pictures, but the items are {n_texts} and {n_images}; give their matrix",
        )


def ndcg(scores: Floats, relevance: Floats) -> Doubles:
    """Compute NDCG@p (n_queries,), p = 25, for each query's ranking of all items by ``scores``; 0
    for a query without relevant items.

    DCG is the sum over ranks i = 1..p of (2^rel_i - 1) / log2(i + 1), with the gain 2^rel - 1 from
    the code of TERN and TERAN. NDCG divides the DCG by the DCG of the p most relevant items
    (Jarvelin and Kekalainen, TOIS 2002; TERN, eq. 5-6). For TREC runs, ir_measures uses the gain
    rel, as their papers do. Both arrays are (n_queries, n_items); ``relevance`` is 0 or more, and
    NaN counts as 0. Equal scores are ordered by position."""
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
    """Compute the NDCG of ranked lists of ``hits``, best first, as ``ndcg`` does.

    ``hits`` (n_queries, n) are columns of ``relevance`` (n_queries, n_items), of which the first 25
    count. -1 means no hit and has no gain.
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
    """Return the discounted gain (n,) of items with the relevance grades (n, p), best first."""
    discounts = 1 / np.log2(np.arange(2, grades.shape[1] + 2))
    gain: Doubles = np.exp2(grades.astype(np.float64)) - 1
    return gain @ discounts


def owners_of(images: Sequence[str], groups: Sequence[str]) -> Ints:
    """Return the number of each sentence's picture, derived from picture ids and sentence groups.

    Raises BocError if a sentence has no picture or a picture has no sentence, because such a query
    would have no right answer.
    """
    number = {key: i for i, key in enumerate(images)}
    lost = next((group for group in groups if group not in number), None)
    if lost is not None:
        raise BocError(
            f"a caption belongs to {lost!r}, which is not among the pictures; extract both "
            "together",
        )
    owners = np.array([number[group] for group in groups], dtype=np.int64)
    bare = np.setdiff1d(np.arange(len(images)), owners)
    if len(bare):
        raise BocError(
            f"{len(bare)} pictures have no caption (such as {images[bare[0]]!r}); give a CSV of "
            "image,caption",
        )
    return owners


def folds(
    owners: Ints,
    n: int,
    fold: int | None,
) -> Iterator[tuple[slice, slice | Ints]]:
    """Yield the pictures and sentences of each full fold, since a shorter fold would be easier.
    Without ``fold``, yield all of them."""
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
