"""Validate vectors, scale them to unit length, and split them into batches."""

from collections.abc import Iterator
from math import isfinite
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from boc.errors import BocError

Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Int32s: TypeAlias = NDArray[np.int32]
Bytes: TypeAlias = NDArray[np.uint8]

Values = TypeVar("Values", bound=Any)

FLOAT32 = np.dtype(np.float32)


def batches(values: Values, size: int) -> Iterator[Values]:
    """Yield consecutive parts of an array or another sequence, each of at most ``size`` values.

    >>> list(batches("abcde", 2))
    ['ab', 'cd', 'e']
    """
    for start in range(0, len(values), size):
        yield values[start : start + size]


def are_plain(rows: Any, width: int) -> bool:
    """Return whether ``rows`` is a contiguous, finite float32 array (n, width) with at least one
    row.

    Almost all queries pass this fast test. A full validation would take longer than encoding a
    query.
    """
    if type(rows) is not np.ndarray or rows.dtype != FLOAT32 or not rows.flags.c_contiguous:
        return False
    if rows.ndim != 2 or rows.shape[0] == 0 or rows.shape[1] != width:
        return False
    return isfinite(np.vdot(rows, rows))  # unlike vdot, other float32 products warn about overflow


def plain_rows(rows: Any, width: int | None, what: str) -> Floats:
    """Convert an array of any real type to a finite, contiguous float32 array (n, d).

    ``width`` is the required d; None allows any width. For NaN, infinity, and numbers whose squares
    overflow float32, raises a BocError that names the row.
    """
    if width is not None and are_plain(rows, width):
        return rows  # type: ignore[no-any-return]
    values = np.asarray(rows)
    if values.dtype.kind not in "fiub":
        raise BocError(f"the {what} have type {values.dtype}; pass real numbers, ideally float32")
    if values.ndim != 2 or (width is not None and values.shape[1] != width):
        raise BocError(
            f"the {what} have shape {values.shape}; pass an array of shape (n, {width or 'd'})",
        )
    with np.errstate(over="ignore"):
        plain = np.ascontiguousarray(values, np.float32)
        odd = np.flatnonzero(~np.isfinite(np.einsum("ij,ij->i", plain, plain)))
    if len(odd):
        raise BocError(
            f"row {odd[0]} of the {what} contains NaN, infinity or a number too large for float32; "
            "correct the row",
        )
    return plain


def unit_rows(rows: Array) -> Floats:
    """Return ``rows`` (n, d) scaled to unit length, as float32. Zero rows stay zero.

    Each row is first divided by its largest component, because the squares of very small or large
    components do not fit into float32.
    """
    peaks = np.maximum(rows.max(axis=1, initial=0), -rows.min(axis=1, initial=0))[:, None]
    scaled = rows / np.where(peaks > 0, peaks, 1)
    lengths = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]
    scaled /= np.where(lengths > 0, lengths, 1)
    unit: Floats = scaled.astype(np.float32, copy=False)
    return unit


def mean_of(
    modality: str | None,
    labels: NDArray[np.str_],
    means: Floats,
) -> Floats:
    """Return the row of ``means`` (m, d) whose label is the modality, or the mean of all rows if no
    label matches."""
    known = labels.tolist()
    mean: Floats = means.mean(axis=0)
    if modality in known:
        mean = means[known.index(modality)]
    return mean
