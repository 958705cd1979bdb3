"""Convert concept sets and vectors to and from the form in which indexes store them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.types import Ragged, StoredConcepts
from boc.vectors import Array, Floats, unit_rows

LARGEST = np.float32(127)  # maximum magnitude of an int8 component
SCALE = 4  # bytes per scale


def store(concepts: Ragged, dtype: str) -> StoredConcepts:
    """Convert concept sets to the stored form: rows of unit length, as float16 or as int8 with one
    scale per row.

    For int8, rows are rounded by ``round_rows``.
    """
    rows = unit_rows(concepts.values)
    if dtype == "float16":
        return StoredConcepts(store_rows(rows, dtype), concepts.offsets)
    whole, scales = round_rows(rows)
    return StoredConcepts(whole, concepts.offsets, scales)


def store_rows(rows: Floats, dtype: str) -> Array:
    """Convert ``rows`` float32 (n, d) to the stored form: float16, float32 or float64 (n, d). For
    int8, the stored form is uint8 (n, d + SCALE), which contains the bytes of the components and
    the scale of each row (see ``round_rows``)."""
    if dtype == "int8":
        whole, scales = round_rows(rows)
        ends = scales.astype("<f4", copy=False)[:, None]
        return np.hstack([whole.view(np.uint8), ends.view(np.uint8)])
    # Values out of range become infinite.
    with np.errstate(over="ignore"):
        return rows.astype(dtype, copy=False)


def round_trip(rows: Floats, dtype: str) -> NDArray[np.floating[Any]]:
    """Return ``rows`` float32 (n, d), rounded as in an index that stores vectors as ``dtype``."""
    return restore_rows(store_rows(rows, dtype))


def restore_rows(rows: Array) -> NDArray[np.floating[Any]]:
    """Convert the result of ``store_rows`` back to vectors (n, d). Bytes are converted to float32;
    other types are returned unchanged."""
    if rows.dtype != np.uint8:
        return rows
    scales = np.ascontiguousarray(rows[:, -SCALE:]).view("<f4")
    whole = rows[:, :-SCALE].view(np.int8)
    vectors: Floats = whole.astype(np.float32)
    vectors *= scales
    return vectors


def round_rows(rows: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Round ``rows`` float32 (n, d) to int8 (n, d) with one scale per row, float32 (n,).

    The scale is the maximum magnitude of the row divided by 127. The error of a component is at
    most half of the scale, plus float32 rounding. Rounding a rounded row again returns the same
    row. Rows whose components are all below about 2**-119 become zeros with scale 0; rows that
    contain NaN, infinity or the maximum float32 become NaN.
    """
    scales = np.abs(rows).max(axis=1, initial=0).astype(np.float32) / LARGEST
    # Compute the scale as for a rounded row, which changes the last bit of a few scales.
    with np.errstate(over="ignore"):
        scales = scales * LARGEST / LARGEST
    scales[scales < np.finfo(np.float32).tiny] = 0
    scales[np.isinf(scales)] = np.nan
    whole = np.zeros(rows.shape, np.float32)
    units = scales[:, None]
    np.divide(
        rows,
        units,
        out=whole,
        where=units > 0,
    )
    np.rint(whole, out=whole)
    return whole.astype(np.int8), scales
