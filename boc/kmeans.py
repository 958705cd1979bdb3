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

Floats = NDArray[np.float32]
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

    ``vectors`` is float32 (V, d), ``heads`` float32 (m, d), ``starts`` int64 (m + 1,).
    """

    vectors: Floats
    heads: Floats
    starts: Ints

    def __len__(self) -> int:
        return len(self.vectors)

    def nearest(self, X: Floats, z: int, cells: int) -> tuple[Ints, Floats]:
        """For each row of ``X`` (n, d) the ``z`` centroids of largest dot product among those of ``cells`` cells.

        The cells are those whose heads have the largest dot products; all of them, ``cells >= m``, make the search
        exact. Where they could hold fewer than ``z`` centroids, more cells are searched. Returns numbers of centroids
        and dot products, (n, min(z, V)) each, the largest first.
        """
        sizes = np.diff(self.starts)
        width, z = int(sizes.max()), min(z, len(self))
        enough = int(np.searchsorted(np.cumsum(np.sort(sizes)), z)) + 1
        cells = min(max(cells, enough), len(sizes))
        numbers, dots = np.empty((len(X), z), np.int64), np.empty((len(X), z), np.float32)
        step = max(1, HELD // (width * cells + len(sizes)))
        for i in range(0, len(X), step):
            block = X[i : i + step]
            cell = self._cells(block, cells)
            found = self._compare(block, cell, width)
            best = np.argpartition(found, found.shape[1] - z, axis=1)[:, found.shape[1] - z :]
            best = np.take_along_axis(best, np.argsort(-np.take_along_axis(found, best, 1), axis=1, kind="stable"), 1)
            numbers[i : i + step] = np.take_along_axis(self.starts[cell], best // width, axis=1) + best % width
            dots[i : i + step] = np.take_along_axis(found, best, axis=1)
        return numbers, dots

    def _cells(self, X: Floats, cells: int) -> Ints:
        """The cells to be searched for each row, (n, cells)."""
        m = len(self.heads)
        if cells == m:
            return np.tile(np.arange(m), (len(X), 1))
        return np.argpartition(X @ self.heads.T, m - cells, axis=1)[:, m - cells :]

    def _compare(self, X: Floats, cell: Ints, width: int) -> Floats:
        """Dot products (n, cells * width) with the centroids of each row's cells; -inf where a cell is shorter."""
        found = np.full((*cell.shape, width), -np.inf, np.float32)
        if len(X) == 1:
            for slot, (start, stop) in enumerate(zip(self.starts[cell[0]], self.starts[cell[0] + 1], strict=True)):
                np.dot(self.vectors[start:stop], X[0], out=found[0, slot, : stop - start])
            return found.reshape(1, -1)
        order = np.argsort(cell, axis=None, kind="stable")
        bounds = np.searchsorted(cell.ravel()[order], np.arange(len(self.heads) + 1))
        for i in np.flatnonzero(np.diff(bounds)):
            rows, slots = np.divmod(order[bounds[i] : bounds[i + 1]], cell.shape[1])
            members = self.vectors[self.starts[i] : self.starts[i + 1]]
            found[rows, slots, : len(members)] = X[rows] @ members.T
        return found.reshape(len(X), -1)


def unit(X: NDArray[Any]) -> Floats:
    """Rows of ``X`` (n, d) scaled to length 1, float32; zero rows stay zero."""
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    return (X / np.where(norms > 0, norms, 1)).astype(np.float32, copy=False)


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
    X = X[X.any(axis=1)] if X.any() else X[:1]
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
    owner = centroids.nearest(X, 1, REFINING_CELLS)[0][:, 0]
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
