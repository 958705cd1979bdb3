"""Scores of candidates anew: the dot product of dense vectors, or late interaction over concept sets.

An alignment pools the cosines A of a picture's regions i and a sentence's words j (TERAN: Messina et al., Fine-grained
Visual Textual Alignment, TOMM 2021):

    mrsw    sum over words of the maximum over regions (eq. 3)
    mwsr    sum over regions of the maximum over words (eq. 3)
    symm    mrsw + mwsr (eq. 4)
    mravgw  mrsw / number of words (eq. 8)

These are the paper's equations. The authors' code also lets the zeros of padded positions compete in a maximum, which
in their evaluation bounds each region's maximum in mwsr, and in that part of symm, below by 0: scores differ where a
region is unlike every word. Here nothing is padded. An alignment with an empty set is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter
from typing import Any

import numkong
import numpy as np
from numpy.typing import NDArray

from boc.errors import BocError
from boc.types import Hit, Ragged, StoredConcepts

try:
    from boc import _dots
except ImportError:  # not built here: ``products`` stands in
    _dots = None  # type: ignore[assignment]

METRICS = ("dot", "mrsw", "mwsr", "symm", "mravgw")
CONCEPT_DTYPES = ("float16", "int8")
PROBE = 16  # candidates whose vectors tell whether the others are in memory
CELLS = 1 << 22  # cosines pooled at a time: they stay in the cache


def check_metric(metric: str) -> str:
    """``metric`` if there is such a one; BocError names those there are."""
    if metric not in METRICS:
        raise BocError(f"no re-rank metric {metric!r}; known: {', '.join(METRICS)}")
    return metric


def reorder(hits: Sequence[Hit], scores: NDArray[np.float32], k: int) -> list[Hit]:
    """The k hits of largest score, which takes the place of the one they had, ties by id."""
    scored = [replace(hit, score=float(score)) for hit, score in zip(hits, scores, strict=True)]
    return sorted(scored, key=lambda hit: (-hit.score, hit.item.id))[:k]


def dot(
    query: NDArray[np.float32], vectors: NDArray[np.generic], chosen: NDArray[np.int64] | None = None
) -> NDArray[np.float32]:
    """Dot products (m,) of ``query`` float32 (d,) with the rows ``chosen`` int64 (m,) of ``vectors`` float16 or float32
    (n, d), or with all.

    Rows are read where they lie, a memory map for example, and each is scored as if it were alone. In float32: off by
    (d / 4 + 4) * 2**-24 * sum |q_i v_i| at most. IndexError for a row that is not there, ValueError for another width.
    """
    if _dots is None or not vectors.flags.c_contiguous:
        return _gathered(query, vectors, chosen)
    scores = np.empty(len(vectors) if chosen is None else len(chosen), np.float32)
    _dots.dot(np.ascontiguousarray(query), vectors, None if chosen is None else np.ascontiguousarray(chosen), scores)
    return scores


def best(
    query: NDArray[np.float32],
    vectors: NDArray[np.generic],
    chosen: NDArray[np.int64],
    k: int,
    patience: float = math.inf,
) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
    """Of the rows ``chosen`` the k that ``dot`` gives the largest products, and these: the largest first, of equal ones
    the row chosen first.

    None if the first ``PROBE`` of them took longer than ``patience``, in seconds, as those on a disk do.
    """
    k = min(k, len(chosen))
    if _dots is None or not vectors.flags.c_contiguous:
        return _best(query, vectors, chosen, k, patience)
    found, scores = np.empty(k, np.int64), np.empty(k, np.float32)
    if _dots.best(np.ascontiguousarray(query), vectors, np.ascontiguousarray(chosen), patience, found, scores):
        return found, scores
    return None


def _best(
    query: NDArray[np.float32], vectors: NDArray[np.generic], chosen: NDArray[np.int64], k: int, patience: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
    begun = perf_counter()
    first = dot(query, vectors, chosen[:PROBE])
    if len(chosen) > PROBE and perf_counter() - begun > patience:
        return None
    scores = np.concatenate([first, dot(query, vectors, chosen[PROBE:])])
    order = np.argsort(-scores, kind="stable")[:k]
    return chosen[order], scores[order]


def _gathered(
    query: NDArray[np.float32], vectors: NDArray[np.generic], chosen: NDArray[np.int64] | None
) -> NDArray[np.float32]:
    """What ``dot`` gives, from a copy of the rows."""
    if chosen is not None and (chosen < 0).any():
        raise IndexError(f"no row {chosen.min()} among {len(vectors)}")
    found: NDArray[np.float32] = products(query[None], vectors if chosen is None else vectors[chosen])[0]
    return found


def align(
    query: NDArray[np.float32], candidates: StoredConcepts, metric: str, *, asks_by_words: bool
) -> NDArray[np.float32]:
    """Alignment scores (n,) of a concept set float32 (m, d) with n stored ones.

    ``asks_by_words`` says that the words are those of the query and the regions those of the candidates, and not the
    other way round.
    """
    check_metric(metric)
    cosines = products(unit_rows(query), candidates.values)
    if candidates.scales is not None:
        cosines *= candidates.scales
    whole = np.array([0, len(query)])
    scores: NDArray[np.float32] = _pool(cosines, whole, candidates.offsets, metric, words_in_rows=asks_by_words)[0]
    return scores


def alignments(words: Ragged, regions: Ragged, metric: str) -> NDArray[np.float32]:
    """Alignment scores (n_texts, n_images) of all sets of words with all sets of regions, each float32 (N, d).

    Beside the sets of unit length, some 16 MB of cosines are in memory at a time.
    """
    check_metric(metric)
    n, m = len(words), len(regions)
    scores = np.empty((n, m), dtype=np.float32)
    asked, rows = unit_rows(words.values), unit_rows(regions.values)
    step = max(1, CELLS * m // max(1, len(asked) * len(rows)))
    for first in range(0, m, step):
        part = regions.offsets[first : first + step + 1]
        cosines = asked @ rows[part[0] : part[-1]].T
        scores[:, first : first + step] = _pool(cosines, words.offsets, part - part[0], metric, words_in_rows=True)
    return scores


def store(concepts: Ragged, dtype: str) -> StoredConcepts:
    """Concept sets as an index stores them: rows scaled to unit length, as float16, or as int8 with a scale a row.

    An int8 component is off by at most half the scale, which is the largest component of the row / 127.
    """
    rows = unit_rows(concepts.values)
    if dtype == "float16":
        return StoredConcepts(stored(rows, dtype), concepts.offsets)
    scales = np.abs(rows).max(axis=1, initial=0) / np.float32(127)
    rows /= np.where(scales > 0, scales, 1)[:, None]
    return StoredConcepts(np.rint(rows).astype(np.int8), concepts.offsets, scales)


def stored(rows: NDArray[np.float32], dtype: str) -> NDArray[np.floating[Any]]:
    """``rows`` float32 (n, d) as an index stores them: float16, rounded to the nearest, or as they are."""
    if dtype != "float16" or _dots is None or rows.dtype != np.float32:
        return rows.astype(dtype, copy=False)
    found = np.empty(rows.shape, np.float16)
    return found if _dots.halve(np.ascontiguousarray(rows), found) else rows.astype(np.float16)


def unit_rows(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows (n, d) scaled to length 1; zero rows stay."""
    peaks = np.abs(rows).max(axis=1, initial=0, keepdims=True)
    scaled = rows / np.where(peaks > 0, peaks, 1)  # first, or the squares of tiny and huge rows leave float32
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    unit: NDArray[np.float32] = (scaled / np.where(lengths > 0, lengths, 1)).astype(np.float32, copy=False)
    return unit


