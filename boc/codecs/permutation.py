"""Deep permutation: a component becomes a term frequency by its rank."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.codecs.base import SparseStep, frequencies


def permutation(v: NDArray[Any]) -> NDArray[np.int64]:
    """The permutation of BoC, eq. 1: indices (from 0) of ``v`` (n,) by descending value, ties to the lower index.

    >>> (permutation(np.array([0.2, 0.4, 0.1, 0.3, 0.6])) + 1).tolist()
    [5, 2, 4, 1, 3]
    """
    return np.argsort(-v, kind="stable")


class DeepPermutation(SparseStep):
    """tf_j = m - rank_j, where rank 0 is the largest of the m components of the row, ties to the lower index.

    Of a dense row all components are ranked, of a sparse row the stored ones: behind ``TopZ(z)`` frequencies run
    from z down to 1, the truncated permutation. All rows with the same m have the same length, so the dot product
    orders as the cosine does, and as Spearman's rho on the ranks does (BoC, eq. 1; Amato et al., Deep Permutations,
    SISAP 2016).

    Examples
    --------
    >>> import numpy as np
    >>> DeepPermutation().fit_transform(np.array([[0.2, 0.4, 0.1, 0.3, 0.6]])).toarray().tolist()
    [[2, 4, 1, 3, 5]]
    """

    def transform(self, X: Any) -> sparse.csr_array:
        """X (n, d) -> int32 csr (n, d)."""
        X = self._validated(X, reset=False)
        rows = X if sparse.issparse(X) else _full_rows(X)
        rows = sparse.csr_array(rows)
        rows.sort_indices()
        lengths = np.diff(rows.indptr)
        row_of = np.repeat(np.arange(rows.shape[0]), lengths)
        # lexsort is stable: equal values stay in the order of their columns.
        order = np.lexsort((-rows.data, row_of))
        values = np.empty(len(rows.data), dtype=np.int64)
        values[order] = np.repeat(rows.indptr[1:], lengths) - np.arange(len(rows.data))
        return frequencies(values, rows)


def _full_rows(X: NDArray[Any]) -> sparse.csr_array:
    """Every component of ``X`` stored, zeros too."""
    n, d = X.shape
    return sparse.csr_array((X.ravel(), np.tile(np.arange(d), n), np.arange(n + 1) * d), shape=(n, d))
