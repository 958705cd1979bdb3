"""Concept sets and vectors as an index stores them."""

from __future__ import annotations

from typing import Any

import numkong
import numpy as np
from numpy.typing import NDArray

from boc.types import Ragged, StoredConcepts
from boc.vectors import unit_rows


def store(concepts: Ragged, dtype: str) -> StoredConcepts:
    """Concept sets as an index stores them: rows scaled to unit length, as float16, or as int8 with one scale per row.

    The error of an int8 component is at most half the scale, which is the largest component of the row / 127.
    """
    rows = unit_rows(concepts.values)
    if dtype == "float16":
        return StoredConcepts(stored(rows, dtype), concepts.offsets)
    scales = np.abs(rows).max(axis=1, initial=0) / np.float32(127)
    rows /= np.where(scales > 0, scales, 1)[:, None]
    return StoredConcepts(np.rint(rows).astype(np.int8), concepts.offsets, scales)


def stored(rows: NDArray[np.float32], dtype: str) -> NDArray[np.floating[Any]]:
    """``rows`` float32 (n, d) as an index stores them: rounded to float16, or unchanged."""
    if dtype != "float16" or rows.dtype != np.float32:
        return rows.astype(dtype, copy=False)
    return np.asarray(numkong.astype(np.ascontiguousarray(rows), "float16"))  # numpy takes twice as long
