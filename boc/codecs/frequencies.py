"""Steps that convert non-negative components to term frequencies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from boc.codecs.base import SparseStep, as_rows, frequencies, one_row, stack_rows
from boc.types import Modality, TermMatrix
from boc.vectors import Array, Int32s

BLOCK = 4096  # rows per block, which limits the size of temporary arrays


def largest(X: Array, z: int) -> Int32s:
    """Return the columns (n, z) of the ``z`` largest entries in each row of ``X`` (n, d), in
    ascending order. Ties are resolved in favour of lower columns."""
    n, width = X.shape
    if z == width:
        columns = np.arange(width, dtype=np.int32)
        return np.tile(columns, (n, 1))
    least = width - z
    kth = np.partition(X, least, axis=1)[:, least, None]
    mask = kth <= X
    # If several entries equal the smallest selected entry, drop the last of them.
    for row in np.flatnonzero(mask.sum(axis=1) > z):
        equal = np.flatnonzero(X[row] == kth[row])
        mask[row, equal[z - np.count_nonzero(mask[row]) :]] = False
    return np.nonzero(mask)[1].reshape(n, z).astype(np.int32)


class TopZ(SparseStep):
    """Keep the ``z`` largest positive components of each row and set the others to zero (BoC,
    section III-A).

    There are two budgets because document terms need space, whereas query terms need time. Recall
    depends roughly on the product of the budgets, so a few terms per document and many terms per
    query reach the same recall at a lower cost.

    Parameters
    ----------
    z : int or None, default=None
        Number of terms to keep per document, 1 <= z <= n_features; None keeps all positive
        components.
    query_z : int or None, default=None
        Number of terms to keep per query; None means ``z``.
    """

    def __init__(
        self,
        z: int | None = None,
        query_z: int | None = None,
    ) -> None:
        self.z = z
        self.query_z = query_z

    def fit(self, X: Any, y: object = None) -> TopZ:
        """Check the budgets. Raises ValueError if a budget exceeds the number of columns of
        ``X``."""
        width = self._validate(X, reset=True).shape[1]
        for name, z in (("z", self.z), ("query_z", self.query_z)):
            if z is not None and not 1 <= z <= width:
                raise ValueError(
                    f"{name} must be between 1 and the number of terms, {width}; got {z}",
                )
        return self

    def transform(self, X: Any) -> sparse.csr_array:
        """Keep the largest entries, X (n, d) -> float32 csr (n, d), with at most ``z`` positive
        entries per row."""
        return self._keep(X, self.z)

    def encode_queries(self, X: Any, modality: Modality) -> sparse.csr_array:
        return self._keep(X, self.query_z or self.z)

    def _keep(self, X: Any, z: int | None) -> sparse.csr_array:
        X = self._validate(X, reset=False)
        n, width = X.shape
        blocks = (X[i : i + BLOCK] for i in range(0, n, BLOCK))
        return stack_rows([keep_block(block, z or width) for block in blocks])


def keep_block(X: Any, z: int) -> sparse.csr_array:
    """Keep the ``z`` largest positive components in each row of ``X`` (n, d), and return them as
    float32 csr (n, d)."""
    block = X
    if sparse.issparse(X):
        block = X.toarray()
    columns = largest(block, z)
    values = np.take_along_axis(block, columns, axis=1).astype(np.float32, copy=False)
    positive = values > 0
    kept = values[positive]
    where = columns[positive]
    if len(block) == 1:
        return one_row(kept, where, block.shape[1])
    return sparse.csr_array((kept, where, np.cumsum([0, *positive.sum(axis=1)])), block.shape)


def heaviest(terms: TermMatrix, z: int) -> TermMatrix:
    """Keep the ``z`` largest frequencies in each row of ``terms`` (n, V). Ties are resolved in
    favour of lower terms."""
    row = np.repeat(np.arange(terms.shape[0]), np.diff(terms.indptr))
    # Entries are sorted within each row.
    order = np.lexsort((terms.indices, -terms.data, row))
    rank = np.arange(len(order)) - terms.indptr[row]
    places = np.sort(order[rank < z])
    entries = (terms.data[places], terms.indices[places], np.searchsorted(places, terms.indptr))
    return sparse.csr_array(entries, terms.shape)


class UnitNorm(SparseStep):
    """Scale each row to unit Euclidean length, so that the dot product of two codes equals their
    cosine.

    The papers compare codes by cosine, whereas an inverted index computes dot products; with this
    step, both agree. After ``TopZ``, the step compensates for dropped terms. Zero rows stay zero.
    """

    def transform(self, X: Any) -> sparse.csr_array:
        """Scale X (n, d) -> csr (n, d) with rows of length 1."""
        rows = as_rows(self._validate(X, reset=False))
        n, width = rows.shape
        owners = np.repeat(np.arange(n), np.diff(rows.indptr))
        lengths = np.sqrt(np.bincount(owners, np.square(rows.data, dtype=np.float64), n))
        scaled = (rows.data / lengths[owners]).astype(rows.dtype)
        if n == 1:
            return one_row(scaled, rows.indices, width)
        return sparse.csr_array((scaled, rows.indices, rows.indptr), rows.shape)


class ScalarQuantizer(SparseStep):
    """Scalar quantisation, tf = floor(scale * v), of non-negative components (BoC, section III-A;
    Amato et al., Large-scale Instance-level Image Retrieval, IP&M 2019).

    Frequencies cannot be negative. To encode negative components, precede this step with a
    ``CReLU``, which splits each component into two terms, one per sign.

    Parameters
    ----------
    scale : float, default=1000
        Positive number. Components below 1 / scale become 0.

    Examples
    --------
    >>> import numpy as np
    >>> ScalarQuantizer().fit_transform(np.array([[0.25, -0.5, 0.0016]])).toarray().tolist()
    [[250, 0, 1]]
    """

    def __init__(self, scale: float = 1000) -> None:
        self.scale = scale

    def fit(self, X: Any, y: object = None) -> ScalarQuantizer:
        """Check the scale."""
        if not 0 < self.scale < np.inf:
            raise ValueError(f"scale must be a number greater than 0, got {self.scale}")
        self._validate(X, reset=True)
        return self

    def transform(self, X: Any) -> sparse.csr_array:
        """Quantize X, of shape (n, d), to an int32 CSR matrix of the same shape."""
        rows = as_rows(self._validate(X, reset=False))
        return frequencies(np.floor(rows.data.astype(np.float64) * self.scale), rows)


class BitQuantizer(SparseStep):
    """Quantise components to a few bits, which reduces the size of the index: tf = ceil((2**bits -
    1) * v / peak), at most 2**bits - 1.

    Positive components have a frequency of at least 1, so every term selected by ``TopZ`` is kept.
    With ``bits=1``, all frequencies are 1.

    Parameters
    ----------
    bits : int, default=4
        1 to 15.

    Attributes
    ----------
    peak_ : ndarray of float32 (1,)
        Maximum component seen by ``fit``; larger components are clipped to this value.
    """

    learned = ("peak_",)

    def __init__(self, bits: int = 4) -> None:
        self.bits = bits

    def fit(self, X: Any, y: object = None) -> BitQuantizer:
        """Learn the maximum component of ``X``."""
        self._top()
        rows = as_rows(self._validate(X, reset=True))
        self.peak_ = np.array([rows.data.max(initial=0)], dtype=np.float32)
        return self

    def transform(self, X: Any) -> sparse.csr_array:
        """Quantize X (n, d) -> int32 csr (n, d), with values from 1 to 2**bits - 1."""
        rows = as_rows(self._validate(X, reset=False))
        top = self._top()
        peak = float(self.peak_[0]) or 1.0
        whole = np.ceil(rows.data.astype(np.float64) * (top / peak))
        return frequencies(np.minimum(whole, top), rows)

    def _top(self) -> int:
        """Return the maximum frequency. Raises ValueError if ``bits`` is out of range."""
        if not 1 <= self.bits <= 15:
            raise ValueError(f"bits must be between 1 and 15, got {self.bits}")
        return int(2**self.bits - 1)


class DeepPermutation(SparseStep):
    """Frequencies by rank, tf_j = m - rank_j, where rank 0 is the largest of the m components of a
    row. Ties are resolved in favour of lower indices.

    In dense rows, all components are ranked; in sparse rows, only the stored components. Codes with
    the same m have the same length, so dot product, cosine and Spearman's rho give the same order
    (BoC, eq. 1; Amato et al., Deep Permutations, SISAP 2016).

    The result depends on the order of the steps. After ``TopZ(z)``, only the kept components are
    ranked, with frequencies z ... 1 (truncated permutation). In the paper (section III-A), all 2d
    components are ranked after c-ReLU, and ``TopZ(z)`` keeps the highest frequencies, 2d ... 2d - z
    + 1, which are nearly equal for small z.

    Examples
    --------
    >>> import numpy as np
    >>> DeepPermutation().fit_transform(np.array([[0.2, 0.4, 0.1, 0.3, 0.6]])).toarray().tolist()
    [[2, 4, 1, 3, 5]]
    """

    retired: ClassVar[Mapping[str, Any]] = {"offset": False}

    def transform(self, X: Any) -> sparse.csr_array:
        """Quantize X (n, d) -> int32 csr (n, d)."""
        X = self._validate(X, reset=False)
        n, d = X.shape
        if not sparse.issparse(X):
            # Store all components, including zeros.
            columns = np.tile(np.arange(d), n)
            X = X.ravel(), columns, np.arange(n + 1) * d
        rows = sparse.csr_array(X, shape=(n, d))
        rows.sort_indices()
        lengths = np.diff(rows.indptr)
        row_of = np.repeat(np.arange(n), lengths)
        # lexsort is stable, so equal values stay in column order.
        order = np.lexsort((-rows.data, row_of))
        ranks = np.repeat(rows.indptr[1:], lengths) - np.arange(len(order))
        values = np.empty_like(ranks)
        values[order] = ranks
        return frequencies(values, rows)
