"""Rows of vectors: checked, and scaled to unit length."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.errors import BocError

FLOAT32 = np.dtype(np.float32)


def are_plain(rows: Any, width: int) -> bool:
    """Return whether ``rows`` are a float32 array (n, width) of at least one row, contiguous and finite.

    Nearly all queries pass this test; for one query the full validation takes longer than its encoding.
    """
    return (
        type(rows) is np.ndarray
        and rows.dtype == FLOAT32
        and rows.flags.c_contiguous
        and rows.ndim == 2
        and rows.shape[0] > 0
        and rows.shape[1] == width
        and isfinite((values := rows.ravel()).dot(values))
    )


def plain_rows(rows: Any, width: int, what: str) -> NDArray[np.float32]:
    """Return rows (n, width) of real numbers of any type as plain ones. BocError for others, called ``what``.

    A float64 beyond the range of float32 counts as infinite.
    """
    if are_plain(rows, width):
        plain: NDArray[np.float32] = rows
        return plain
    array = np.asarray(rows)
    if array.dtype.kind not in "fiub":
        raise BocError(f"{what} must be real numbers, got {array.dtype}; write np.asarray(rows, np.float32)")
    if array.ndim != 2 or array.shape[1] != width:
        raise BocError(f"{what} must be rows of {width} numbers, (n, {width}), got an array {array.shape}")
    with np.errstate(over="ignore"):
        plain = np.ascontiguousarray(array, np.float32)
    finite = np.isfinite(plain).all(axis=1)
    if not finite.all():
        raise BocError(f"row {int(finite.argmin())} of the {what} has NaN or an infinite number; leave it out")
    return plain


def unit_rows(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Return rows (n, d) scaled to length 1, float32; zero rows stay zero.

    Rows are first divided by their largest component, since squares of tiny and huge ones leave the range of float32.
    """
    peaks = np.maximum(rows.max(axis=1, initial=0), -rows.min(axis=1, initial=0))[:, None]
    scaled = rows / np.where(peaks > 0, peaks, 1)
    lengths = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]
    scaled /= np.where(lengths > 0, lengths, 1)
    unit: NDArray[np.float32] = scaled.astype(np.float32, copy=False)
    return unit
