"""How good a ranking is, sentences to pictures and back: Recall@K, median rank, NDCG; and the exact one to compare.

Rankings come as scores (n_texts, n_images), an array or a memory-mapped file, of which some rows are looked at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boc.errors import BocError

CUTOFFS = (1, 5, 10)
FOLD = 1000  # pictures of a fold of the "1K" protocol
BLOCK = 1024  # queries looked at a time
DEPTH = 25  # hits that NDCG looks at
ITEMS = 4096  # scored against a block of queries at a time

Gain: TypeAlias = Literal["exponential", "linear"]


@dataclass(frozen=True)
class Recall:
    """Percentages of queries whose right answer is among the first 1, 5, 10, and the median rank (from 1)."""

    r1: float
    r5: float
    r10: float
    median_rank: float

    @property
    def total(self) -> float:
        """R@1 + R@5 + R@10."""
        return self.r1 + self.r5 + self.r10

    @classmethod
    def of(cls, ranks: NDArray[np.int64]) -> Recall:
        """From the rank of each query's first right answer, counted from 0."""
        r1, r5, r10 = (100 * float(np.mean(ranks < k)) for k in CUTOFFS)
        return cls(r1, r5, r10, float(np.floor(np.median(ranks))) + 1)

    @classmethod
    def mean(cls, recalls: Sequence[Recall]) -> Recall:
        """Average over folds."""
        return cls(*np.mean([[r.r1, r.r5, r.r10, r.median_rank] for r in recalls], axis=0).tolist())


@dataclass(frozen=True)
class Recalls:
    """Both directions."""

    text_to_image: Recall
    image_to_text: Recall

    @property
    def total(self) -> float:
        """The sum of the six recalls ("rsum")."""
        return self.text_to_image.total + self.image_to_text.total


@dataclass(frozen=True)
class Ndcg:
    """Mean NDCG of both directions, in [0, 1]."""

    text_to_image: float
    image_to_text: float