def products(queries: NDArray[np.float32], rows: NDArray[np.generic]) -> NDArray[np.float32]:
    """``queries`` float32 (m, d) @ ``rows``.T float16, int8 or float32 (n, d) -> (m, n), without converting ``rows``.

    numpy takes longer to convert float16 or int8 rows than numkong to multiply them. Each query is given to it in two
    parts of the type of the rows, its rounding and what that leaves, so that nothing is lost but what storing lost.
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
    found = np.asarray(numkong.dots_packed(np.ascontiguousarray(rows), numkong.dots_pack(parts)))
    both = np.ascontiguousarray(found.T).astype(np.float32, copy=False)
    m = len(queries)
    whole: NDArray[np.float32] = (both[:m] + both[m:] / np.float32(finer)) * (peaks / np.float32(largest))
    return whole


def _pool(
    cosines: NDArray[np.float32],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    metric: str,
    *,
    words_in_rows: bool,
) -> NDArray[np.float32]:
    """Scores (n, m) of the blocks of ``cosines`` that the offsets ``rows`` (n + 1,) and ``columns`` (m + 1,) bound."""
    tall, wide = np.diff(rows) > 0, np.diff(columns) > 0
    scores = np.zeros((len(tall), len(wide)), dtype=np.float32)
    if not cosines.size:
        return scores
    tops, lefts = rows[:-1][tall], columns[:-1][wide]

    def sum_over(words: bool) -> NDArray[np.float32]:
        """Sum over words, or over regions, of the maximum over the others."""
        if words == words_in_rows:
            pooled: NDArray[np.float32] = np.add.reduceat(np.maximum.reduceat(cosines, lefts, axis=1), tops, axis=0)
        else:  # reduceat along the rows takes ten times as long as this loop
            bounds = pairwise([*tops.tolist(), len(cosines)])
            pooled = np.add.reduceat(np.stack([cosines[a:b].max(axis=0) for a, b in bounds]), lefts, axis=1)
        return pooled

    found = sum_over(words=metric != "mwsr")
    if metric == "symm":
        found += sum_over(words=False)
    elif metric == "mravgw":
        lengths = np.diff(tops, append=len(cosines))[:, None], np.diff(lefts, append=cosines.shape[1])
        found /= lengths[0] if words_in_rows else lengths[1]
    scores[np.ix_(tall, wide)] = found
    return scores
