"""Spherical k-means with a large number of centroids, and a fast search for nearest centroids.

Comparing a vector with all V centroids needs V dot products, both in training and in use.
Therefore, the centroids are grouped into about 4 sqrt(V) cells, and a vector is compared only with
the centroids in its nearest cells (an inverted file index). Vectors and centroids are stored and
compared in 8 bits, which is fast, precise enough for directions, and gives the same results on all
machines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.prefetch import ahead
from boc.topk import topk
from boc.vectors import Array, Floats, Ints

try:
    from boc.clustering import _nearest
except ImportError:  # NumPy replaces the module if it is not compiled
    _nearest = None  # type: ignore[assignment]

Int8s = NDArray[np.int8]

ONE_CELL_CENTROIDS = 2048  # maximum number of centroids in a single cell
# Cells per sqrt(V). Many small cells cover a neighbourhood better than a few large cells.
FINENESS = 4
POINTS = 64  # training points per centroid; more points barely change the centroid
HEAD_POINTS = 64  # training points per cell head
ROUNDS = 4  # rounds of k-means within a cell
REFINEMENTS = 2  # rounds of k-means over all cells
REFINING_CELLS = 8  # cells searched per point during refinement
BATCH_ROWS = 1 << 12  # rows compared with all heads at a time
ROUNDED_ROWS = 1 << 12  # rows rounded to 8 bits at a time
BATCH_SIMILARITIES = 1 << 24  # similarities computed at a time
BATCH_NUMBERS = 1 << 18  # components of centroids gathered at a time
LARGEST = 127  # maximum int8 value; the minimum is -127
EXACT = 1 << 24  # float32 represents all integers up to this value


@dataclass
class Directions:
    """Unit vectors in 8 bits: ``rows`` int8 (n, d) times ``scales`` float32 (n,), as returned by
    ``rounded``."""

    rows: Int8s
    scales: Floats

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def units(self) -> Floats:
        """Return the unit vectors (n, d)."""
        return self.rows * self.scales[:, None]

    def take(self, chosen: Ints | slice) -> Directions:
        """Copy the directions with the indices ``chosen``."""
        return Directions(self.rows[chosen], self.scales[chosen])

    def sample(self, size: int, rng: np.random.Generator) -> Directions:
        """Copy a random sample of ``size`` directions, in the original order."""
        return self.take(np.sort(rng.choice(len(self), size, replace=False)))

    def means(self, owners: Ints, before: Directions) -> Directions:
        """Return the mean direction of each group. ``owners`` (n,) contains the group numbers.
        Empty groups keep their directions from ``before`` (k)."""
        k = len(before)
        order = np.argsort(owners, kind="stable")
        ends = np.cumsum(np.bincount(owners + 1, minlength=k + 1))
        after = Directions(before.rows.copy(), before.scales.copy())
        first = 0
        while first < k:
            full = ends[first] + BATCH_ROWS
            last = max(first + 1, int(np.searchsorted(ends, full, side="right")) - 1)
            chosen = order[ends[first] : ends[last]]
            entries = (owners[chosen] - first, np.arange(len(chosen)))
            points = sparse.csr_array(
                (self.scales[chosen], entries),
                (last - first, len(chosen)),
            )
            rows, scales = rounded(points @ self.rows[chosen].astype(np.float32))
            filled = scales > 0
            after.rows[first:last][filled] = rows[filled]
            after.scales[first:last][filled] = scales[filled]
            first = last
        return after


@dataclass
class Centroids:
    """Unit vectors grouped into cells. Cell i contains the ``vectors`` from ``starts[i]`` to
    ``starts[i + 1]``, and ``heads[i]`` is their mean direction.

    ``starts`` is int64 (m + 1,). All arrays are contiguous, and cells are not empty.
    """

    vectors: Directions
    heads: Directions
    starts: Ints

    def __len__(self) -> int:
        return len(self.vectors)

    @classmethod
    def of_arrays(cls, *arrays: Array) -> Centroids:
        """Create centroids from their ``arrays``."""
        heads, head_scales, starts, vectors, scales = arrays
        return cls(Directions(vectors, scales), Directions(heads, head_scales), starts)

    @property
    def arrays(self) -> tuple[Int8s, Floats, Ints, Int8s, Floats]:
        """Return the heads and their scales, the starts, and the vectors and their scales."""
        heads = self.heads
        vectors = self.vectors
        return heads.rows, heads.scales, self.starts, vectors.rows, vectors.scales

    def within(self, z: int, cells: int) -> tuple[int, int]:
        """Limit ``z`` and ``cells`` to the existing centroids and cells, and raise ``cells`` until
        the cells contain at least ``z`` centroids."""
        z = min(z, len(self))
        cells = min(cells, len(self.heads))
        if cells < z:
            smallest = np.sort(np.diff(self.starts))
            enough = np.searchsorted(np.cumsum(smallest), z) + 1
            cells = max(cells, int(enough))
        return z, cells

    def nearest(
        self,
        X: Floats,
        z: int,
        cells: int,
    ) -> tuple[Ints, Floats]:
        """Find the ``z`` centroids with the largest cosines in the nearest cells of each row of
        ``X`` (n, d).

        Rows are first rounded by ``rounded``. Zero rows have cosine 0 with all centroids. The
        search reads the ``cells`` cells with the nearest heads, and more cells if these cells could
        contain fewer than ``z`` centroids. The result is exact if ``cells >= m``. Returns the
        centroid numbers in ascending order and their cosines, (n, min(z, V)) each. Ties are
        resolved in favour of lower numbers."""
        z, cells = self.within(z, cells)
        numbers = np.empty((len(X), z), np.int64)
        cosines = np.empty((len(X), z), np.float32)
        if _nearest is None:
            self._search(
                X,
                cells,
                numbers,
                cosines,
            )
        else:
            _nearest.nearest(
                np.ascontiguousarray(X),
                *self.arrays,
                numbers,
                cosines,
                cells,
            )
        return numbers, cosines

    def owners(self, points: Directions, cells: int) -> Ints:
        """Return the number of the nearest centroid in the nearest cells of each point, (n,)."""

        def owner(start: int) -> Ints:
            rows = points.rows[start : start + BATCH_ROWS].astype(np.float32)
            return self.nearest(rows, 1, cells)[0][:, 0]

        starts = range(0, len(points), BATCH_ROWS)
        if len(starts) == 1:
            return owner(0)
        return np.concatenate(list(ahead(owner, starts)))

    def cosines(self, numbers: Ints, others: Ints) -> Floats:
        """Return the cosines (n, m) of the centroids ``numbers`` (n, m) with one other centroid per
        row, ``others`` (n,)."""
        rows = self.vectors.rows
        scales = self.vectors.scales
        cosines = np.empty(numbers.shape, np.float32)
        step = max(1, BATCH_NUMBERS // (numbers.shape[1] * rows.shape[1]))
        for i in range(0, len(numbers), step):
            some = numbers[i : i + step]
            other = others[i : i + step, None]
            products = _products(rows[some], rows[other])[:, :, 0]
            cosines[i : i + step] = products * (scales[some] * scales[other])
        return cosines

    def _search(
        self,
        X: Floats,
        cells: int,
        numbers: Ints,
        cosines: Floats,
    ) -> None:
        """Compute the results of ``nearest`` and write them to ``numbers`` and ``cosines``."""
        width = int(np.diff(self.starts).max())
        z = numbers.shape[1]
        step = max(1, BATCH_SIMILARITIES // (width * cells + len(self.heads)))
        for i in range(0, len(X), step):
            rows, lengths = rounded(X[i : i + step])
            similar = _products(rows, self.heads.rows) * self.heads.scales
            cell = np.sort(topk(similar, cells), axis=1)
            products = self._compare(rows, cell, width)
            best = np.sort(topk(products, z), axis=1)
            slots, places = np.divmod(best, width)
            numbers[i : i + step] = np.take_along_axis(self.starts[cell], slots, axis=1) + places
            cosines[i : i + step] = np.take_along_axis(products, best, axis=1) * lengths[:, None]

    def _compare(self, rows: Int8s, cell: Ints, width: int) -> Floats:
        """Return the scaled products (n, cells * width) of each row with the centroids in its
        cells, padded with -inf."""
        padded = np.full((*cell.shape, width), -np.inf, np.float32)
        order = np.argsort(cell, axis=None, kind="stable")
        bounds = np.searchsorted(cell.ravel()[order], np.arange(len(self.heads) + 1))
        for i in np.flatnonzero(np.diff(bounds)):
            asking, slots = np.divmod(order[bounds[i] : bounds[i + 1]], cell.shape[1])
            members = self.vectors.take(slice(self.starts[i], self.starts[i + 1]))
            products = _products(rows[asking], members.rows) * members.scales
            padded[asking, slots, : products.shape[1]] = products
        return padded.reshape(len(rows), -1)


def _products(a: Int8s, b: Int8s) -> Floats:
    """Return the integer dot products of the rows in ``a`` and ``b`` as float32. The products are
    computed in float64 if they could exceed the exact range of float32."""
    exact: Any = np.float64 if LARGEST * LARGEST * a.shape[-1] > EXACT else np.float32
    products: Array = a.astype(exact) @ b.astype(exact).swapaxes(-1, -2)
    return products.astype(np.float32, copy=False)


def rounded(X: Floats) -> tuple[Int8s, Floats]:
    """Round the rows of ``X`` (n, d) to int8, with a maximum magnitude of 127 and halves rounded to
    even. Return the rounded rows and their scales (n,).

    An int8 row times its scale has unit length. Zero rows and rows that contain NaN or infinity
    become zeros with scale 0.
    """
    rows = np.empty(X.shape, np.int8)
    scales = np.empty(len(X), np.float32)
    for i in range(0, len(X), ROUNDED_ROWS):
        block = X[i : i + ROUNDED_ROWS]
        block = np.where(np.isfinite(block).all(axis=1, keepdims=True), block, 0)
        most = np.abs(block).max(axis=1, initial=0).astype(np.float64)
        factors = LARGEST / np.where(most > 0, most, 1)
        whole = np.rint(block * factors[:, None]).astype(np.int8)
        lengths = np.sqrt(
            np.einsum(
                "ij,ij->i",
                whole,
                whole,
                dtype=np.int64,
            ),
        )
        rows[i : i + len(block)] = whole
        scales[i : i + len(block)] = np.divide(
            1,
            lengths,
            out=np.zeros(len(block)),
            where=lengths > 0,
        )
    return rows, scales


def spherical_kmeans(points: Directions, k: int, seed: int) -> Centroids:
    """Compute at most ``k`` distinct centroids of ``points``.

    The first rounds run k-means within cells, and the last rounds run over all cells. The number of
    centroids in a cell is proportional to its number of points, so that centroids have similar
    numbers of points. Training uses at most 64 points per centroid and ignores zero rows. The
    result contains fewer than ``k`` centroids if the points have fewer distinct directions. The
    same seed gives the same centroids.
    """
    rng = np.random.default_rng(seed)
    if len(points) > k * POINTS:
        points = points.sample(k * POINTS, rng)
    directed = np.flatnonzero(points.scales > 0)
    if 0 < len(directed) < len(points):
        points = points.take(directed)
    if len(points) <= k:
        return in_cells(_distinct(points), rng)
    vectors = _cellwise(points, k, rng)
    for _ in range(REFINEMENTS):
        centroids = in_cells(vectors, rng)
        vectors = points.means(centroids.owners(points, REFINING_CELLS), centroids.vectors)
    return in_cells(_distinct(vectors), rng)


def _distinct(vectors: Directions) -> Directions:
    _, first = np.unique(vectors.rows, axis=0, return_index=True)
    return vectors.take(first)


def _cellwise(points: Directions, k: int, rng: np.random.Generator) -> Directions:
    """Return ``k`` centroids computed by k-means within cells. The number of centroids in a cell is
    proportional to its number of points."""
    cells = round(k**0.5)
    if k > ONE_CELL_CENTROIDS:
        cells *= FINENESS
    members = _groups(points, _heads(points, cells, rng))
    shares = np.array([len(rows) for rows in members]) * (k / len(points))
    counts = np.floor(shares).astype(np.int64)
    counts[np.argsort(counts - shares, kind="stable")[: k - counts.sum()]] += 1
    seeds = rng.integers(2**31, size=len(members)).tolist()
    tasks = [
        task
        for task in zip(
            members,
            counts.tolist(),
            seeds,
            strict=True,
        )
        if task[1]
    ]

    def cluster(task: tuple[Ints, int, int]) -> Directions:
        rows, count, seed = task
        return _kmeans(points.take(rows), count, np.random.default_rng(seed))

    parts = list(ahead(cluster, tasks))
    return Directions(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.scales for part in parts]),
    )


def _heads(points: Directions, m: int, rng: np.random.Generator) -> Directions:
    """Return at most ``m`` cell heads, computed by k-means on a sample."""
    if len(points) > m * HEAD_POINTS:
        points = points.sample(m * HEAD_POINTS, rng)
    return _kmeans(points, m, rng)


def in_cells(vectors: Directions, rng: np.random.Generator) -> Centroids:
    """Group the vectors into cells. Cells larger than twice the mean size are split."""
    if len(vectors) <= ONE_CELL_CENTROIDS:
        return _one_cell(vectors)
    mean = len(vectors) ** 0.5 / FINENESS
    cells = []
    waiting = [np.arange(len(vectors))]
    while waiting:
        rows = waiting.pop()
        part = vectors.take(rows)
        groups = _groups(part, _heads(part, round(len(rows) / mean), rng))
        for group in groups:
            if len(groups) == 1 or len(group) <= 2 * mean:
                cells.append(rows[group])
            else:
                waiting.append(rows[group])
    lengths = [len(rows) for rows in cells]
    ordered = vectors.take(np.concatenate(cells))
    nothing = Directions(
        np.zeros((len(cells), vectors.rows.shape[1]), np.int8),
        np.zeros(len(cells), np.float32),
    )
    heads = ordered.means(np.repeat(np.arange(len(cells)), lengths), nothing)
    return Centroids(ordered, heads, np.cumsum([0, *lengths]))


def _one_cell(vectors: Directions) -> Centroids:
    return Centroids(vectors, vectors.take(slice(1)), np.array([0, len(vectors)]))


def _groups(points: Directions, heads: Directions) -> list[Ints]:
    """Return the indices of the points nearest to each head, for all heads that have points."""
    owners = _one_cell(heads).owners(points, 1)
    ends = np.cumsum(np.bincount(owners, minlength=len(heads)))
    groups = np.split(np.argsort(owners, kind="stable"), ends[:-1])
    return [rows for rows in groups if len(rows)]


def _kmeans(points: Directions, k: int, rng: np.random.Generator) -> Directions:
    """Return at most ``k`` centroids, computed by Lloyd's algorithm with random points as initial
    centroids. Centroids without points do not move."""
    if len(points) <= max(1, k):
        return points
    centroids = points.take(rng.choice(len(points), max(1, k), replace=False))
    before = None
    for _ in range(ROUNDS):
        owners = _one_cell(centroids).owners(points, 1)
        if before is not None and np.array_equal(owners, before):
            break
        centroids = points.means(owners, centroids)
        before = owners
    return centroids
