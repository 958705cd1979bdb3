"""Spherical k-means for very many centroids, and a fast search for the nearest of them.

Comparing every vector with all V centroids costs V dot products, in training as in use. Here the centroids lie in about
4 sqrt(V) cells, and a vector is compared with those of the cells nearest to it only. Both are held, and compared, in 8
bits: for directions that is enough, and sums of whole numbers are fast, and the same wherever they are computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.clustering.kmeans import Floats, lloyd
from boc.prefetch import ahead

try:
    from boc import _dots
except ImportError:  # not built here: numpy stands in
    _dots = None  # type: ignore[assignment]

Bytes = NDArray[np.int8]
Ints = NDArray[np.int64]

FLAT = 2048  # so few centroids lie in one cell
FINENESS = 4  # cells are so many times sqrt(V): many small ones fit the neighbourhood of a vector closer than few
POINTS = 64  # of a sample for each centroid; more hardly move it
ROUNDS = 8  # of k-means in a cell
REFINEMENTS = 4  # rounds over all cells
REFINING_CELLS = 8
ROWS = 1 << 14  # compared with all heads at a time
HELD = 1 << 24  # similarities in memory at a time
LARGEST = 127
EXACT = 1 << 24  # float32 holds all whole numbers up to here


@dataclass
class Centroids:
    """Unit vectors in cells: cell i is ``vectors[starts[i]:starts[i + 1]]``, and ``heads[i]`` its direction.

    ``vectors`` are int8 (V, d), to be multiplied by ``scales`` float32 (V,); so are ``heads`` (m, d) by
    ``head_scales`` (m,), see ``rounded``. ``starts`` is int64 (m + 1,). All lie in one piece, and no cell is empty.
    """

    vectors: Bytes
    scales: Floats
    heads: Bytes
    head_scales: Floats
    starts: Ints

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def units(self) -> Floats:
        """The unit vectors (V, d)."""
        found: Floats = self.vectors * self.scales[:, None]
        return found

    def nearest(self, X: Floats, z: int, cells: int) -> tuple[Ints, Floats]:
        """For each row of ``X`` (n, d) the ``z`` centroids of largest cosine with it among those of ``cells`` cells.

        Rows are compared as ``rounded`` makes them; a zero row is as near to all. The cells are those of the nearest
        heads; with all of them, ``cells >= m``, no centroid is missed. Where they could hold fewer than ``z``
        centroids, more cells are searched. Returns numbers of centroids and cosines, (n, min(z, V)) each, the largest
        first, of equal ones the one of lower number.
        """
        z, cells = min(z, len(self)), min(cells, len(self.heads))
        if cells < z:
            enough = int(np.searchsorted(np.cumsum(np.sort(np.diff(self.starts))), z)) + 1
            cells = max(cells, enough)
        numbers, cosines = np.empty((len(X), z), np.int64), np.empty((len(X), z), np.float32)
        if _dots is None:
            self._search(X, cells, numbers, cosines)
        else:
            stored = self.heads, self.head_scales, self.starts, self.vectors, self.scales
            _dots.nearest(np.ascontiguousarray(X), *stored, cells, numbers, cosines)
        return numbers, cosines

    def gram(self, numbers: Ints) -> Floats:
        """Cosines (n, m, m) of the centroids ``numbers`` (n, m) of each row with each other."""
        n, m = numbers.shape
        found = np.empty((n, m, m), np.float32)
        if _dots is not None:
            _dots.gram(self.vectors, self.scales, np.ascontiguousarray(numbers), found)
            return found
        step = max(1, HELD // (m * self.vectors.shape[1]))
        for i in range(0, n, step):
            chosen, scales = self.vectors[numbers[i : i + step]], self.scales[numbers[i : i + step]]
            products = _products(chosen, chosen) * scales[:, None, :] * scales[:, :, None]
            found[i : i + step] = np.triu(products) + np.triu(products, 1).swapaxes(1, 2)  # scaled in one order
        return found

    def _search(self, X: Floats, cells: int, numbers: Ints, cosines: Floats) -> None:
        """Fills in ``numbers`` and ``cosines``."""
        width, z = int(np.diff(self.starts).max()), numbers.shape[1]
        step = max(1, HELD // (width * cells + len(self.heads)))
        for i in range(0, len(X), step):
            rows, lengths = rounded(X[i : i + step])
            cell = np.sort(_largest(_products(rows, self.heads) * self.head_scales, cells), axis=1)
            found = self._compare(rows, cell, width)
            best = _largest(found, z)
            numbers[i : i + step] = np.take_along_axis(self.starts[cell], best // width, axis=1) + best % width
            cosines[i : i + step] = np.take_along_axis(found, best, axis=1) * lengths[:, None]

    def _compare(self, rows: Bytes, cell: Ints, width: int) -> Floats:
        """Scaled products (n, cells * width) with the centroids of each row's cells; -inf where a cell is shorter."""
        found = np.full((*cell.shape, width), -np.inf, np.float32)
        order = np.argsort(cell, axis=None, kind="stable")
        bounds = np.searchsorted(cell.ravel()[order], np.arange(len(self.heads) + 1))
        for i in np.flatnonzero(np.diff(bounds)):
            asking, slots = np.divmod(order[bounds[i] : bounds[i + 1]], cell.shape[1])
            members = slice(self.starts[i], self.starts[i + 1])
            products = _products(rows[asking], self.vectors[members]) * self.scales[members]
            found[asking, slots, : products.shape[1]] = products
        return found.reshape(len(rows), -1)


