"""Compact codes of vectors, by which candidates are ranked before their vectors are read.

To encode a vector, the mean of its modality is subtracted, the result is rotated, and each
component is rounded to one of four levels. A code needs two bits per component, an eighth of the
space for float16. The levels are chosen for normally distributed components: after random signs and
Hadamard transforms, the components are nearly normal with equal variances (Gao and Long, RaBitQ,
SIGMOD 2024; with more bits: SIGMOD 2025). If x are the levels of a rotated vector r, the product of
r with a rotated query q is estimated by (x.q) (r.r) / (x.r). For a given query, this product
differs from the product of the original vectors by a constant per modality, so the estimates rank
the rows of one modality.

Codes and estimates are identical on all machines. The code of a row depends only on the row and on
the code of the index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.names import MODALITIES
from boc.rerank.storage import restore_rows
from boc.vectors import Array, Floats, mean_of

try:
    from boc.rerank import _rescore
except ImportError:  # the module is not compiled
    _rescore = None  # type: ignore[assignment]

PER_BYTE = 4  # two-bit components per byte
ROUNDS = 2  # rounds of random signs and Hadamard transforms
BLOCK = 256  # rows encoded at a time, so that they fit into the cache


@dataclass(frozen=True, eq=False)
class CompactRows:
    """Codes of n rows: ``codes`` uint8 (n, d / 4) and the ``scales`` float32 (n,) of the levels.
    The search kernel checks types and shapes."""

    codes: NDArray[np.uint8]
    scales: Floats

    def __len__(self) -> int:
        return len(self.codes)


class CompactCode:
    """Encode vectors (n, d), from which row i of ``means`` float32 (2, d) is subtracted for
    modality i.

    Only native code can write and read the codes.
    """

    def __init__(self, means: Floats) -> None:
        self.means = np.ascontiguousarray(means, np.float32)
        self.signs = _signs(self.means.shape[1])

    @classmethod
    def of(
        cls,
        codec: Mapping[str, Any],
        arrays: Mapping[str, Array],
        dim: int,
    ) -> CompactCode | None:
        """Return the code for vectors of dimension ``dim``, given the configuration and arrays of
        the codec of the index, whose means are used. Returns None if the codec has no means,
        because a common component would make the codes less precise, or if the native module is not
        compiled."""
        steps = [step["name"] for step in codec["steps"]]
        if _rescore is None or "Center" not in steps:
            return None
        i = steps.index("Center")
        labels = arrays[f"{i}.labels_"]
        means = arrays[f"{i}.means_"]
        # Means of another dimension are the means of concepts.
        if means.shape[1] != dim:
            return None
        return cls(np.stack([mean_of(each, labels, means) for each in MODALITIES]))

    @property
    def width(self) -> int:
        """Return the number of bytes per row."""
        return -(-len(self.means[0]) // PER_BYTE)

    def encode(
        self,
        vectors: Array,
        modality: NDArray[np.uint8],
    ) -> CompactRows:
        """Encode stored ``vectors`` (n, d). ``modality`` (n,) selects the mean for each vector."""
        codes = np.empty((len(vectors), self.width), np.uint8)
        scales = np.empty(len(vectors), np.float32)
        for i in range(0, len(vectors), BLOCK):
            block = slice(i, i + BLOCK)
            rows = restore_rows(vectors[block]).astype(np.float32)
            rows -= self.means[modality[block]]
            _rescore.encode(
                rows,
                self.signs,
                codes[block],
                scales[block],
            )
        return CompactRows(codes, scales)


def _signs(d: int) -> Floats:
    """Return fixed pseudo-random signs (ROUNDS, d), derived from a multiplicative hash
    (splitmix64)."""
    with np.errstate(over="ignore"):
        z = np.arange(1, ROUNDS * d + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    signs = 1 - 2 * (z >> np.uint64(63)).astype(np.float32)
    return signs.reshape(ROUNDS, d)
