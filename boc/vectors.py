"""Check rows of vectors, scale them to unit length, and split them into batches."""

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

    Nearly all queries pass this test. Full validation of a single query would take longer than
    encoding it.
    """
    if type(rows) is not np.ndarray or rows.dtype != FLOAT32 or not rows.flags.c_contiguous:
        return False
    if rows.ndim != 2 or rows.shape[0] == 0 or rows.shape[1] != width:
        return False
    return isfinite(np.vdot(rows, rows))  # other float32 products warn of overflow


def plain_rows(rows: Any, width: int | None, what: str) -> Floats:
    """Convert real numbers of any type to float32 (n, d) that passes ``are_plain`` unless n is 0.

    ``width`` is the required d; None allows any. Raises BocError, which names the row, for NaN,
    infinity, and squares beyond float32.
    """
    if width is not None and are_plain(rows, width):
        return rows  # type: ignore[no-any-return]
    values = np.asarray(rows)
    if values.dtype.kind not in "fiub":
        raise BocError(f"{what} of type {values.dtype}; give real numbers, preferably float32")
    if values.ndim != 2 or (width is not None and values.shape[1] != width):
        raise BocError(
            f"{what} of shape {values.shape}; give rows of {width or 'numbers'}: (n, "
            f"{width or 'd'})",
        )
    with np.errstate(over="ignore"):
        plain = np.ascontiguousarray(values, np.float32)
        odd = np.flatnonzero(~np.isfinite(np.einsum("ij,ij->i", plain, plain)))
    if len(odd):
        raise BocError(
            f"row {odd[0]} of the {what} contains NaN, infinity or numbers too large for float32; "
            "correct it",
        )
    return plain


def unit_rows(rows: Array) -> Floats:
    """Return rows (n, d) scaled to unit length, float32; zero rows stay zero.

    Rows are first divided by their largest component, because squares of tiny or huge components
    exceed the range of float32.
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
    """Return the row of ``means`` (m, d) labelled with the modality, or the mean of all rows."""
    known = labels.tolist()
    mean: Floats = means.mean(axis=0)
    if modality in known:
        mean = means[known.index(modality)]
    return mean
