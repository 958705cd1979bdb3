"""Compact codes of stored vectors, which order candidates before their vectors are read.

A vector less the mean of its modality is rotated, and each component is rounded to one of four levels, in two bits: an
eighth of float16. The levels are those of a normal component: after random signs and Hadamard transforms all components
are nearly normal and of one size (Gao and Long, RaBitQ, SIGMOD 2024; with more bits: SIGMOD 2025). With the levels x of
a rotated vector r, its product with a rotated query q is estimated by (x.q) (r.r) / (x.r). It differs from the product
of the vectors by a constant of query and modality, so estimates order the rows of one modality.

Codes and estimates are the same on all machines, and those of a row depend on the row and the code of the index only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.names import MODALITIES
from boc.rerank.storage import restored

try:
    from boc.rerank import _compact
except ImportError:  # not built here: numpy stands in
    _compact = None  # type: ignore[assignment]

BITS = 2
LEVELS = 1 << BITS
PER_BYTE = 8 // BITS
ROUNDS = 2  # of signs and Hadamard transforms
FINEST = 32767  # largest magnitude of a component while it is coded
STEP = 0.996  # between levels, in standard deviations: the best for normal components
COARSE = 127  # largest magnitude of a component of a query
BLOCK = 4096  # rows coded at a time

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class CompactRows:
    """The codes of n rows: ``codes`` uint8 (n, d / 4) and the ``scales`` float32 (n,) of their levels."""

    codes: NDArray[np.uint8]
    scales: Floats

    def __post_init__(self) -> None:
        if self.codes.ndim != 2 or self.codes.dtype != np.uint8 or self.scales.dtype != np.float32:
            raise ValueError(f"compact codes are {self.codes.dtype} {self.codes.shape}, scales {self.scales.dtype}")
        if self.scales.shape != self.codes.shape[:1]:
            raise ValueError(f"{len(self.codes)} compact codes, {self.scales.shape} scales")

    def __len__(self) -> int:
        return len(self.codes)


class CompactCode:
    """Codes vectors (n, d), of which those of modality i are less ``means`` float32 (2, d)[i]."""

    def __init__(self, means: Floats) -> None:
        self.means = np.ascontiguousarray(means, np.float32)
        self.signs = _signs(self.means.shape[1])

    @classmethod
    def of(cls, codec: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], dim: int) -> CompactCode | None:
        """The code for vectors of width ``dim`` of an index whose codec has this configuration and these arrays: with
        the means that it subtracts. None if it subtracts none: a common part of all vectors would coarsen their codes.
        """
        steps = [step["name"] for step in codec["steps"]]
        if "Center" not in steps:
            return None
        i = steps.index("Center")
        labels, means = arrays[f"{i}.labels_"].tolist(), arrays[f"{i}.means_"]
        if means.shape[1] != dim:
            return None  # they are of concepts
        known = [means[labels.index(each)] if each in labels else means.mean(axis=0) for each in MODALITIES]
        return cls(np.stack(known))

    @property
    def width(self) -> int:
        """Bytes of the code of a row."""
        return -(-len(self.means[0]) // PER_BYTE)

    def encode(self, vectors: NDArray[Any], modality: NDArray[np.uint8]) -> CompactRows:
        """The codes of ``vectors`` (n, d), ``boc.rerank.storage.stored``; ``modality`` (n,) selects their mean."""
        codes, scales = np.empty((len(vectors), self.width), np.uint8), np.empty(len(vectors), np.float32)
        if _compact is not None:
            rows, which = np.ascontiguousarray(vectors), np.ascontiguousarray(modality)
            _compact.encode(rows, which, self.means, self.signs, codes, scales)
            return CompactRows(codes, scales)
        for i in range(0, len(vectors), BLOCK):
            block = slice(i, i + BLOCK)
            codes[block], scales[block] = self._coded(vectors[block], modality[block])
        return CompactRows(codes, scales)

    def estimates(self, query: Floats, stored: CompactRows, rows: NDArray[np.int64]) -> Floats:
        """Estimates (m,), times a positive constant, of the products of ``query`` (d,) with ``rows`` (m,) of one
        modality, but for a constant."""
        found = np.empty(len(rows), np.float32)
        if _compact is not None:
            chosen = np.ascontiguousarray(rows)
            _compact.estimate(np.ascontiguousarray(query), self.signs, stored.codes, stored.scales, chosen, found)
            return found
        whole, _ = _whole(self._rotated(query[None].astype(np.float32)), COARSE)
        packed = stored.codes[rows][:, None, :] >> np.arange(0, 8, BITS, dtype=np.uint8)[:, None] & (LEVELS - 1)
        levels = packed.reshape(len(rows), PER_BYTE * self.width)[:, : len(query)].astype(np.int64)
        sums = 2 * (levels @ whole[0]) - (LEVELS - 1) * whole[0].sum()
        return sums.astype(np.float32) * stored.scales[rows]

    def _coded(self, vectors: NDArray[Any], modality: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], Floats]:
        rows = restored(vectors).astype(np.float32, copy=False) - self.means[modality]
        rows[~np.isfinite(rows).all(axis=1)] = 0
        whole, unit = _whole(self._rotated(rows), FINEST)
        squares = np.einsum("ij,ij->i", whole, whole)
        width = (STEP * np.sqrt(squares / whole.shape[1]))[:, None]
        levels = np.where(whole >= 0, LEVELS // 2, LEVELS // 2 - 1)
        for step in range(1, LEVELS // 2):
            levels += (whole >= step * width).astype(np.int64) - (whole < -step * width)
        products = np.einsum("ij,ij->i", whole, 2 * levels - LEVELS + 1)
        codes = np.zeros((len(whole), PER_BYTE * self.width), np.uint8)
        codes[:, : whole.shape[1]] = levels
        parts = codes.reshape(len(whole), PER_BYTE, self.width) << np.arange(0, 8, BITS, dtype=np.uint8)[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            scales = (squares / products * unit).astype(np.float32)
        return np.bitwise_or.reduce(parts, axis=1), np.where(products > 0, scales, np.float32(0))

    def _rotated(self, rows: Floats) -> Floats:
        """Rows (n, d) times signs and Hadamard transforms of their first and last numbers, in place."""
        d = rows.shape[1]
        p = 1 << (d.bit_length() - 1)
        for signs in self.signs:
            rows *= signs
            rows[:, :p] = _transformed(rows[:, :p])
            if p < d:
                rows[:, d - p :] = _transformed(rows[:, d - p :])
        return rows


def _transformed(rows: Floats) -> Floats:
    """The Hadamard transform of rows (n, p), p a power of 2, scaled to keep lengths."""
    p = rows.shape[1]
    for _ in range(p.bit_length() - 1):
        first, second = rows[:, : p // 2], rows[:, p // 2 :]
        rows = np.stack([first + second, first - second], axis=2).reshape(len(rows), p)
    return rows * np.float32(1 / np.sqrt(p))


def _whole(rows: Floats, largest: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Rows as whole numbers, the largest of which becomes ``largest``, and their units (n,). Rows that hold something
    else than numbers become zeros."""
    rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, np.float32(0))
    most = np.abs(rows).max(axis=1, initial=0).astype(np.float64)
    factors = largest / np.where(most > 0, most, 1)
    return np.rint(rows * np.where(most > 0, factors, 0)[:, None]).astype(np.int64), most / largest


def _signs(d: int) -> Floats:
    """Signs (ROUNDS, d), the same for ever: bits of a multiplicative hash (splitmix64)."""
    with np.errstate(over="ignore"):
        z = np.arange(1, ROUNDS * d + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.where(z >> np.uint64(63), np.float32(-1), np.float32(1)).reshape(ROUNDS, d)