def _largest(values: Floats, k: int) -> Ints:
    """Places of the ``k`` largest of each row, the largest first; of equal ones those that come first."""
    return np.argsort(-values, axis=1, kind="stable")[:, :k]


def _products(a: Bytes, b: Bytes) -> Floats:
    """Dot products of the rows of ``a`` with those of ``b``: whole numbers, as exact as float32 holds them."""
    exact: type[np.floating[Any]] = np.float32 if LARGEST * LARGEST * a.shape[-1] <= EXACT else np.float64
    found: Floats = np.matmul(a.astype(exact), b.astype(exact).swapaxes(-1, -2)).astype(np.float32)
    return found


def rounded(X: Floats) -> tuple[Bytes, Floats]:
    """Rows of ``X`` (n, d) in 8 bits, their largest number 127 or -127, halves to the even one; and scales (n,).

    Multiplied by its scale a row has length 1; that of a zero row is 0, and one with what is no number becomes such.
    """
    rows, scales = np.empty(X.shape, np.int8), np.empty(len(X), np.float32)
    if _dots is not None:
        _dots.rounded(np.ascontiguousarray(X), rows, scales)
        return rows, scales
    X = np.where(np.isfinite(X).all(axis=1)[:, None], X, 0)
    most = np.abs(X).max(axis=1, initial=0).astype(np.float64)
    rows[...] = np.rint(X * (LARGEST / np.where(most > 0, most, 1))[:, None])
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.int64))
    scales[...] = np.divide(1, lengths, out=np.zeros(len(X)), where=lengths > 0)
    return rows, scales


def unit(X: NDArray[Any]) -> Floats:
    """Rows of ``X`` (n, d) scaled to length 1, float32; zero rows stay zero."""
    norms = np.sqrt(np.einsum("ij,ij->i", X, X))[:, None]
    norms[norms == 0] = 1
    scaled: Floats = (X / norms).astype(np.float32, copy=False)
    return scaled


