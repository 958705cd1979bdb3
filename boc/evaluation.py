"""How good a ranking is, sentences to pictures and back: Recall@K, median rank, NDCG; and the exact one to compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boc.errors import BocError

CUTOFFS = (1, 5, 10)
FOLD = 1000  # pictures of a fold of the "1K" protocol
BLOCK = 1024  # queries scored at a time
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


def text_to_image_ranks(
    images: NDArray[np.float32], texts: NDArray[np.float32], owners: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Rank (from 0) of each sentence's own picture, ``owners`` (n_texts,), among all by dot product.

    Equal scores are ordered by position, as a stable sort does.
    """
    ranks = np.empty(len(texts), dtype=np.int64)
    for start in range(0, len(texts), BLOCK):
        own = owners[start : start + BLOCK]
        scores = texts[start : start + BLOCK] @ images.T
        best = scores[np.arange(len(own)), own][:, None]
        before = np.arange(len(images)) < own[:, None]
        ranks[start : start + BLOCK] = ((scores > best) | ((scores == best) & before)).sum(axis=1)
    return ranks


def image_to_text_ranks(
    images: NDArray[np.float32], texts: NDArray[np.float32], owners: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Best rank (from 0) among each picture's own sentences; every picture needs one."""
    ranks = np.empty(len(images), dtype=np.int64)
    for start in range(0, len(images), BLOCK):
        scores = images[start : start + BLOCK] @ texts.T
        own = owners == np.arange(start, start + len(scores))[:, None]
        best = np.where(own, scores, -np.inf).argmax(axis=1)
        level = scores[np.arange(len(scores)), best][:, None]
        before = np.arange(len(texts)) < best[:, None]
        ranks[start : start + BLOCK] = ((scores > level) | ((scores == level) & before)).sum(axis=1)
    return ranks


def evaluate(
    images: NDArray[np.float32], texts: NDArray[np.float32], owners: NDArray[np.int64], fold: int | None = None
) -> Recalls:
    """Recalls over the whole gallery, or averaged over contiguous folds of ``fold`` pictures with their sentences.

    ``images`` is (n, d), ``texts`` (m, d), ``owners`` (m,) the number of each sentence's picture. BocError unless
    ``fold`` is between 1 and n.
    """
    to_image, to_text = [], []
    for part, mine in _folds(owners, len(images), fold):
        gallery = images[part], texts[mine], owners[mine] - part.start
        to_image.append(Recall.of(text_to_image_ranks(*gallery)))
        to_text.append(Recall.of(image_to_text_ranks(*gallery)))
    return Recalls(Recall.mean(to_image), Recall.mean(to_text))


def evaluate_ndcg(
    images: NDArray[np.float32],
    texts: NDArray[np.float32],
    owners: NDArray[np.int64],
    relevance: NDArray[np.float32],
    fold: int | None = None,
    *,
    p: int = DEPTH,
    gain: Gain = "exponential",
) -> Ndcg:
    """NDCG@p of both directions, over the whole gallery or averaged over folds as ``evaluate`` does.

    ``relevance`` is (n_texts, n_images); ideals are those of the fold. As in the code of TERN and TERAN, the mean for
    sentences is over all, that for pictures over those whose NDCG is not 0. BocError if a shape or ``fold`` is wrong.
    """
    if relevance.shape != (len(texts), len(images)):
        raise BocError(
            f"the relevance matrix is for {relevance.shape[0]} captions and {relevance.shape[1]} pictures, "
            f"there are {len(texts)} and {len(images)}; give the matrix of these items"
        )
    sides = []
    for part, mine in _folds(owners, len(images), fold):
        own = relevance[mine, part]
        to_image = ndcg(texts[mine], images[part], own, p=p, gain=gain)
        to_text = ndcg(images[part], texts[mine], own.T, p=p, gain=gain)
        to_text = to_text[to_text > 0]
        sides.append((to_image.mean(), to_text.mean() if len(to_text) else 0.0))
    return Ndcg(*np.mean(sides, axis=0).tolist())


def ndcg(
    queries: NDArray[np.float32],
    items: NDArray[np.float32],
    relevance: NDArray[np.float32],
    *,
    p: int = DEPTH,
    gain: Gain = "exponential",
) -> NDArray[np.float64]:
    """NDCG@p (n_queries,) of each query's ranking of all items by dot product; 0 where nothing is relevant.

    DCG = sum over ranks i = 1..p of gain(rel_i) / log2(i + 1); NDCG divides it by that of the p most relevant items
    (Jarvelin and Kekalainen, TOIS 2002; TERN, eq. 5-6). The gain is 2^rel - 1 in the code of TERN and TERAN, and rel
    ("linear") in their papers. ``relevance`` is (n_queries, n_items), 0 or more; NaN counts as 0. Equal scores are
    ordered by position. BocError unless p is at least 1.
    """
    if p < 1:
        raise BocError(f"p must be at least 1, got {p}; papers take {DEPTH}")
    p = min(p, len(items))
    discounts = 1 / np.log2(np.arange(2, p + 2))
    values = np.zeros(len(queries))
    for start in range(0, len(queries), BLOCK):
        part = slice(start, start + BLOCK)
        known = np.nan_to_num(relevance[part], nan=0.0)
        rows, _ = exact_top_k(queries[part], items, p)
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
        best = np.empty((len(asked), 0), dtype=np.uint64)
        for first in range(0, len(items), block):
            best = np.concatenate([best, _keys(asked @ items[first : first + block].T, first)], axis=1)
            if best.shape[1] > k:
                best = np.partition(best, -k, axis=1)[:, -k:]
        keys[start : start + BLOCK] = np.sort(best, axis=1)[:, ::-1]
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
