"""Storage of concept sets and vectors in an index."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.types import Ragged, StoredConcepts
from boc.vectors import Array, Floats, unit_rows

LARGEST = np.float32(127)  # magnitude of an int8 component
SCALE = 4  # bytes of the scale of a row


def store(concepts: Ragged, dtype: str) -> StoredConcepts:
    """Return concept sets in the form that an index stores: rows of unit length, as float16, or as
    int8 with one scale per row.

    ``round_rows`` makes the int8 rows.
    """
    rows = unit_rows(concepts.values)
    if dtype == "float16":
        return StoredConcepts(store_rows(rows, dtype), concepts.offsets)
    whole, scales = round_rows(rows)
    return StoredConcepts(whole, concepts.offsets, scales)


def store_rows(rows: Floats, dtype: str) -> Array:
    """Return ``rows`` float32 (n, d) in the form that an index stores: float16, float32 or float64
    (n, d). For int8 the form is uint8 (n, d + SCALE): the bytes of the components and of the scale
    of each row, see ``round_rows``."""
    if dtype == "int8":
        whole, scales = round_rows(rows)
        ends = scales.astype("<f4", copy=False)[:, None]
        return np.hstack([whole.view(np.uint8), ends.view(np.uint8)])
    # Numbers out of the range of the type become infinite.
    with np.errstate(over="ignore"):
        return rows.astype(dtype, copy=False)


def round_trip(rows: Floats, dtype: str) -> NDArray[np.floating[Any]]:
    """Return ``rows`` float32 (n, d) with the rounding of an index that stores the type
    ``dtype``."""
    return restore_rows(store_rows(rows, dtype))


def restore_rows(rows: Array) -> NDArray[np.floating[Any]]:
    """Return the vectors (n, d) from an array of ``store_rows``: float32 for bytes; other types
    stay as they are."""
    if rows.dtype != np.uint8:
        return rows
    scales = np.ascontiguousarray(rows[:, -SCALE:]).view("<f4")
    whole = rows[:, :-SCALE].view(np.int8)
    vectors: Floats = whole.astype(np.float32)
    vectors *= scales
    return vectors


def round_rows(rows: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return ``rows`` float32 (n, d) as int8 (n, d), to be multiplied by their scales float32 (n,).

    A scale is the largest magnitude of its row / 127. The error of a component is at most half of
    the scale, and the rounding of float32. Rows that were rounded are rounded to the same again.
    Rows of components below about 2**-119 become zeros, with scale 0; rows with NaN, infinity or
    the largest float32 become NaN.
    """
    scales = np.abs(rows).max(axis=1, initial=0).astype(np.float32) / LARGEST
    # The scale is computed from the rounded row: a few scales differ in the last bit.
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
