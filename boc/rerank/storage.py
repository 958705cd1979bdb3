"""Concept sets and vectors as an index stores them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.rerank.dot import unit_rows
from boc.types import Ragged, StoredConcepts

try:
    from boc import _dots
except ImportError:  # no C compiler where it was installed
    _dots = None  # type: ignore[assignment]

CONCEPT_DTYPES = ("float16", "int8")


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