def spherical_kmeans(X: Floats, k: int, seed: int) -> Centroids:
    """At most ``k`` distinct centroids of the unit vectors ``X`` (n, d): directions of large mean similarity.

    k-means (by faiss, on a GPU where there is one) in about sqrt(k) cells, then rounds over all. Each cell gets
    centroids in proportion to its points, so that no centroid is left with a crowd. Learns from 64 points a centroid at
    most, zero rows left out. Fewer than ``k`` centroids come back where ``X`` has fewer distinct rows. The same seed
    gives the same ones.
    """
    rng = np.random.default_rng(seed)
    if len(X) > k * POINTS:
        X = X[np.sort(rng.choice(len(X), k * POINTS, replace=False))]
    directed = X.any(axis=1)
    if not directed.all():  # else there is nothing to gain by a copy
        X = X[directed] if directed.any() else X[:1]
    vectors = X if len(X) <= k else _cellwise(X, k, rng)
    for _ in range(REFINEMENTS if len(X) > k else 0):
        vectors = _refined(X, _in_cells(vectors, rng))
    return _in_cells(_distinct(vectors), rng)


def _distinct(vectors: Floats) -> Floats:
    """Those that are not the same in 8 bits, as these have them."""
    rows = np.unique(rounded(vectors)[0], axis=0)
    return unit(rows.astype(np.float32))


def _cellwise(X: Floats, k: int, rng: np.random.Generator) -> Floats:
    """``k`` centroids by k-means inside cells, in proportion to their points."""
    members = _groups(X, _kmeans(X, round(k**0.5), rng))
    shares = np.array([len(rows) for rows in members]) * (k / len(X))
    counts = np.floor(shares).astype(np.int64)
    counts[np.argsort(counts - shares, kind="stable")[: k - counts.sum()]] += 1
    return np.concatenate([_kmeans(X[rows], int(n), rng) for rows, n in zip(members, counts, strict=True) if n])


def _refined(X: Floats, centroids: Centroids) -> Floats:
    """One round of k-means over all centroids; one without points stays where it is."""
    blocks = (X[i : i + ROWS] for i in range(0, len(X), ROWS))
    owner = np.concatenate(list(ahead(lambda rows: centroids.nearest(rows, 1, REFINING_CELLS)[0][:, 0], blocks)))
    points = sparse.csr_array((np.ones(len(X), np.float32), (owner, np.arange(len(X)))), (len(centroids), len(X)))
    sums: Floats = points @ X
    return unit(np.where(sums.any(axis=1, keepdims=True), sums, centroids.units))


def _in_cells(vectors: Floats, rng: np.random.Generator) -> Centroids:
    """The same vectors, ordered by cells; cells over twice the mean are divided."""
    if len(vectors) <= FLAT:
        return Centroids(*rounded(vectors), *rounded(vectors.mean(axis=0, keepdims=True)), np.array([0, len(vectors)]))
    mean = len(vectors) ** 0.5 / FINENESS
    cells: list[Ints] = []
    waiting = [np.arange(len(vectors))]
    while waiting:
        rows = waiting.pop()
        parts = _groups(vectors[rows], _kmeans(vectors[rows], round(len(rows) / mean), rng))
        for part in parts:
            done = len(parts) == 1 or len(part) <= 2 * mean
            (cells if done else waiting).append(rows[part])
    heads = np.stack([vectors[rows].mean(axis=0) for rows in cells])
    starts = np.concatenate([[0], np.cumsum([len(rows) for rows in cells])])
    return Centroids(*rounded(vectors[np.concatenate(cells)]), *rounded(heads), starts)


def _groups(X: Floats, heads: Floats) -> list[Ints]:
    """Which rows of ``X`` are nearest to each head; heads that have none are left out."""
    owner = np.concatenate([(X[i : i + ROWS] @ heads.T).argmax(axis=1) for i in range(0, len(X), ROWS)])
    found = np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner, minlength=len(heads)))[:-1])
    return [rows for rows in found if len(rows)]


def _kmeans(X: Floats, k: int, rng: np.random.Generator) -> Floats:
    return lloyd(X, max(1, k), seed=int(rng.integers(2**31)), rounds=ROUNDS, spherical=True) if k < len(X) else X
