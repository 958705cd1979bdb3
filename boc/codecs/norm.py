"""Unit length of what is kept."""

from __future__ import annotations

from typing import Any

from scipy import sparse

from boc.codecs._base import SparseStep, as_rows


class UnitNorm(SparseStep):
    """Scale each row to unit Euclidean length, so that the dot product of two codes is their cosine.

    The papers compare codes by cosine, an inverted index by dot product; after this step they agree. Placed behind
    ``TopZ`` it evens out how much of a vector the kept terms hold. Zero rows stay zero.
    """

    def transform(self, X: Any) -> sparse.csr_array:
        """X (n, d) -> csr (n, d) with rows of length 1."""
        from sklearn.preprocessing import normalize

        return as_rows(normalize(self._validated(X, reset=False)))
