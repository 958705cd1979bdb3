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
from time import perf_counter

import numkong
import numpy as np
from numpy.typing import NDArray

from boc.errors import BocError
from boc.types import Hit

try:
    from boc import _dots
except ImportError:  # not built here: ``products`` stands in
    _dots = None  # type: ignore[assignment]

METRICS = ("dot", "mrsw", "mwsr", "symm", "mravgw")
PROBE = 16  # candidates whose vectors tell whether the others are in memory


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
