"""Compact codes of stored vectors, which order candidates before their vectors are read.

A vector less the mean of its modality is rotated, and each component is rounded to one of four
levels, in two bits: an eighth of float16. The levels are those of a normal component: after random
signs and Hadamard transforms all components are nearly normal and of one size (Gao and Long,
RaBitQ, SIGMOD 2024; with more bits: SIGMOD 2025). With the levels x of a rotated vector r, its
product with a rotated query q is estimated by (x.q) (r.r) / (x.r). It differs from the product of
the vectors by a constant of query and modality, so estimates order the rows of one modality.

Codes and estimates are the same on all machines, and those of a row depend on row and code of the
index only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.names import MODALITIES
from boc.rerank.storage import restore_rows
from boc.vectors import Doubles, Floats, Ints, mean_of

try:
    from boc.rerank import _rescore
except ImportError:  # not built here: numpy stands in
    _rescore = None  # type: ignore[assignment]

BITS = 2
LEVELS = 1 << BITS
PER_BYTE = 8 // BITS
SHIFTS = np.arange(0, 8, BITS, dtype=np.uint8)
ROUNDS = 2  # of signs and Hadamard transforms
FINEST = 32767  # largest magnitude of a component while it is coded
STEP = 0.996  # between levels, in standard deviations: the best for normal components
COARSE = 127  # largest magnitude of a component of a query
BLOCK = 256  # rows coded at a time, which fit the cache


@dataclass(frozen=True, eq=False)
class CompactRows:
    """The codes of n rows: ``codes`` uint8 (n, d / 4) and the ``scales`` float32 (n,) of their
    levels."""

    codes: NDArray[np.uint8]
    scales: Floats

    def __post_init__(self) -> None:
        codes = self.codes
        scales = self.scales
        if codes.ndim != 2 or codes.dtype != np.uint8 or scales.dtype != np.float32:
            raise ValueError(
                f"compact codes are {codes.dtype} {codes.shape}, scales {scales.dtype}",
            )
        if scales.shape != codes.shape[:1]:
            raise ValueError(f"{len(codes)} compact codes, {scales.shape} scales")

    def __len__(self) -> int:
        return len(self.codes)


class CompactCode:
    """Codes vectors (n, d), of which those of modality i are less ``means`` float32 (2, d)[i]."""

    def __init__(self, means: Floats) -> None:
        self.means = np.ascontiguousarray(means, np.float32)
        self.signs = _signs(self.means.shape[1])

    @classmethod
    def of(
        cls,
        codec: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
        dim: int,
    ) -> CompactCode | None:
        """Return the code for vectors of width ``dim`` of an index whose codec has this
        configuration and these arrays: with the means that it subtracts. None if it subtracts none:
        a common part would coarsen the codes.
        """
        steps = [step["name"] for step in codec["steps"]]
        if "Center" not in steps:
            return None
        i = steps.index("Center")
        labels = arrays[f"{i}.labels_"]
        means = arrays[f"{i}.means_"]
        # Means of another width are those of concepts.
        if means.shape[1] != dim:
            return None
        return cls(np.stack([mean_of(each, labels, means) for each in MODALITIES]))

    @property
    def width(self) -> int:
        """Bytes of the code of a row."""
        return -(-len(self.means[0]) // PER_BYTE)

    def encode(
        self,
        vectors: NDArray[Any],
        modality: NDArray[np.uint8],
    ) -> CompactRows:
        """Return the codes of ``stored`` vectors (n, d); ``modality`` (n,) selects their mean."""
        codes = np.empty((len(vectors), self.width), np.uint8)
        scales = np.empty(len(vectors), np.float32)
        for i in range(0, len(vectors), BLOCK):
            block = slice(i, i + BLOCK)
            rows = restore_rows(vectors[block]).astype(np.float32)
            rows -= self.means[modality[block]]
            if _rescore is None:
                codes[block], scales[block] = self._code(rows.T.copy())
            else:
                _rescore.encode(rows, self.signs, codes[block], scales[block])
        return CompactRows(codes, scales)

    def estimates(self, query: Floats, stored: CompactRows, rows: Ints) -> Floats:
        """Estimate the products of ``query`` (d,) with ``rows`` (m,) of a modality, but for a
        factor and a constant."""
        column = self._rotate(query[:, None].astype(np.float32))
        rounded, _ = _round(column, COARSE)
        whole = rounded[:, 0].astype(np.int64)
        packed = stored.codes[rows][:, None, :] >> SHIFTS[:, None] & (LEVELS - 1)
        levels = packed.reshape(len(rows), PER_BYTE * self.width)[:, : len(query)]
        sums = 2 * (levels.astype(np.int64) @ whole) - (LEVELS - 1) * whole.sum()
        estimates: Floats = sums.astype(np.float32) * stored.scales[rows]
        return estimates

    def _code(self, columns: Floats) -> tuple[NDArray[np.uint8], Doubles]:
        """Return codes (n, d / 4) and scales (n,) of columns (d, n)."""
        whole, units = _round(self._rotate(columns), FINEST)
        d, n = whole.shape
        squares = np.einsum("ji,ji->i", whole, whole)
        width = STEP * np.sqrt(squares / d)
        levels = np.zeros((PER_BYTE * self.width, n), np.uint8)
        levels[:d] = LEVELS // 2 - 1
        levels[:d] += whole >= 0
        levels[:d] += whole >= width
        levels[:d] -= whole < -width
        products = np.einsum("ji,ji->i", whole, 2.0 * levels[:d] - (LEVELS - 1))
        parts = levels.reshape(PER_BYTE, self.width, n) << SHIFTS[:, None, None]
        codes = np.bitwise_or.reduce(parts, axis=0).T
        scales = np.divide(squares, products, out=np.zeros(n), where=products > 0)
        return codes, scales * units

    def _rotate(self, columns: Floats) -> Floats:
        """Multiply columns (d, n) by signs and Hadamard transforms of their first and last numbers,
        in place."""
        d = len(columns)
        p = 1 << (d.bit_length() - 1)
        with np.errstate(invalid="ignore", over="ignore"):
            for signs in self.signs:
                columns *= signs[:, None]
                columns[:p] = _transform(columns[:p])
                if p < d:
                    columns[d - p :] = _transform(columns[d - p :])
        return columns


def _transform(columns: Floats) -> Floats:
    """Return the Hadamard transform of columns (p, n), p a power of 2, scaled to keep lengths."""
    p = len(columns)
    for _ in range(p.bit_length() - 1):
        first = columns[: p // 2]
        second = columns[p // 2 :]
        columns = np.empty_like(columns)
        np.add(first, second, out=columns[0::2])
        np.subtract(first, second, out=columns[1::2])
    return columns * np.float32(1 / np.sqrt(p))


def _round(columns: Floats, largest: int) -> tuple[Doubles, Doubles]:
    """Return columns (d, n) as whole numbers, the largest of which becomes ``largest``, and their
    units (n,).

    Columns that hold something else than numbers become zeros.
    """
    most = np.abs(columns).max(axis=0, initial=0).astype(np.float64)
    odd = ~np.isfinite(most)
    columns[:, odd] = 0
    most[odd] = 0
    factors = np.zeros(len(most))
    np.divide(largest, most, out=factors, where=most > 0)
    return np.rint(columns * factors), most / largest


def _signs(d: int) -> Floats:
    """Return signs (ROUNDS, d), the same for ever: bits of a multiplicative hash (splitmix64)."""
    with np.errstate(over="ignore"):
        z = np.arange(1, ROUNDS * d + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    signs = 1 - 2 * (z >> np.uint64(63)).astype(np.float32)
    return signs.reshape(ROUNDS, d)
