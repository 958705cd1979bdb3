"""Spherical k-means for very many centroids, and a fast search for the nearest of them.

Comparing every vector with all V centroids costs V dot products, in training as in use. Here the centroids lie in about
4 sqrt(V) cells, and a vector is compared with those of the cells nearest to it only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.ahead import ahead

try:
    from boc import _dots
except ImportError:  # not built here: numpy stands in
    _dots = None  # type: ignore[assignment]

Floats = NDArray[np.float32]
Stored = NDArray[np.float16] | NDArray[np.float32]
Ints = NDArray[np.int64]

FLAT = 2048  # so few centroids lie in one cell
FINENESS = 4  # cells are so many times sqrt(V): many small ones fit the neighbourhood of a vector closer than few
POINTS = 64  # of a sample for each centroid; more hardly move it
ROUNDS = 8  # of k-means in a cell
REFINEMENTS = 4  # rounds over all cells
REFINING_CELLS = 8
ROWS = 1 << 14  # compared with all heads at a time
HELD = 1 << 24  # similarities in memory at a time


@dataclass(frozen=True)
class Centroids:
    """Unit vectors in cells: cell i is ``vectors[starts[i]:starts[i + 1]]``, and ``heads[i]`` its direction.

    ``vectors`` is float16 or float32 (V, d), ``heads`` float16 or float32 (m, d), ``starts`` int64 (m + 1,). All lie in
    one piece, and no cell is empty.
    """

    vectors: Stored
    heads: Stored
    starts: Ints

    def __len__(self) -> int:
        return len(self.vectors)

    def nearest(self, X: Floats, z: int, cells: int) -> tuple[Ints, Floats]:
        """For each row of ``X`` (n, d) the ``z`` centroids of largest dot product among those of ``cells`` cells.

        The cells are those whose heads have the largest dot products; all of them, ``cells >= m``, make the search
        exact. Where they could hold fewer than ``z`` centroids, more cells are searched. Returns numbers of centroids
        and dot products, (n, min(z, V)) each, the largest first.
        """
        z, cells = min(z, len(self)), min(cells, len(self.heads))
        if cells < z:
            enough = int(np.searchsorted(np.cumsum(np.sort(np.diff(self.starts))), z)) + 1
            cells = max(cells, enough)
        numbers, dots = np.empty((len(X), z), np.int64), np.empty((len(X), z), np.float32)
        if _dots is None:
            self._search(X, cells, numbers, dots)
        else:
            _dots.nearest(np.ascontiguousarray(X), self.heads, self.starts, self.vectors, cells, numbers, dots)
        return numbers, dots

    def gram(self, numbers: Ints) -> Floats:
        """Dot products (n, m, m) of the centroids ``numbers`` (n, m) of each row with each other."""
        n, m = numbers.shape
        found = np.empty((n, m, m), np.float32)
        if _dots is not None:
            _dots.gram(self.vectors, np.ascontiguousarray(numbers), found)
            return found
        step = max(1, HELD // (m * self.vectors.shape[1]))
        for i in range(0, n, step):
            chosen = self.vectors[numbers[i : i + step]].astype(np.float32)
            np.matmul(chosen, chosen.transpose(0, 2, 1), out=found[i : i + step])
        return found

    def _search(self, X: Floats, cells: int, numbers: Ints, dots: Floats) -> None:
        """Fills in ``numbers`` and ``dots``."""
        width, z = int(np.diff(self.starts).max()), numbers.shape[1]
        heads = self.heads.astype(np.float32, copy=False)
        step = max(1, HELD // (width * cells + len(heads)))
        for i in range(0, len(X), step):
            block = X[i : i + step]
            cell = _largest(block @ heads.T, cells)
            found = self._compare(block, cell, width)
            best = _largest(found, z)
            best = np.take_along_axis(best, np.argsort(-np.take_along_axis(found, best, 1), axis=1, kind="stable"), 1)
            numbers[i : i + step] = np.take_along_axis(self.starts[cell], best // width, axis=1) + best % width
            dots[i : i + step] = np.take_along_axis(found, best, axis=1)

    def _compare(self, X: Floats, cell: Ints, width: int) -> Floats:
        """Dot products (n, cells * width) with the centroids of each row's cells; -inf where a cell is shorter."""
        found = np.full((*cell.shape, width), -np.inf, np.float32)
        order = np.argsort(cell, axis=None, kind="stable")
        bounds = np.searchsorted(cell.ravel()[order], np.arange(len(self.heads) + 1))
        for i in np.flatnonzero(np.diff(bounds)):
            rows, slots = np.divmod(order[bounds[i] : bounds[i + 1]], cell.shape[1])
            members = self.vectors[self.starts[i] : self.starts[i + 1]].astype(np.float32, copy=False)
            found[rows, slots, : len(members)] = X[rows] @ members.T
        return found.reshape(len(X), -1)


