"""Encode global vectors by their nearest centroids (dictionary code)."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real

import numpy as np
from scipy import sparse

from boc.clustering.cell_index import (
    ONE_CELL_CENTROIDS,
    Centroids,
    Directions,
    rounded,
    spherical_kmeans,
)
from boc.codecs.base import Blocks, Step, stack_rows, terms_of
from boc.codecs.frequencies import heaviest
from boc.codecs.signed import Center
from boc.types import Modality, QueryCode
from boc.vectors import FLOAT32, Array, Floats, Int32s, Ints, batches, unit_rows

MOST_TERMS = 1 << 18
MOST_PER_DOCUMENT = 16
MOST = 2**31  # maximum number of terms per query
FEWEST_CELLS = (
    16  # minimum number of cells searched per query; with fewer cells, nearest centroids are missed
)
# Cells searched per query term. Using more terms and fewer cells reads less memory.
CELLS = 0.5
DOCUMENT_CELLS = 12  # cells searched per document; more cells do not improve the terms
CHOICE = 4  # candidate centroids per document term
ROWS = 2048  # documents encoded at a time; each needs (CHOICE * z) ** 2 products of candidates
ROWS_PER_TERM = 12
RIDGE = 1e-4  # keeps weights finite if centroids are nearly equal


class Dictionary(Step):
    """Bag of Concepts over global vectors, with a vocabulary of V centroids.

    Orthogonal matching pursuit (Pati et al., Asilomar 1993) approximates a document by a weighted
    sum of ``z`` of its ``4 z`` nearest centroids: first the nearest centroid, then the centroid
    most similar to the residual, with least-squares weights. The second centroid compensates for
    the error of the first, as in SOAR (Sun et al., NeurIPS 2023), and the score sum_c w_c (q.c)
    estimates q.d. The terms of a query are its ``query_z`` nearest centroids, weighted by exp((s -
    s_max) / temperature), where s is the cosine.

    The vocabulary should be learned from vectors that resemble the indexed vectors and the queries,
    in both modalities if both are used. For the same recall, a query then reads about a hundredth
    of the postings that signed components (``CReLU``) need.

    Parameters
    ----------
    terms : int or None, default=None
        Vocabulary size V, 1 to 262,144; None means ``vocabulary_size`` for n items (see ``fit``).
        The vocabulary is smaller if the rows have fewer distinct directions.
    z : int, default=2
        Number of terms per document, 1 to 16 and at most V.
    query_z : int, default=64
        Number of terms per query, at least 1 and at most V.
    temperature : float, default=0.1
        Positive number; lower values give the nearest centroids more weight.
    bits : int, default=6
        Number of bits per frequency, 1 to 15; frequencies range from 1 to 2**bits - 1.
    seed : int, default=0
        Random seed; the same seed and rows give the same vocabulary.

    Attributes
    ----------
    centroids_, scales_ : ndarray of int8 (V, d), of float32 (V,)
        Centroids, ordered by cell; a row times its scale has unit length.
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

    rows_together = 2 * ROWS  # a large batch reads the vocabulary only once
    learned = (
        "centroids_",
        "scales_",
        "heads_",
        "head_scales_",
        "starts_",
    )
    outputs = "centroids_"

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

    def sample_rows(self, n_items: int) -> int:
        """Return 12 rows per centroid. With a million items, 8 rows reduce recall by half a
        percent, and 16 rows increase recall by less than half a percent."""
        return ROWS_PER_TERM * self.terms_at(n_items)

    def terms_at(self, n_items: int) -> int:
        return self.terms or vocabulary_size(n_items)

    def fit(self, X: Array, y: object = None) -> Dictionary:
        """Learn the vocabulary from ``X`` (n, d). Raises ValueError if a parameter is out of
        range."""
        X = self._validate(X, reset=True)
        return self._learn(Directions(*rounded(X)), len(X))

    def fit_blocks(self, blocks: Blocks, n_items: int | None) -> Dictionary:
        """Learn the vocabulary from a sample of a collection of ``n_items`` (default: the size of
        the sample).

        The sample is kept in memory once, with 8 bits per component.
        """
        sample = None
        done = 0
        for X, _ in blocks:
            rows, scales = rounded(self._validate(X, reset=True))
            if sample is None:
                sample = Directions(
                    np.empty((len(blocks), X.shape[1]), np.int8),
                    np.empty(len(blocks), np.float32),
                )
            sample.rows[done : done + len(X)] = rows
            sample.scales[done : done + len(X)] = scales
            done += len(X)
        assert sample is not None  # learning a code needs at least one row
        return self._learn(sample, n_items or len(sample))

    def _check(self) -> None:
        """Raise ValueError if a parameter is out of range."""
        limits = {"terms": MOST_TERMS, "z": MOST_PER_DOCUMENT, "query_z": MOST, "bits": 15}
        for name, most in limits.items():
            value = getattr(self, name)
            whole = isinstance(value, (int, np.integer)) and 1 <= value <= most
            if not whole and (name, value) != ("terms", None):
                raise ValueError(f"{name} must be a whole number between 1 and {most}, got {value}")
        if not isinstance(self.temperature, Real) or not 0 < self.temperature < np.inf:
            raise ValueError(f"temperature must be a number greater than 0, got {self.temperature}")

    def _learn(self, sample: Directions, n_items: int) -> Dictionary:
        self._check()
        learned = spherical_kmeans(sample, self.terms_at(n_items), self.seed)
        self.heads_, self.head_scales_, self.starts_, self.centroids_, self.scales_ = learned.arrays
        return self

    def transform(self, X: Array) -> sparse.csr_array:
        """Encode documents, X (n, d) -> int32 csr (n, V), with ``z`` terms per row. Zero rows have
        no terms."""
        blocks = batches(self._directions(X), ROWS)
        return stack_rows([self._document_terms(block) for block in blocks])

    def encode_queries(self, X: Array, modality: Modality) -> sparse.csr_array:
        """Encode queries, X (n, d) -> int32 csr (n, V), with ``query_z`` terms per row. Zero rows
        have no terms."""
        code = self.query_code(np.zeros(self.n_features_in_, np.float32))
        return query_terms(code, self._directions(X))

    def query_code(self, mean: Floats, growth: float = 1) -> QueryCode:
        """Return the parameters with which ``encode_queries`` encodes float32 rows after
        subtracting ``mean``, with ``growth`` times as many terms."""
        self._check()
        query_z = round(growth * self.query_z)
        z, cells = self._centroids.within(query_z, max(FEWEST_CELLS, round(CELLS * query_z)))
        return QueryCode(
            mean,
            self._centroids.arrays,
            z,
            cells,
            self.temperature,
            2**self.bits - 1,
        )

    def _directions(self, X: Array) -> Floats:
        X = self._validate(X, reset=False)
        if X.dtype != FLOAT32:
            # Scale rows before converting them to float32, because large values would overflow.
            X = unit_rows(X)
        return X

    def _document_terms(self, rows: Floats) -> sparse.csr_array:
        every = np.arange(len(rows))
        centroids = self._centroids
        choice = CHOICE * self.z
        candidates, cosines = centroids.nearest(rows, choice, max(DOCUMENT_CELLS, choice))
        chosen, weights = pursuit(
            cosines,
            lambda one: centroids.cosines(candidates, candidates[every, one]),
            min(self.z, candidates.shape[1]),
        )
        order = chosen.argsort(axis=1)
        chosen = np.take_along_axis(chosen, order, axis=1)
        weights = np.take_along_axis(weights, order, axis=1)
        numbers = np.take_along_axis(candidates, chosen, axis=1)
        return _term_rows(
            rows,
            quantized(weights, 2**self.bits - 1),
            numbers,
            len(centroids),
        )

    @property
    def _centroids(self) -> Centroids:
        return Centroids.of_arrays(
            self.heads_,
            self.head_scales_,
            self.starts_,
            self.centroids_,
            self.scales_,
        )


