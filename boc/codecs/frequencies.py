"""Steps that convert non-negative components to term frequencies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from boc.codecs.base import SparseStep, as_rows, frequencies, one_row, stack_rows
from boc.types import Modality, TermMatrix
from boc.vectors import Array, Int32s

BLOCK = 4096  # rows processed at a time, to keep temporary arrays small


def largest(X: Array, z: int) -> Int32s:
    """Return the columns (n, z), ascending, of the largest entries in each row of ``X`` (n, d).
    Ties go to the lower column."""
    n, width = X.shape
    if z == width:
        columns = np.arange(width, dtype=np.int32)
        return np.tile(columns, (n, 1))
    least = width - z
    kth = np.partition(X, least, axis=1)[:, least, None]
    mask = kth <= X
    # If entries tie with the k-th best, the last ones are dropped.
    for row in np.flatnonzero(mask.sum(axis=1) > z):
        equal = np.flatnonzero(X[row] == kth[row])
        mask[row, equal[z - np.count_nonzero(mask[row]) :]] = False
    return np.nonzero(mask)[1].reshape(n, z).astype(np.int32)


class TopZ(SparseStep):
    """Keep the ``z`` largest positive components of each row; the others become zero (BoC, section
    III-A).

    The two budgets differ because a document term costs bytes, whereas a query term costs time.
    Recall depends roughly on the product of the budgets, so few terms per document and many per
    query reach the same recall at lower cost.

    Parameters
    ----------
    z : int or None, default=None
        Number of terms kept per document, 1 <= z <= n_features; None keeps all positive components.
    query_z : int or None, default=None
        Number of terms kept per query; None means ``z``.
    """

    def __init__(
        self,
        z: int | None = None,
        query_z: int | None = None,
    ) -> None:
        self.z = z
        self.query_z = query_z

    def fit(self, X: Any, y: object = None) -> TopZ:
        """Check the budgets against the width of ``X``. The ValueError names both."""
        width = self._validate(X, reset=True).shape[1]
        for name, z in (("z", self.z), ("query_z", self.query_z)):
            if z is not None and not 1 <= z <= width:
                raise ValueError(
                    f"{name} must be between 1 and the number of terms, {width}; got {z}",
                )
        return self

    def transform(self, X: Any) -> sparse.csr_array:
        """Keep the largest entries, X (n, d) -> float32 csr (n, d), at most ``z`` positive entries
        per row."""
        return self._keep(X, self.z)

    def encode_queries(self, X: Any, modality: Modality) -> sparse.csr_array:
        return self._keep(X, self.query_z or self.z)

    def _keep(self, X: Any, z: int | None) -> sparse.csr_array:
        X = self._validate(X, reset=False)
        n, width = X.shape
        blocks = (X[i : i + BLOCK] for i in range(0, n, BLOCK))
        return stack_rows([keep_block(block, z or width) for block in blocks])


def keep_block(X: Any, z: int) -> sparse.csr_array:
    """Return the ``z`` largest positive components in each row of ``X`` (n, d) as float32 csr (n,
    d)."""
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
    """Return the z largest frequencies in each row of ``terms`` (n, V). Ties go to the lower
    term."""
    row = np.repeat(np.arange(terms.shape[0]), np.diff(terms.indptr))
    # Entries are sorted within each row.
    order = np.lexsort((terms.indices, -terms.data, row))
    rank = np.arange(len(order)) - terms.indptr[row]
    places = np.sort(order[rank < z])
    entries = (terms.data[places], terms.indices[places], np.searchsorted(places, terms.indptr))
    return sparse.csr_array(entries, terms.shape)


class UnitNorm(SparseStep):
    """Scale each row to unit Euclidean length, so that the dot product of two codes is their
    cosine.

    The papers compare codes by cosine, whereas an inverted index compares by dot product; this step
    makes both equal. After ``TopZ`` it compensates for the dropped terms' share of a vector. Zero
    rows stay zero.
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

    A frequency cannot be negative. A c-ReLU before this step turns a component into two terms, one
    per sign.

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
        """Quantize X (n, d) -> int32 csr (n, d)."""
        rows = as_rows(self._validate(X, reset=False))
        return frequencies(np.floor(rows.data.astype(np.float64) * self.scale), rows)


class BitQuantizer(SparseStep):
    """Quantisation to frequencies of a few bits, for a small index: tf = ceil((2**bits - 1) * v /
    peak), at most 2**bits - 1.

    A positive component always keeps its term (frequency at least 1), so every term selected by
    ``TopZ`` is used; ``bits=1`` is binary.

    Parameters
    ----------
    bits : int, default=4
        1 to 15.

    Attributes
    ----------
    peak_ : ndarray of float32 (1,)
        Largest component seen by ``fit``; larger components are clipped to it.
    """

    learned = ("peak_",)

    def __init__(self, bits: int = 4) -> None:
        self.bits = bits

    def fit(self, X: Any, y: object = None) -> BitQuantizer:
        """Learn the peak of ``X``."""
        self._top()
        rows = as_rows(self._validate(X, reset=True))
        self.peak_ = np.array([rows.data.max(initial=0)], dtype=np.float32)
        return self

    def transform(self, X: Any) -> sparse.csr_array:
        """Quantize X (n, d) -> int32 csr (n, d), values 1 ... 2**bits - 1."""
        rows = as_rows(self._validate(X, reset=False))
        top = self._top()
        peak = float(self.peak_[0]) or 1.0
        whole = np.ceil(rows.data.astype(np.float64) * (top / peak))
        return frequencies(np.minimum(whole, top), rows)

    def _top(self) -> int:
        """Return the largest frequency. Raises ValueError if ``bits`` is out of range."""
        if not 1 <= self.bits <= 15:
            raise ValueError(f"bits must be between 1 and 15, got {self.bits}")
        return int(2**self.bits - 1)


class DeepPermutation(SparseStep):
    """Frequencies by rank, tf_j = m - rank_j, where rank 0 is the largest of the row's m
    components. Ties go to the lower index.

    A dense row ranks all components, a sparse row ranks its stored components. Rows with the same m
    have the same length, so the dot product gives the same order as the cosine and Spearman's rho
    (BoC, eq. 1; Amato et al., Deep Permutations, SISAP 2016).

    The order of the steps defines a sparse permutation. After ``TopZ(z)``, the kept components are
    ranked among themselves, z ... 1: the truncated permutation. The paper prints the reverse order
    (section III-A): all 2d components are ranked after c-ReLU, and ``TopZ(z)`` keeps the highest
    ranks, 2d ... 2d - z + 1, which are nearly equal for small z.

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
            # Every component is stored, including zeros.
            columns = np.tile(np.arange(d), n)
            X = X.ravel(), columns, np.arange(n + 1) * d
        rows = sparse.csr_array(X, shape=(n, d))
        rows.sort_indices()
        lengths = np.diff(rows.indptr)
        row_of = np.repeat(np.arange(n), lengths)
        # lexsort is stable: equal values stay in the order of their columns.
        order = np.lexsort((-rows.data, row_of))
        ranks = np.repeat(rows.indptr[1:], lengths) - np.arange(len(order))
        values = np.empty_like(ranks)
        values[order] = ranks
        return frequencies(values, rows)
