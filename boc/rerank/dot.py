"""Re-ranking by the dot products of a query with stored vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numkong
import numpy as np
from numpy.typing import NDArray

from boc.rerank.storage import restored
from boc.topk import topk
from boc.types import Hit

try:
    from boc.rerank import _rescore
except ImportError:  # not built here: ``products`` stands in
    _rescore = None  # type: ignore[assignment]

_NONE = np.empty(0, np.int64)


def reorder(hits: Sequence[Hit], scores: NDArray[np.float32], k: int) -> list[Hit]:
    """The k hits with the largest of ``scores``, which replace their own scores; ties go to the smaller id."""
    scored = [replace(hit, score=float(score)) for hit, score in zip(hits, scores, strict=True)]
    return sorted(scored, key=lambda hit: (-hit.score, hit.item.id))[:k]


def dot(
    query: NDArray[np.float32], vectors: NDArray[np.generic], chosen: NDArray[np.int64] | None = None
) -> NDArray[np.float32]:
    """Dot products (m,) of ``query`` float32 (d,) with the rows ``chosen`` int64 (m,) of ``vectors`` (n, d).

    All rows if ``chosen`` is None. ``vectors`` are float16, float32, or uint8 as ``boc.rerank.storage.stored`` gives
    them of int8, for example a memory map; rows are not copied. The score of a row does not depend on the other rows.
    Sums are in float32, with an error of at most (d / 4 + 5) * 2**-24 * sum |q_i v_i|. IndexError for a row out of
    range, ValueError if the widths differ.
    """
    if _rescore is None or not vectors.flags.c_contiguous:
        return _gathered(query, vectors, chosen)
    scores = np.empty(len(vectors) if chosen is None else len(chosen), np.float32)
    some = [] if chosen is None else [np.ascontiguousarray(chosen)]
    _rescore.dot(np.ascontiguousarray(query), vectors, scores, *some)
    return scores


def best(
    queries: NDArray[np.float32], vectors: NDArray[np.generic], chosen: Sequence[NDArray[np.int64]], k: int
) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """For each of ``queries`` float32 (q, d) the k of its ``chosen`` rows int64 (m,) with the largest dot products, and
    these, best first; ties in the given order. One call answers all queries, and lets other threads run."""
    if _rescore is None or not vectors.flags.c_contiguous:
        return [_best(query, vectors, rows, k) for query, rows in zip(queries, chosen, strict=True)]
    counts = [len(rows) for rows in chosen]
    one = len(counts) == 1
    offsets = np.array([0, counts[0]] if one else [0, *accumulate(counts)], np.int64)
    together = np.ascontiguousarray(chosen[0] if one else np.concatenate([_NONE, *chosen]))
    width = min(k, max(counts, default=0))
    rows, scores = np.empty((len(counts), width), np.int64), np.empty((len(counts), width), np.float32)
    _rescore.best(np.ascontiguousarray(queries), vectors, offsets, together, rows, scores)
    if one:
        return [(rows[0], scores[0])]
    return [(rows[i, :count], scores[i, :count]) for i, count in enumerate(counts)]


def _best(
    query: NDArray[np.float32], vectors: NDArray[np.generic], chosen: NDArray[np.int64], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The same for one query, from all scores."""
    scores = dot(query, vectors, chosen)
    order = topk(scores, k)
    return chosen[order], scores[order]


def _gathered(
    query: NDArray[np.float32], vectors: NDArray[np.generic], chosen: NDArray[np.int64] | None
) -> NDArray[np.float32]:
    """The same as ``dot``, from a copy of the rows."""
    if chosen is not None and (chosen < 0).any():
        raise IndexError(f"no row {chosen.min()} among {len(vectors)}")
    scores: NDArray[np.float32] = products(query[None], restored(vectors if chosen is None else vectors[chosen]))[0]
    return scores


def products(queries: NDArray[np.float32], rows: NDArray[np.generic]) -> NDArray[np.float32]:
    """``queries`` float32 (m, d) @ ``rows``.T float16, int8 or float32 (n, d) -> (m, n), without converting ``rows``.

    numkong multiplies float16 and int8 rows faster than numpy converts them. It needs queries of the type of the rows,
    so each query is passed as the sum of two such vectors, its rounded value and the remainder: the precision of the
    query is kept.
    """
    if queries.shape[1] != rows.shape[1]:
        raise ValueError(f"queries of width {queries.shape[1]} for rows of width {rows.shape[1]}")
    if rows.dtype == np.float32 or not len(rows):
        plain: NDArray[np.float32] = queries @ rows.astype(np.float32, copy=False).T
        return plain
    largest, finer = (127.0, 254.0) if rows.dtype == np.int8 else (1.0, 2048.0)
    peaks = np.abs(queries).max(axis=1, keepdims=True)
    peaks[peaks == 0] = 1
    scaled = queries / peaks * np.float32(largest)
    high = np.rint(scaled) if rows.dtype == np.int8 else scaled.astype(np.float16)
    low = (scaled - high.astype(np.float32)) * np.float32(finer)
    parts = np.concatenate([high, np.rint(low) if rows.dtype == np.int8 else low]).astype(rows.dtype)
    dots = np.asarray(numkong.dots_packed(np.ascontiguousarray(rows), numkong.dots_pack(parts)))
    both = np.ascontiguousarray(dots.T).astype(np.float32, copy=False)
    m = len(queries)
    whole: NDArray[np.float32] = (both[:m] + both[m:] / np.float32(finer)) * (peaks / np.float32(largest))
    return whole
