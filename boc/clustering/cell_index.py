"""Spherical k-means for many centroids, and a fast search for the nearest of them.

Comparing a vector with all V centroids costs V dot products, in training and in use. Here the centroids are grouped in
about 4 sqrt(V) cells, and a vector is compared only with the centroids of its nearest cells (an inverted file index).
Vectors and centroids are stored and compared in 8 bits: this is precise enough for directions, and integer sums are
fast and equal on all machines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.clustering.kmeans import Floats, lloyd
from boc.prefetch import ahead
from boc.topk import topk
from boc.vectors import unit_rows

try:
    from boc.clustering import _nearest
except ImportError:  # not built here: numpy stands in
    _nearest = None  # type: ignore[assignment]

Bytes = NDArray[np.int8]
Ints = NDArray[np.int64]

ONE_CELL_CENTROIDS = 2048  # up to this number, all centroids are in one cell
FINENESS = 4  # cells per sqrt(V): many small cells fit the neighbourhood of a vector better than few large ones
POINTS = 64  # training points per centroid; more points hardly move it
ROUNDS = 8  # rounds of k-means inside a cell
REFINEMENTS = 4  # rounds of k-means over all cells
REFINING_CELLS = 8  # cells searched per point in these rounds
BATCH_ROWS = 1 << 14  # rows compared with all heads at a time
BATCH_SIMILARITIES = 1 << 24  # similarities in memory at a time
BATCH_NUMBERS = 1 << 18  # components of centroids gathered at a time
LARGEST = 127  # of int8, kept symmetric
EXACT = 1 << 24  # float32 holds all integers up to this one


@dataclass
class Centroids:
    """Unit vectors in cells: cell i is ``vectors[starts[i]:starts[i + 1]]``, and ``heads[i]`` is its mean direction.

    ``vectors`` is int8 (V, d), to be multiplied by ``scales`` float32 (V,); ``heads`` is int8 (m, d), to be multiplied
    by ``head_scales`` (m,), see ``rounded``. ``starts`` is int64 (m + 1,). All are contiguous; no cell is empty.
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
        vectors: Floats = self.vectors * self.scales[:, None]
        return vectors

    def within(self, z: int, cells: int) -> tuple[int, int]:
        """``z`` and ``cells`` as there are at most, and as many cells as hold ``z`` centroids."""
        z, cells = min(z, len(self)), min(cells, len(self.heads))
        if cells < z:
            enough = int(np.searchsorted(np.cumsum(np.sort(np.diff(self.starts))), z)) + 1
            cells = max(cells, enough)
        return z, cells

    def nearest(self, X: Floats, z: int, cells: int) -> tuple[Ints, Floats]:
        """For each row of ``X`` (n, d) the ``z`` centroids of largest cosine among those of its nearest cells.

        Rows are compared after ``rounded``; a zero row has cosine 0 with all centroids. ``cells`` is the number of
        cells searched, those of the nearest heads; the result is exact if ``cells >= m``. More cells are searched if
        they could hold fewer than ``z`` centroids. Returns the numbers of the centroids, ascending, and their cosines,
        (n, min(z, V)) each; ties go to the lower number.
        """
        z, cells = self.within(z, cells)
        numbers, cosines = np.empty((len(X), z), np.int64), np.empty((len(X), z), np.float32)
        if _nearest is None:
            self._search(X, cells, numbers, cosines)
        else:
            stored = self.heads, self.head_scales, self.starts, self.vectors, self.scales
            _nearest.nearest(np.ascontiguousarray(X), *stored, numbers, cosines, cells)
        return numbers, cosines

    def cosines(self, numbers: Ints, others: Ints) -> Floats:
        """Cosines (n, m) of the centroids ``numbers`` (n, m) with one centroid per row, ``others`` (n,)."""
        cosines = np.empty(numbers.shape, np.float32)
        step = max(1, BATCH_NUMBERS // (numbers.shape[1] * self.vectors.shape[1]))
        for i in range(0, len(numbers), step):
            some, other = numbers[i : i + step], others[i : i + step, None]
            products = _products(self.vectors[some], self.vectors[other])[:, :, 0]
            cosines[i : i + step] = products * (self.scales[some] * self.scales[other])
        return cosines

    def _search(self, X: Floats, cells: int, numbers: Ints, cosines: Floats) -> None:
        """Write the result of ``nearest`` into ``numbers`` and ``cosines``."""
        width, z = int(np.diff(self.starts).max()), numbers.shape[1]
        step = max(1, BATCH_SIMILARITIES // (width * cells + len(self.heads)))
        for i in range(0, len(X), step):
            rows, lengths = rounded(X[i : i + step])
            cell = np.sort(topk(_products(rows, self.heads) * self.head_scales, cells), axis=1)
            products = self._compare(rows, cell, width)
            best = np.sort(topk(products, z), axis=1)
            numbers[i : i + step] = np.take_along_axis(self.starts[cell], best // width, axis=1) + best % width
            cosines[i : i + step] = np.take_along_axis(products, best, axis=1) * lengths[:, None]

    def _compare(self, rows: Bytes, cell: Ints, width: int) -> Floats:
        """Scaled products (n, cells * width) with the centroids of each row's cells, padded with -inf."""
        padded = np.full((*cell.shape, width), -np.inf, np.float32)
        order = np.argsort(cell, axis=None, kind="stable")
        bounds = np.searchsorted(cell.ravel()[order], np.arange(len(self.heads) + 1))
        for i in np.flatnonzero(np.diff(bounds)):
            asking, slots = np.divmod(order[bounds[i] : bounds[i + 1]], cell.shape[1])
            members = slice(self.starts[i], self.starts[i + 1])
            products = _products(rows[asking], self.vectors[members]) * self.scales[members]
            padded[asking, slots, : products.shape[1]] = products
        return padded.reshape(len(rows), -1)


def _products(a: Bytes, b: Bytes) -> Floats:
    """Integer dot products of the rows of ``a`` and ``b``, as float32; computed in float64 if float32 could round."""
    exact: type[np.floating[Any]] = np.float32 if LARGEST * LARGEST * a.shape[-1] <= EXACT else np.float64
    products: Floats = (a.astype(exact) @ b.astype(exact).swapaxes(-1, -2)).astype(np.float32, copy=False)
    return products


def rounded(X: Floats) -> tuple[Bytes, Floats]:
    """Rows of ``X`` (n, d) as int8, scaled to a largest magnitude of 127, halves to even; and their scales (n,).

    A row times its scale has unit length. Zero rows, and rows with NaN or infinity, become zeros with scale 0.
    """
    X = np.where(np.isfinite(X).all(axis=1, keepdims=True), X, 0)
    most = np.abs(X).max(axis=1, initial=0).astype(np.float64)
    rows = np.rint(X * (LARGEST / np.where(most > 0, most, 1))[:, None]).astype(np.int8)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.int64))
    return rows, np.divide(1, lengths, out=np.zeros(len(X)), where=lengths > 0).astype(np.float32)


def spherical_kmeans(X: Floats, k: int, seed: int) -> Centroids:
    """At most ``k`` distinct centroids of the unit vectors ``X`` (n, d).

    First k-means (by faiss, on a GPU if there is one) inside about sqrt(k) cells, then rounds over all centroids. Each
    cell gets centroids in proportion to its points, so that no centroid has very many points. At most 64 points per
    centroid are used, without zero rows. Fewer than ``k`` centroids are returned if ``X`` has fewer distinct rows. The
    same seed gives the same centroids.
    """
    rng = np.random.default_rng(seed)
    if len(X) > k * POINTS:
        X = X[np.sort(rng.choice(len(X), k * POINTS, replace=False))]
    directed = X.any(axis=1)
    if not directed.all():  # avoids a copy
        X = X[directed] if directed.any() else X[:1]
    vectors = X if len(X) <= k else _cellwise(X, k, rng)
    for _ in range(REFINEMENTS if len(X) > k else 0):
        vectors = _refined(X, _in_cells(vectors, rng))
    return _in_cells(_distinct(vectors), rng)


def _distinct(vectors: Floats) -> Floats:
    """The vectors without those that are equal after ``rounded``, in 8-bit precision."""
    rows = np.unique(rounded(vectors)[0], axis=0)
    return unit_rows(rows.astype(np.float32))


def _cellwise(X: Floats, k: int, rng: np.random.Generator) -> Floats:
    """``k`` centroids by k-means inside cells, each cell with a share of them in proportion to its points."""
    members = _groups(X, _kmeans(X, round(k**0.5), rng))
    shares = np.array([len(rows) for rows in members]) * (k / len(X))
    counts = np.floor(shares).astype(np.int64)
    counts[np.argsort(counts - shares, kind="stable")[: k - counts.sum()]] += 1
    return np.concatenate([_kmeans(X[rows], int(n), rng) for rows, n in zip(members, counts, strict=True) if n])


def _refined(X: Floats, centroids: Centroids) -> Floats:
    """One round of k-means over all centroids; a centroid without points does not move."""
    blocks = (X[i : i + BATCH_ROWS] for i in range(0, len(X), BATCH_ROWS))
    owner = np.concatenate(list(ahead(lambda rows: centroids.nearest(rows, 1, REFINING_CELLS)[0][:, 0], blocks)))
    points = sparse.csr_array((np.ones(len(X), np.float32), (owner, np.arange(len(X)))), (len(centroids), len(X)))
    sums: Floats = points @ X
    return unit_rows(np.where(sums.any(axis=1, keepdims=True), sums, centroids.units))


def _in_cells(vectors: Floats, rng: np.random.Generator) -> Centroids:
    """The same vectors, ordered by cells; cells of more than twice the mean size are divided."""
    if len(vectors) <= ONE_CELL_CENTROIDS:
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
    """The rows of ``X`` by nearest head; heads without rows are left out."""
    steps = range(0, len(X), BATCH_ROWS)
    owner = np.concatenate([(X[i : i + BATCH_ROWS] @ heads.T).argmax(axis=1) for i in steps])
    groups = np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner, minlength=len(heads)))[:-1])
    return [rows for rows in groups if len(rows)]


def _kmeans(X: Floats, k: int, rng: np.random.Generator) -> Floats:
    return lloyd(X, max(1, k), seed=int(rng.integers(2**31)), rounds=ROUNDS, spherical=True) if k < len(X) else X