def ranks(scores: NDArray[np.floating[Any]], queries: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rank (from 0) of the best right item of each query, of which every query needs one.

    ``scores`` is (n, m); an item is right if its number in ``items`` (m,) is that of the query in ``queries`` (n,).
    Equal scores are ordered by position, as a stable sort does.
    """
    found = np.empty(len(queries), dtype=np.int64)
    for start in range(0, len(queries), BLOCK):
        rows = np.ascontiguousarray(scores[start : start + BLOCK])
        right = queries[start : start + BLOCK, None] == items
        best = np.where(right, rows, -np.inf).argmax(axis=1)
        level = rows[np.arange(len(rows)), best][:, None]
        before = np.arange(len(items)) < best[:, None]
        found[start : start + BLOCK] = ((rows > level) | ((rows == level) & before)).sum(axis=1)
    return found


def text_to_image_ranks(
    images: NDArray[np.float32], texts: NDArray[np.float32], owners: NDArray[np.int64]
) -> NDArray[np.int64]:
    """``ranks`` of each sentence's own picture, ``owners`` (n_texts,), among all by dot product."""
    return ranks(texts @ images.T, owners, np.arange(len(images)))


def image_to_text_ranks(
    images: NDArray[np.float32], texts: NDArray[np.float32], owners: NDArray[np.int64]
) -> NDArray[np.int64]:
    """``ranks`` of the best of each picture's own sentences among all by dot product."""
    return ranks(images @ texts.T, np.arange(len(images)), owners)


def evaluate(
    images: NDArray[np.float32], texts: NDArray[np.float32], owners: NDArray[np.int64], fold: int | None = None
) -> Recalls:
    """``evaluate_recall`` of the dot products of vectors (n_images, d) and (n_texts, d), 4 bytes each in memory."""
    return evaluate_recall(texts @ images.T, owners, fold)


def evaluate_recall(scores: NDArray[np.float32], owners: NDArray[np.int64], fold: int | None = None) -> Recalls:
    """Recalls over the whole gallery, or averaged over contiguous folds of ``fold`` pictures with their sentences.

    ``scores`` is (n_texts, n_images), ``owners`` (n_texts,) the number of each sentence's picture. BocError unless
    ``fold`` is between 1 and the number of pictures.
    """
    to_image, to_text = [], []
    for pictures, sentences in _folds(owners, scores.shape[1], fold):
        own, numbers = owners[sentences], np.arange(pictures.start, pictures.stop)
        part = scores[sentences, pictures]
        to_image.append(Recall.of(ranks(part, own, numbers)))
        to_text.append(Recall.of(ranks(part.T, numbers, own)))
    return Recalls(Recall.mean(to_image), Recall.mean(to_text))


def evaluate_ndcg(
    scores: NDArray[np.float32],
    owners: NDArray[np.int64],
    relevance: NDArray[np.float32],
    fold: int | None = None,
    *,
    p: int = DEPTH,
    gain: Gain = "exponential",
) -> Ndcg:
    """NDCG@p of both directions, over the whole gallery or averaged over folds as ``evaluate_recall`` does.

    ``relevance`` is (n_texts, n_images), as ``scores``; ideals are those of the fold. As in the code of TERN and TERAN,
    the mean for sentences is over all, that for pictures over those whose NDCG is not 0. BocError if a shape or
    ``fold`` is wrong.
    """
    check_relevance(relevance, *scores.shape)
    sides = []
    for pictures, sentences in _folds(owners, scores.shape[1], fold):
        part, known = scores[sentences, pictures], relevance[sentences, pictures]
        to_image = ndcg(part, known, p=p, gain=gain)
        to_text = ndcg(part.T, known.T, p=p, gain=gain)
        to_text = to_text[to_text > 0]
        sides.append((to_image.mean(), to_text.mean() if len(to_text) else 0.0))
    return Ndcg(*np.mean(sides, axis=0).tolist())


def check_relevance(relevance: NDArray[np.float32], n_texts: int, n_images: int) -> None:
    """BocError unless ``relevance`` is (n_texts, n_images)."""
    if relevance.shape != (n_texts, n_images):
        raise BocError(
            f"the relevance matrix is for {relevance.shape[0]} captions and {relevance.shape[1]} pictures, "
            f"there are {n_texts} and {n_images}; give the matrix of these items"
        )


def ndcg(
    scores: NDArray[np.float32],
    relevance: NDArray[np.float32],
    *,
    p: int = DEPTH,
    gain: Gain = "exponential",
) -> NDArray[np.float64]:
    """NDCG@p (n_queries,) of each query's ranking of all items by ``scores``; 0 where nothing is relevant.

    DCG = sum over ranks i = 1..p of gain(rel_i) / log2(i + 1); NDCG divides it by that of the p most relevant items
    (Jarvelin and Kekalainen, TOIS 2002; TERN, eq. 5-6). The gain is 2^rel - 1 in the code of TERN and TERAN, and rel
    ("linear") in their papers. Both arrays are (n_queries, n_items); ``relevance`` is 0 or more, NaN counts as 0.
    Equal scores are ordered by position. BocError unless p is at least 1.
    """
    if p < 1:
        raise BocError(f"p must be at least 1, got {p}; papers take {DEPTH}")
    n, m = scores.shape
    p = min(p, m)
    discounts = 1 / np.log2(np.arange(2, p + 2))
    values = np.zeros(n)
    for start in range(0, n, BLOCK):
        part = slice(start, start + BLOCK)
        asked = scores[part]
        known = np.nan_to_num(relevance[part], nan=0.0)
        rows, _ = _unkeyed(_best((asked[:, i : i + ITEMS] for i in range(0, m, ITEMS)), p))
        found = np.take_along_axis(known, rows, axis=1)
        best = np.sort(np.partition(known, -p, axis=1)[:, -p:], axis=1)[:, ::-1]
        dcg, ideal = (_gains(relevances, gain) @ discounts for relevances in (found, best))
        np.divide(dcg, ideal, out=values[part], where=ideal > 0)
    return values


def exact_top_k(
    queries: NDArray[np.float32], items: NDArray[np.float32], k: int, *, block: int = ITEMS
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Rows (n_queries, k) of the k items of largest dot product and their scores, best first, ties to the lower row.

    1024 queries and ``block`` items are scored at a time. BocError unless k is between 1 and the number of items.
    """
    if not 1 <= k <= len(items):
        raise BocError(f"k must be between 1 and the number of items, {len(items)}; got {k}")
    keys = np.empty((len(queries), k), dtype=np.uint64)
    for start in range(0, len(queries), BLOCK):
        asked = queries[start : start + BLOCK]
        keys[start : start + BLOCK] = _best((asked @ items[i : i + block].T for i in range(0, len(items), block)), k)
    return _unkeyed(keys)


def exact_recall(
    found: Sequence[Sequence[int] | NDArray[np.int64]],
    exact: NDArray[np.int64],
    queries: NDArray[np.float32],
    items: NDArray[np.float32],
) -> float:
    """Mean share of the exact k nearest items (n_queries, k) that are among each query's first k rows of ``found``.

    A found item as similar to the query as the k-th exact one counts too, as in ANN-Benchmarks (Aumuller et al.,
    Information Systems 2020): which of equal items is returned is chance. Fewer rows than k, or -1, stand for nothing
    found; a row found twice counts once.
    """
    k = exact.shape[1]
    shares = []
    for rows, right, query in zip(found, exact, queries, strict=True):
        head = np.unique(np.asarray(rows, dtype=np.int64)[:k])
        head = head[head >= 0]
        least = (items[right] * query).sum(axis=1).min()
        shares.append(int(((items[head] * query).sum(axis=1) >= least).sum()) / k)
    return float(np.mean(shares))


def owners_of(images: Sequence[str], groups: Sequence[str]) -> NDArray[np.int64]:
    """The number of each sentence's picture, from picture ids and the sentences' groups.

    BocError if a sentence belongs to no picture or a picture has no sentence: neither has a right answer.
    """
    number = {key: i for i, key in enumerate(images)}
    lost = next((group for group in groups if group not in number), None)
    if lost is not None:
        raise BocError(f"a caption belongs to {lost!r}, which is not among the pictures; extract both together")
    owners = np.array([number[group] for group in groups], dtype=np.int64)
    bare = np.setdiff1d(np.arange(len(images)), owners)
    if len(bare):
        raise BocError(
            f"{len(bare)} pictures have no caption (such as {images[bare[0]]!r}); give a CSV of image,caption"
        )
    return owners


def _folds(owners: NDArray[np.int64], n: int, fold: int | None) -> Iterator[tuple[slice, slice | NDArray[np.int64]]]:
    """Pictures and their sentences of each whole fold (a shorter rest would be easier); of all ``n`` without one."""
    if fold is None:
        yield slice(0, n), slice(None)
        return
    if not 1 <= fold <= n:
        raise BocError(f"fold must be between 1 and the number of pictures, {n}; got {fold}")
    for start in range(0, n + 1 - fold, fold):
        yield slice(start, start + fold), np.flatnonzero((owners >= start) & (owners < start + fold))


def _best(blocks: Iterable[NDArray[np.float32]], k: int) -> NDArray[np.uint64]:
    """``_keys`` (n, k) of the k best items, best first, from the scores (n, b) of one block of items after another."""
    kept: list[NDArray[np.uint64]] = []
    first = 0
    for scores in blocks:
        best = np.concatenate([*kept, _keys(scores, first)], axis=1)
        kept = [np.partition(best, -k, axis=1)[:, -k:] if best.shape[1] > k else best]
        first += scores.shape[1]
    return np.sort(kept[0], axis=1)[:, ::-1]


def _gains(relevance: NDArray[np.float32], gain: Gain) -> NDArray[np.float64]:
    exact = relevance.astype(np.float64)
    return exact if gain == "linear" else np.exp2(exact) - 1


def _keys(scores: NDArray[np.float32], first: int) -> NDArray[np.uint64]:
    """Whole numbers ordered as (score, -row): no two are equal, so the k largest are one set, ties or not.

    The bits of a positive float32 are ordered as it is, those of a negative one the other way round.
    """
    bits = np.add(scores, 0, dtype=np.float32).view(np.uint32)  # -0 becomes 0
    ordered = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)).astype(np.uint64)
    rows = np.arange(first, first + scores.shape[1], dtype=np.uint64)
    return (ordered << np.uint64(32)) | (np.uint64(2**32 - 1) - rows)


def _unkeyed(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Rows and scores of ``_keys``."""
    rows = (np.uint64(2**32 - 1) - (keys & np.uint64(2**32 - 1))).astype(np.int64)
    ordered = (keys >> np.uint64(32)).astype(np.uint32)
    bits = np.where(ordered >> 31, ordered & np.uint32(2**31 - 1), ~ordered)
    return rows, bits.view(np.float32)