def dictionary_steps(
    terms: int | None = None,
    z: int = 2,
    query_z: int = 64,
    *,
    center: bool = True,
    bits: int = 6,
    seed: int = 0,
) -> list[Step]:
    """Return the steps of a dictionary code: ``Center`` (optional) and ``Dictionary``."""
    dictionary = Dictionary(
        terms,
        z,
        query_z,
        bits=bits,
        seed=seed,
    )
    return [Center(), dictionary] if center else [dictionary]


def vocabulary_size(n: int) -> int:
    """Return the number of terms for n items: the power of two near n / 12, at most 50 sqrt(n),
    between 1 and 262,144. Up to 2,048 terms, the result is the power of two near n / 4."""
    near = max(min(n / 4, ONE_CELL_CENTROIDS), min(n / 12, 50 * n**0.5))
    return int(min(MOST_TERMS, 2 ** round(np.log2(max(1, near)))))


def query_terms(code: QueryCode, X: Floats) -> sparse.csr_array:
    """Encode queries ``X`` float32 (n, d) as int32 csr (n, V). Rows equal to ``mean`` have no
    terms."""
    rows = X - code.mean
    centroids = Centroids.of_arrays(*code.centroids)
    numbers, cosines = centroids.nearest(rows, code.z, code.cells)
    terms = _term_rows(
        rows,
        quantized(cosines, code.top, code.temperature),
        numbers,
        len(centroids),
    )
    if code.kept:
        terms = heaviest(terms, code.kept)
    return terms


