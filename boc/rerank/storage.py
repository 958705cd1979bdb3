"""Convert concept sets and vectors to and from the form in which indexes store them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.types import Ragged, StoredConcepts
from boc.vectors import Array, Floats, unit_rows

LARGEST = np.float32(127)  # maximum int8 component
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


@np.errstate(over="ignore", invalid="ignore")
def round_rows(rows: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Round ``rows`` float32 (n, d) to int8 (n, d) with one scale per row, float32 (n,).

    If the components of a row are multiples (from -128 to 127) of the smallest magnitude except
    zero, this magnitude is the scale, and the rounding is exact. Therefore the rows of an int8 file
    are stored without loss. Otherwise, the scale is the maximum magnitude of the row divided by
    127, and the error of a component is at most half of the scale, plus float32 rounding. Rounding
    a rounded row again returns the same row. Rows whose components are all below about 2**-119
    become zeros with scale 0; rows that contain NaN, infinity or the maximum float32 become NaN.
    """
    sizes = np.abs(rows)
    most = sizes.max(axis=1, initial=0)
    units = sizes.min(axis=1, where=sizes > 0, initial=np.inf)
    multiples = rows / units[:, None]
    exact = ((multiples + 1e-3) % 1 < 2e-3) & (multiples > -128.5) & (multiples < 127.5)
    # Compute the scale as for a rounded row, which changes the last bit of a few scales.
    scales = most / LARGEST * LARGEST / LARGEST
    scales = np.where(exact.all(axis=1) & (most > 1.5 * units), units, scales)
    scales[scales < np.finfo(np.float32).tiny] = 0
    scales[np.isinf(scales)] = np.nan
    units = np.where(scales > 0, scales, np.inf)
    return np.rint(np.nan_to_num(rows / units[:, None])).astype(np.int8), scales
