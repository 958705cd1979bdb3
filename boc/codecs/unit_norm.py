"""Unit length of what is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from boc.codecs.base import SparseStep, as_rows, one_row


class UnitNorm(SparseStep):
    """Scale each row to unit Euclidean length, so that the dot product of two codes is their cosine.

    The papers compare codes by cosine, an inverted index by dot product; after this step they agree. Placed behind
    ``TopZ`` it evens out how much of a vector the kept terms hold. Zero rows stay zero.
    """

    def transform(self, X: Any) -> sparse.csr_array:
        """X (n, d) -> csr (n, d) with rows of length 1."""
        rows = as_rows(self._validated(X, reset=False))
        counts = np.diff(rows.indptr)
        owners = np.repeat(np.arange(len(counts)), counts)
        lengths = np.sqrt(np.bincount(owners, rows.data.astype(np.float64) ** 2, len(counts)))
        scaled = (rows.data / lengths[owners]).astype(rows.dtype)
        if len(counts) == 1:
            return one_row(scaled, rows.indices, rows.shape[1])
        return sparse.csr_array((scaled, rows.indices, rows.indptr), shape=rows.shape)
