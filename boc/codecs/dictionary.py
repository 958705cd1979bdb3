"""Dictionary code: the terms of a global vector are the centroids it is near to."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.clustering.cell_index import Centroids, spherical_kmeans, unit
from boc.codecs.base import FLOAT32, Step, stacked, terms_of
from boc.codecs.center import Center
from boc.types import Modality

try:
    from boc import _dots
except ImportError:  # not built here: numpy stands in
    _dots = None  # type: ignore[assignment]

MOST_TERMS = 1 << 18
MOST_PER_DOCUMENT = 16
FEWEST_CELLS = 16  # searched for a query: fewer miss too many of a few
DOCUMENT_CELLS = 12  # and for a document, of whose candidates few are chosen: more find no better ones
CHOICE = 4  # times z: so many centroids are offered to a document
ROWS = 2048  # pursued at a time: of each, (CHOICE * z) ** 2 products of candidates
ROWS_PER_TERM = 16
RIDGE = 1e-4  # keeps the weights of two nearly equal centroids finite


class Dictionary(Step):
    """A Bag of Concepts over global vectors: V centroids are the vocabulary, rows of any length become directions.

    A document is written as a sum of ``z`` of its ``4 z`` nearest centroids by orthogonal matching pursuit (Pati et
    al., Asilomar 1993): the nearest first, then whichever is most like the remainder, with least-squares weights. So
    the second centroid covers what the first one misses, as in SOAR (Sun et al., NeurIPS 2023), and the score
    sum_c w_c (q.c) estimates q.d. A query asks for its ``query_z`` nearest centroids with the weights
    exp((s - s_max) / temperature), s the cosines.

    Against signed components (``CReLU``) this reads about a hundredth of the postings at the same recall; it has to be
    learned from vectors like those to come, of both modalities if both are asked for.

    Parameters
    ----------
    terms : int or None, default=None
        Size V of the vocabulary, 1 to 262,144; None means the power of two near 50 sqrt(n), or near n / 4 if that is
        less, for the n items named to ``prepare``, or rows in ``fit``. Fewer come out where the rows have fewer
        distinct directions.
    z : int, default=2
        Terms of a document, 1 to 16. Budgets beyond V mean V.
    query_z : int, default=64
        Terms of a query, at least 1.
    temperature : float, default=0.1
        Greater than 0; the less, the more the nearest centroids weigh.
    bits : int, default=6
        Frequencies go from 1 to 2**bits - 1; 1 to 15.
    seed : int, default=0
        The same seed and rows give the same vocabulary.

    Attributes
    ----------
    centroids_, scales_ : ndarray of int8 (V, d), of float32 (V,)
        Directions, ordered by cells; times their scales they have length 1.
    heads_, head_scales_, starts_ : ndarray of int8 (m, d), of float32 (m,), of int64 (m + 1,)
        The cells, see ``boc.clustering.cell_index.Centroids``.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    >>> step = Dictionary(terms=3, z=1, bits=4).fit(X)
    >>> step.transform(3 * X).toarray().tolist()
    [[0, 0, 15], [15, 0, 0], [0, 15, 0]]
    """

    rows_together: ClassVar[int] = 2 * ROWS  # many share what is read of the vocabulary
    learned: ClassVar[tuple[str, ...]] = ("centroids_", "scales_", "heads_", "head_scales_", "starts_")

    def __init__(
        self,
        terms: int | None = None,
        z: int = 2,
        query_z: int = 64,
        temperature: float = 0.1,
        bits: int = 6,
        seed: int = 0,
    ) -> None:
        self.terms = terms
        self.z = z
        self.query_z = query_z
        self.temperature = temperature
        self.bits = bits
        self.seed = seed

    def prepare(self, n: int) -> int:
        """Fix the size of the vocabulary by the number of items; 16 rows a centroid are enough to place it."""
        if self.terms is None:
            self.terms = vocabulary_size(n)
        return ROWS_PER_TERM * self.terms

    def fit(self, X: NDArray[Any], y: object = None) -> Dictionary:
        """Learn the vocabulary from ``X`` (n, d). ValueError for a parameter out of its range."""
        limits = {"terms": (self.terms, MOST_TERMS), "z": (self.z, MOST_PER_DOCUMENT), "bits": (self.bits, 15)}
        for name, (value, most) in limits.items():
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"{name} must be between 1 and {most}, got {value}")
        if self.query_z < 1:
            raise ValueError(f"query_z must be at least 1, got {self.query_z}")
        if not 0 < self.temperature < np.inf:
            raise ValueError(f"temperature must be a number greater than 0, got {self.temperature}")
        rows = unit(self._validated(X, reset=True))
        found = spherical_kmeans(rows, self.terms or vocabulary_size(len(rows)), self.seed)
        self.centroids_, self.scales_ = found.vectors, found.scales
        self.heads_, self.head_scales_, self.starts_ = found.heads, found.head_scales, found.starts
        return self

    @property
    def _n_features_out(self) -> int:
        return len(self.centroids_)

    def transform(self, X: NDArray[Any]) -> sparse.csr_array:
        """The document side: X (n, d) -> int32 csr (n, V) with ``z`` terms a row, none for a zero row."""
        rows = self._directions(X)
        parts = [self._document_terms(rows[i : i + ROWS]) for i in range(0, len(rows), ROWS)]
        return stacked(parts)

    def encode_queries(self, X: NDArray[Any], modality: Modality) -> sparse.csr_array:
        """The query side: X (n, d) -> int32 csr (n, V) with ``query_z`` terms a row, none for a zero row."""
        rows = self._directions(X)
        numbers, cosines = self._nearest(rows, self.query_z, FEWEST_CELLS)
        return self._terms(rows, numbers, cosines, cosines, self.temperature)

    def _directions(self, X: NDArray[Any]) -> NDArray[np.float32]:
        X = self._validated(X, reset=False)
        return X if X.dtype == FLOAT32 else unit(X)  # before they leave the range of float32

    def _document_terms(self, rows: NDArray[np.float32]) -> sparse.csr_array:
        candidates, cosines = self._nearest(rows, CHOICE * self.z, DOCUMENT_CELLS)
        chosen, weights = pursuit(cosines, self._centroids.gram(candidates), min(self.z, candidates.shape[1]))
        return self._terms(rows, np.take_along_axis(candidates, chosen, axis=1), cosines, weights)

    def _terms(
        self,
        rows: NDArray[np.float32],
        numbers: NDArray[np.int64],
        cosines: NDArray[np.float32],
        weights: NDArray[np.float32],
        temperature: float = 0,
    ) -> sparse.csr_array:
        columns, frequencies = quantized(numbers, weights, 2**self.bits - 1, temperature)
        found = terms_of(frequencies, columns, len(self.centroids_))
        if not all(cosines[:, 0].tolist()):  # as of zero rows, which are as near to all
            found.data *= np.repeat(rows.any(axis=1), numbers.shape[1])
            found.eliminate_zeros()
        return found

    def _nearest(self, rows: NDArray[np.float32], z: int, cells: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        # The z nearest lie scattered over more cells than z; those of the z nearest cells are all but 1 to 4 in 100.
        return self._centroids.nearest(rows, z, max(cells, z))

    @property
    def _centroids(self) -> Centroids:
        return Centroids(self.centroids_, self.scales_, self.heads_, self.head_scales_, self.starts_)


def dictionary_steps(
    terms: int | None = None,
    z: int = 2,
    query_z: int = 64,
    *,
    center: bool = True,
    bits: int = 6,
    seed: int = 0,
) -> list[Step]:
    """The chain of the code: centring, dictionary."""
    before: list[Step] = [Center()] if center else []
    return [*before, Dictionary(terms, z, query_z, bits=bits, seed=seed)]


def vocabulary_size(n: int) -> int:
    """The power of two near 50 sqrt(n), or near n / 4 where that is less; 1 to 262,144."""
    return int(min(MOST_TERMS, 2 ** round(np.log2(max(1, min(50 * n**0.5, n / 4))))))


def quantized(
    numbers: NDArray[np.int64], weights: NDArray[np.float32], top: int, temperature: float = 0
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Of each row of ``numbers`` (n, z) these, ascending, and their ``weights`` (n, z) times ``top`` as whole numbers
    from 1 to ``top``, halves to the even one; int32 both.

    With a ``temperature`` the weights are exp((w - the first of the row) / temperature).
    """
    columns, frequencies = np.empty(numbers.shape, np.int32), np.empty(numbers.shape, np.int32)
    if _dots is not None:
        _dots.terms(numbers, weights, temperature, top, columns, frequencies)
        return columns, frequencies
    if temperature:
        weights = np.exp((weights.astype(np.float64) - weights[:, :1]) / temperature).astype(np.float32)
    order = numbers.argsort(axis=1)
    columns[...] = np.take_along_axis(numbers, order, axis=1)
    frequencies[...] = np.clip(np.rint(np.take_along_axis(weights, order, axis=1) * np.float32(top)), 1, top)
    return columns, frequencies


def pursuit(
    dots: NDArray[np.float32], gram: NDArray[np.float32], z: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Orthogonal matching pursuit: each row as a sum of ``z`` of its own ``m`` candidates, unit vectors.

    ``dots`` (n, m) are the dot products of rows and candidates, ``gram`` (n, m, m) those of candidates; no more
    is needed (Rubinstein et al., Technion CS-2008-08). Returns which were chosen, (n, z), in the order of choice, and
    their least-squares weights.
    """
    chosen = dots.argmax(axis=1)[:, None]
    while True:
        among = np.take_along_axis(gram, chosen[:, :, None], axis=1)
        inner = np.take_along_axis(among, chosen[:, None, :], axis=2) + RIDGE * np.eye(
            chosen.shape[1], dtype=np.float32
        )
        weights = np.linalg.solve(inner, np.take_along_axis(dots, chosen, axis=1)[:, :, None])[:, :, 0]
        if chosen.shape[1] == z:
            return chosen, weights
        left = dots - np.einsum("nc,ncm->nm", weights, among)
        np.put_along_axis(left, chosen, -np.inf, axis=1)
        chosen = np.concatenate([chosen, left.argmax(axis=1)[:, None]], axis=1)