def _largest(values: Floats, k: int) -> Ints:
    """Places of the ``k`` largest of each row, in any order."""
    return np.argpartition(values, values.shape[1] - k, axis=1)[:, values.shape[1] - k :]


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
    if len(X) <= k:
        return _in_cells(np.unique(X, axis=0), rng)
    vectors = _cellwise(X, k, rng)
    for _ in range(REFINEMENTS):
        vectors = _refined(X, _in_cells(vectors, rng))
    return _in_cells(np.unique(vectors, axis=0), rng)


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
    return unit(np.where(sums.any(axis=1, keepdims=True), sums, centroids.vectors))


def _in_cells(vectors: Floats, rng: np.random.Generator) -> Centroids:
    """The same vectors, ordered by cells; cells over twice the mean are divided."""
    if len(vectors) <= FLAT:
        return Centroids(vectors, unit(vectors.mean(axis=0, keepdims=True)), np.array([0, len(vectors)]))
    mean = len(vectors) ** 0.5 / FINENESS
    cells: list[Ints] = []
    waiting = [np.arange(len(vectors))]
    while waiting:
        rows = waiting.pop()
        parts = _groups(vectors[rows], _kmeans(vectors[rows], round(len(rows) / mean), rng))
        for part in parts:
            done = len(parts) == 1 or len(part) <= 2 * mean
            (cells if done else waiting).append(rows[part])
    heads = unit(np.stack([vectors[rows].mean(axis=0) for rows in cells]))
    starts = np.concatenate([[0], np.cumsum([len(rows) for rows in cells])])
    return Centroids(vectors[np.concatenate(cells)], heads, starts)


def _groups(X: Floats, heads: Floats) -> list[Ints]:
    """Which rows of ``X`` are nearest to each head; heads that have none are left out."""
    owner = np.concatenate([(X[i : i + ROWS] @ heads.T).argmax(axis=1) for i in range(0, len(X), ROWS)])
    found = np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner, minlength=len(heads)))[:-1])
    return [rows for rows in found if len(rows)]


def _kmeans(X: Floats, k: int, rng: np.random.Generator) -> Floats:
    return lloyd(X, max(1, k), seed=int(rng.integers(2**31)), rounds=ROUNDS, spherical=True) if k < len(X) else X


def lloyd(X: Floats, k: int, *, seed: int, rounds: int, spherical: bool, crowd: int = 256) -> Floats:
    """``k`` centroids (k, d) of more than ``k`` points (n, d) by Lloyd's algorithm: faiss, on a GPU where there is one.

    At most ``crowd`` points a centroid are looked at. ``spherical`` gives centroids of unit length.
    """
    import faiss

    kmeans = faiss.Kmeans(
        X.shape[1],
        k,
        niter=rounds,
        seed=seed,
        spherical=spherical,
        min_points_per_centroid=1,
        max_points_per_centroid=crowd,
        gpu=faiss.get_num_gpus() > 0,
    )
    kmeans.train(np.ascontiguousarray(X))
    found: Floats = np.asarray(kmeans.centroids, np.float32)
    return found