def _term_rows(
    rows: Floats,
    frequencies: Int32s,
    numbers: Ints,
    n_terms: int,
) -> sparse.csr_array:
    """Build a term matrix from the ``frequencies`` of the terms ``numbers``, both (n, z). Zero rows
    in ``rows`` (n, d) have no terms."""
    terms = terms_of(frequencies, numbers.astype(np.int32), n_terms)
    terms.data *= np.repeat(rows.any(axis=1), numbers.shape[1])
    terms.eliminate_zeros()
    return terms


def quantized(
    weights: Floats,
    top: int,
    temperature: float = 0,
) -> Int32s:
    """Multiply ``weights`` (n, z) by ``top`` and round the products to integers from 1 to ``top``,
    with halves rounded to even.

    If ``temperature`` is not 0, each weight w is first replaced by exp((w - row maximum) /
    temperature).
    """
    exact = weights.astype(np.float64)
    if temperature:
        exact = np.exp((exact - exact.max(axis=1, keepdims=True)) / temperature)
    return np.clip(np.rint(exact * top), 1, top).astype(np.int32)


def pursuit(
    dots: Floats,
    products: Callable[[Ints], Floats],
    z: int,
) -> tuple[Ints, Floats]:
    """Approximate each row by a weighted sum of ``z`` of its ``m`` candidate unit vectors with
    orthogonal matching pursuit.

    ``dots`` (n, m) are the dot products of rows and candidates. ``products`` accepts one candidate
    number per row (n,) and returns the dot products (n, m) of this candidate with all candidates of
    the row. The vectors themselves are not needed (Rubinstein et al., Technion CS-2008-08). Returns
    the chosen candidates (n, z), in order of selection, and their weights.
    """
    chosen = dots.argmax(axis=1)[:, None]
    among = products(chosen[:, 0])[:, None]
    while True:
        inner = np.take_along_axis(among, chosen[:, None, :], axis=2)
        inner += RIDGE * np.eye(chosen.shape[1], dtype=np.float32)
        aims = np.take_along_axis(dots, chosen, axis=1)
        weights = np.linalg.solve(inner, aims[:, :, None])[:, :, 0]
        if chosen.shape[1] == z:
            return chosen, weights
        residual = dots - np.einsum("nc,ncm->nm", weights, among)
        np.put_along_axis(
            residual,
            chosen,
            -np.inf,
            axis=1,
        )
        chosen = np.concatenate([chosen, residual.argmax(axis=1)[:, None]], axis=1)
        among = np.concatenate([among, products(chosen[:, -1])[:, None]], axis=1)
