"""Sparsification: keep the largest components of a row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.codecs._base import SparseStep, one_row, stacked
from boc.types import Modality

BLOCK = 4096  # rows at a time, so that temporaries stay small beside the input


def top_mask(X: NDArray[Any], z: int) -> NDArray[np.bool_]:
    """Boolean (n, d): the ``z`` largest entries of each row of ``X``, ties to the lower column."""
    if z >= X.shape[1]:
        return np.ones(X.shape, dtype=bool)
    threshold = -np.partition(-X, z - 1, axis=1)[:, z - 1 : z]
    above = threshold < X
    level = threshold == X
    room = z - above.sum(axis=1, keepdims=True)
    mask: NDArray[np.bool_] = above | (level & (np.cumsum(level, axis=1) <= room))
    return mask


class TopZ(SparseStep):
    """Keep the ``z`` largest positive components of each row; the others become zero (BoC, section III-A).

    The budgets are apart because they cost apart: a document pays bytes for each term, a query pays time. Recall
    depends on about their product, so few terms a document and many a query is the cheaper way to the same recall.

    Parameters
    ----------
    z : int or None, default=None
        Terms kept of a document, 1 <= z <= n_features; None keeps all positive components.
    query_z : int or None, default=None
        The same for a query; None means ``z``.
    """

    def __init__(self, z: int | None = None, query_z: int | None = None) -> None:
        self.z = z
        self.query_z = query_z

    def fit(self, X: Any, y: object = None) -> TopZ:
        """Check the budgets against the width of ``X``; ValueError names both."""
        width = self._validated(X, reset=True).shape[1]
        for name, z in (("z", self.z), ("query_z", self.query_z)):
            if z is not None and not 1 <= z <= width:
                raise ValueError(f"{name} must be between 1 and the number of terms, {width}; got {z}")
        return self

    def transform(self, X: Any) -> sparse.csr_array:
        """X (n, d) -> float32 csr (n, d), at most ``z`` positive entries a row."""
        return self._keep(X, self.z)

    def encode_queries(self, X: Any, modality: Modality) -> sparse.csr_array:
        return self._keep(X, self.z if self.query_z is None else self.query_z)

    def _keep(self, X: Any, z: int | None) -> sparse.csr_array:
        X = self._validated(X, reset=False)
        z = X.shape[1] if z is None else z
        return stacked([_keep_block(X[i : i + BLOCK], z) for i in range(0, X.shape[0], BLOCK)])


def _keep_block(X: Any, z: int) -> sparse.csr_array:
    block = X.toarray() if sparse.issparse(X) else X
    if len(block) == 1:
        columns = np.flatnonzero(top_mask(block, z)[0] & (block[0] > 0)).astype(np.int32)
        return one_row(block[0, columns].astype(np.float32), columns, block.shape[1])
    rows = sparse.csr_array(np.where(top_mask(block, z) & (block > 0), block, 0).astype(np.float32))
    rows.sort_indices()
    return rows
