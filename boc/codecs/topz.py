"""Sparsification: keep the largest components of a row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.codecs.base import SparseStep, one_row, stacked
from boc.types import Modality, TermMatrix

BLOCK = 4096  # rows at a time, which keeps temporaries small


def largest(X: NDArray[Any], z: int) -> NDArray[np.int32]:
    """Ascending columns (n, z) of the ``z`` largest entries of each row of ``X`` (n, d), ties to the lower column."""
    n, width = X.shape
    if z == width:
        return np.tile(np.arange(width, dtype=np.int32), (n, 1))
    kth = np.partition(X, width - z, axis=1)[:, width - z, None]
    kept = kth <= X
    for row in np.flatnonzero(kept.sum(axis=1) > z):  # ties at the k-th best: the last ones are dropped
        equal = np.flatnonzero(X[row] == kth[row])
        kept[row, equal[z - np.count_nonzero(kept[row]) :]] = False
    return np.nonzero(kept)[1].reshape(n, z).astype(np.int32)


class TopZ(SparseStep):
    """Keep the ``z`` largest positive components of each row; the others become zero (BoC, section III-A).

    The two budgets differ because their costs differ: a term of a document costs bytes, a term of a query costs time.
    Recall depends roughly on their product, so few terms per document and many per query reach a recall at lower cost.

    Parameters
    ----------
    z : int or None, default=None
        Terms kept per document, 1 <= z <= n_features; None keeps all positive components.
    query_z : int or None, default=None
        Terms kept per query; None means ``z``.
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
        """X (n, d) -> float32 csr (n, d), at most ``z`` positive entries per row."""
        return self._keep(X, self.z)

    def encode_queries(self, X: Any, modality: Modality) -> sparse.csr_array:
        return self._keep(X, self.z if self.query_z is None else self.query_z)

    def _keep(self, X: Any, z: int | None) -> sparse.csr_array:
        X = self._validated(X, reset=False)
        z = X.shape[1] if z is None else z
        return stacked([keep_block(X[i : i + BLOCK], z) for i in range(0, X.shape[0], BLOCK)])


def keep_block(X: Any, z: int) -> sparse.csr_array:
    """The ``z`` largest positive components of each row of ``X`` (n, d), all rows at a time: float32 csr (n, d)."""
    block = X.toarray() if sparse.issparse(X) else X
    columns = largest(block, z)
    values = np.take_along_axis(block, columns, axis=1).astype(np.float32, copy=False)
    positive = values > 0
    if len(block) == 1:
        return one_row(values[positive], columns[positive], block.shape[1])
    ends = np.concatenate([[0], np.cumsum(positive.sum(axis=1))])
    return sparse.csr_array((values[positive], columns[positive], ends), shape=block.shape)


def heaviest(terms: TermMatrix, z: int) -> TermMatrix:
    """The z largest frequencies of each row of ``terms`` (n, V), ties to the lower term."""
    row = np.repeat(np.arange(terms.shape[0]), np.diff(terms.indptr))
    order = np.lexsort((terms.indices, -terms.data, row))  # sorts within each row
    kept = np.sort(order[np.arange(len(order)) - terms.indptr[row] < z])
    ends = np.searchsorted(kept, terms.indptr)
    return sparse.csr_array((terms.data[kept], terms.indices[kept], ends), shape=terms.shape)
