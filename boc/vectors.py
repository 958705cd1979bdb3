"""Rows of vectors: checked, and scaled to unit length."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def unit_rows(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Scale rows (n, d) to length 1, float32; zero rows stay zero.

    Rows are first divided by their largest component, since squares of tiny and huge ones leave the range of float32.
    """
    peaks = np.maximum(rows.max(axis=1, initial=0), -rows.min(axis=1, initial=0))[:, None]
    scaled = rows / np.where(peaks > 0, peaks, 1)
    lengths = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]
    scaled /= np.where(lengths > 0, lengths, 1)
    unit: NDArray[np.float32] = scaled.astype(np.float32, copy=False)
    return unit
