"""Deep permutation: the frequency of a component follows from its rank."""

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

    In a dense row all components are ranked, in a sparse row the stored ones. All rows with the same m have the same
    length, so the dot product gives the same order as the cosine, and as Spearman's rho of the ranks (BoC, eq. 1; Amato
    et al., Deep Permutations, SISAP 2016).

    The order of the steps decides how a sparse permutation is read. After ``TopZ(z)`` the kept components are ranked
    among themselves: z ... 1, the truncated permutation. The paper prints the other order (section III-A): all 2d
    components after c-ReLU are ranked, and ``TopZ(z)`` keeps the highest: 2d ... 2d - z + 1, which are nearly equal
    where z is small. Between the two is ``offset``.

    Parameters
    ----------
    offset : bool, default=False
        Add m: frequencies 2m ... m + 1, so that a kept component counts at least half as much as the first.

    Examples
    --------
    >>> import numpy as np
    >>> DeepPermutation().fit_transform(np.array([[0.2, 0.4, 0.1, 0.3, 0.6]])).toarray().tolist()
    [[2, 4, 1, 3, 5]]
    """

    def __init__(self, offset: bool = False) -> None:
        self.offset = offset

    def transform(self, X: Any) -> sparse.csr_array:
        """X (n, d) -> int32 csr (n, d)."""
        X = self._validated(X, reset=False)
        rows = X if sparse.issparse(X) else _full_rows(X)
        rows = sparse.csr_array(rows)
        rows.sort_indices()
        lengths = np.diff(rows.indptr)
        row_of = np.repeat(np.arange(rows.shape[0]), lengths)
        # lexsort is stable, so equal values stay in the order of their columns.
        order = np.lexsort((-rows.data, row_of))
        values = np.empty(len(rows.data), dtype=np.int64)
        values[order] = np.repeat(rows.indptr[1:], lengths) - np.arange(len(rows.data))
        if self.offset:
            values += np.repeat(lengths, lengths)
        return frequencies(values, rows)


def _full_rows(X: NDArray[Any]) -> sparse.csr_array:
    """``X`` as a csr_array that stores every component, including zeros."""
    n, d = X.shape
    return sparse.csr_array((X.ravel(), np.tile(np.arange(d), n), np.arange(n + 1) * d), shape=(n, d))
