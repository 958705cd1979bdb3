"""Spherical k-means for many centroids, and a fast search for the nearest of them.

Comparing a vector with all V centroids costs V dot products, in training and in use. Here the
centroids are grouped in about 4 sqrt(V) cells, and a vector is compared only with the centroids of
its nearest cells (an inverted file index). Vectors and centroids are stored and compared in 8 bits:
precise enough for directions, fast, and equal on all machines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.clustering.kmeans import Floats
from boc.prefetch import ahead
from boc.topk import topk

try:
    from boc.clustering import _nearest
except ImportError:  # not built here: numpy stands in
    _nearest = None  # type: ignore[assignment]

Bytes = NDArray[np.int8]
Ints = NDArray[np.int64]

ONE_CELL_CENTROIDS = 2048  # up to this number, all centroids are in one cell
# cells per sqrt(V): many small cells fit the neighbourhood of a vector better than few large ones
FINENESS = 4
POINTS = 64  # training points per centroid; more points hardly move it
HEAD_POINTS = 64  # training points per head of a cell
ROUNDS = 4  # rounds of k-means inside a cell
REFINEMENTS = 2  # rounds of k-means over all cells
REFINING_CELLS = 8  # cells searched per point in these rounds
BATCH_ROWS = 1 << 12  # rows compared with all heads at a time
ROUNDED_ROWS = 1 << 12  # rows brought to 8 bits at a time
BATCH_SIMILARITIES = 1 << 24  # similarities in memory at a time
BATCH_NUMBERS = 1 << 18  # components of centroids gathered at a time
LARGEST = 127  # of int8, kept symmetric
EXACT = 1 << 24  # float32 holds all integers up to this one


@dataclass
class Centroids:
    """Unit vectors in cells: cell i is ``vectors[starts[i]:starts[i + 1]]``, and ``heads[i]`` is
    its mean direction.

    ``vectors`` is int8 (V, d), to be multiplied by ``scales`` float32 (V,); ``heads`` is int8 (m,
    d), to be multiplied by ``head_scales`` (m,), see ``rounded``. ``starts`` is int64 (m + 1,). All
    are contiguous; no cell is empty.
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
        """Return ``z`` and ``cells`` as there are at most, and as many cells as hold ``z``
        centroids."""
        z = min(z, len(self))
        cells = min(cells, len(self.heads))
        if cells < z:
            enough = int(np.searchsorted(np.cumsum(np.sort(np.diff(self.starts))), z)) + 1
            cells = max(cells, enough)
        return z, cells

    def nearest(self, X: Floats, z: int, cells: int) -> tuple[Ints, Floats]:
        """Find for each row of ``X`` (n, d) the ``z`` centroids of largest cosine among those of
        its nearest cells.

        Rows are compared after ``rounded``; a zero row has cosine 0 with all centroids. ``cells``
        is the number of cells searched, those of the nearest heads; the result is exact if ``cells
        >= m``. More cells are searched if they could hold fewer than ``z`` centroids. Returns the
        numbers of the centroids, ascending, and their cosines, (n, min(z, V)) each; ties go to the
        lower number.
        """
        z, cells = self.within(z, cells)
        numbers = np.empty((len(X), z), np.int64)
        cosines = np.empty((len(X), z), np.float32)
        if _nearest is None:
            self._search(X, cells, numbers, cosines)
        else:
            stored = self.heads, self.head_scales, self.starts, self.vectors, self.scales
            _nearest.nearest(np.ascontiguousarray(X), *stored, numbers, cosines, cells)
        return numbers, cosines

    def cosines(self, numbers: Ints, others: Ints) -> Floats:
        """Return cosines (n, m) of the centroids ``numbers`` (n, m) with one centroid per row,
        ``others`` (n,)."""
        cosines = np.empty(numbers.shape, np.float32)
        step = max(1, BATCH_NUMBERS // (numbers.shape[1] * self.vectors.shape[1]))
        for i in range(0, len(numbers), step):
            some = numbers[i : i + step]
            other = others[i : i + step, None]
            products = _products(self.vectors[some], self.vectors[other])[:, :, 0]
            cosines[i : i + step] = products * (self.scales[some] * self.scales[other])
        return cosines

    def _search(self, X: Floats, cells: int, numbers: Ints, cosines: Floats) -> None:
        """Write the result of ``nearest`` into ``numbers`` and ``cosines``."""
        width = int(np.diff(self.starts).max())
        z = numbers.shape[1]
        step = max(1, BATCH_SIMILARITIES // (width * cells + len(self.heads)))
        for i in range(0, len(X), step):
            rows, lengths = rounded(X[i : i + step])
            cell = np.sort(topk(_products(rows, self.heads) * self.head_scales, cells), axis=1)
            products = self._compare(rows, cell, width)
            best = np.sort(topk(products, z), axis=1)
            numbers[i : i + step] = (
                np.take_along_axis(self.starts[cell], best // width, axis=1) + best % width
            )
            cosines[i : i + step] = np.take_along_axis(products, best, axis=1) * lengths[:, None]

    def _compare(self, rows: Bytes, cell: Ints, width: int) -> Floats:
        """Scaled products (n, cells * width) with the centroids of each row's cells, padded with
        -inf."""
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
    """Integer dot products of the rows of ``a`` and ``b``, as float32; computed in float64 if
    float32 could round."""
    exact: type[np.floating[Any]] = (
        np.float32 if LARGEST * LARGEST * a.shape[-1] <= EXACT else np.float64
    )
    products: Floats = (a.astype(exact) @ b.astype(exact).swapaxes(-1, -2)).astype(
        np.float32,
        copy=False,
    )
    return products


def rounded(X: Floats) -> tuple[Bytes, Floats]:
    """Return rows of ``X`` (n, d) as int8, scaled to a largest magnitude of 127, halves to even;
    and their scales (n,).

    A row times its scale has unit length. Zero rows, and rows with NaN or infinity, become zeros
    with scale 0.
    """
    rows = np.empty(X.shape, np.int8)
    scales = np.empty(len(X), np.float32)
    for i in range(0, len(X), ROUNDED_ROWS):
        block = X[i : i + ROUNDED_ROWS]
        block = np.where(np.isfinite(block).all(axis=1, keepdims=True), block, 0)
        most = np.abs(block).max(axis=1, initial=0).astype(np.float64)
        whole = np.rint(block * (LARGEST / np.where(most > 0, most, 1))[:, None]).astype(np.int8)
        lengths = np.sqrt(np.einsum("ij,ij->i", whole, whole, dtype=np.int64))
        rows[i : i + len(block)] = whole
        scales[i : i + len(block)] = np.divide(
            1,
            lengths,
            out=np.zeros(len(block)),
            where=lengths > 0,
        )
    return rows, scales


@dataclass
class Directions:
    """Directions in 8 bits: ``rows`` int8 (n, d), to be multiplied by ``scales`` float32 (n,), see
    ``rounded``."""

    rows: Bytes
    scales: Floats

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, chosen: Ints) -> Directions:
        """Copy the centroids of some numbers."""
        return Directions(self.rows[chosen], self.scales[chosen])

    def owners(self, centroids: Centroids, cells: int) -> Ints:
        """Find the nearest centroid of each direction among those of its nearest cells (n,)."""

        def owner(start: int) -> Ints:
            rows = self.rows[start : start + BATCH_ROWS].astype(np.float32)
            return centroids.nearest(rows, 1, cells)[0][:, 0]

        starts = range(0, len(self), BATCH_ROWS)
        return owner(0) if len(starts) == 1 else np.concatenate(list(ahead(owner, starts)))

    def means(self, owners: Ints, before: Directions) -> Directions:
        """Return mean directions of the groups that ``owners`` (n,) number; ``before`` (k) of
        groups without one."""
        k = len(before)
        order = np.argsort(owners, kind="stable")
        ends = np.cumsum(np.bincount(owners, minlength=k))
        after = Directions(before.rows.copy(), before.scales.copy())
        first = 0
        while first < k:
            begin = ends[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(ends, begin + BATCH_ROWS, side="right")))
            chosen = order[begin : ends[last - 1]]
            points = sparse.csr_array(
                (self.scales[chosen], (owners[chosen] - first, np.arange(len(chosen)))),
                (last - first, len(chosen)),
            )
            rows, scales = rounded(points @ self.rows[chosen].astype(np.float32))
            filled = scales > 0
            after.rows[first:last][filled] = rows[filled]
            after.scales[first:last][filled] = scales[filled]
            first = last
        return after


def spherical_kmeans(points: Directions, k: int, seed: int) -> Centroids:
    """Return at most ``k`` distinct centroids of ``points``.

    First k-means inside cells, then rounds over all centroids. Each cell gets centroids in
    proportion to its points, so that no centroid has very many points. At most 64 points per
    centroid are used, without zero rows. Fewer than ``k`` centroids are returned if the points have
    fewer distinct directions. The same seed gives the same centroids.
    """
    rng = np.random.default_rng(seed)
    if len(points) > k * POINTS:
        points = points.take(np.sort(rng.choice(len(points), k * POINTS, replace=False)))
    directed = points.scales > 0
    if not directed.all():  # avoids a copy
        points = points.take(np.flatnonzero(directed) if directed.any() else np.arange(1))
    if len(points) <= k:
        return in_cells(_distinct(points), rng)
    vectors = _cellwise(points, k, rng)
    for _ in range(REFINEMENTS):
        centroids = in_cells(vectors, rng)
        owners = points.owners(centroids, REFINING_CELLS)
        vectors = points.means(owners, Directions(centroids.vectors, centroids.scales))
    return in_cells(_distinct(vectors), rng)


def _distinct(vectors: Directions) -> Directions:
    return vectors.take(np.unique(vectors.rows, axis=0, return_index=True)[1])


def _cellwise(points: Directions, k: int, rng: np.random.Generator) -> Directions:
    """Return ``k`` centroids by k-means inside cells, each cell with a share of them in proportion
    to its points."""
    members = _groups(
        points,
        _heads(points, round(k**0.5) * (FINENESS if k > ONE_CELL_CENTROIDS else 1), rng),
    )
    shares = np.array([len(rows) for rows in members]) * (k / len(points))
    counts = np.floor(shares).astype(np.int64)
    counts[np.argsort(counts - shares, kind="stable")[: k - counts.sum()]] += 1
    seeds = rng.integers(2**31, size=len(members)).tolist()
    tasks = [task for task in zip(members, counts.tolist(), seeds, strict=True) if task[1]]
    parts = list(
        ahead(
            lambda task: _kmeans(points.take(task[0]), task[1], np.random.default_rng(task[2])),
            tasks,
        ),
    )
    return Directions(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.scales for part in parts]),
    )


def _heads(points: Directions, m: int, rng: np.random.Generator) -> Directions:
    """Return at most ``m`` heads of cells, by k-means over a sample."""
    if len(points) > m * HEAD_POINTS:
        points = points.take(np.sort(rng.choice(len(points), m * HEAD_POINTS, replace=False)))
    return _kmeans(points, m, rng)


def in_cells(vectors: Directions, rng: np.random.Generator) -> Centroids:
    """Return the same vectors, ordered by cells; cells of more than twice the mean size are
    divided."""
    if len(vectors) <= ONE_CELL_CENTROIDS:
        return _one_cell(vectors)
    mean = len(vectors) ** 0.5 / FINENESS
    cells: list[Ints] = []
    waiting = [np.arange(len(vectors))]
    while waiting:
        rows = waiting.pop()
        part = vectors.take(rows)
        groups = _groups(part, _heads(part, round(len(rows) / mean), rng))
        for group in groups:
            done = len(groups) == 1 or len(group) <= 2 * mean
            (cells if done else waiting).append(rows[group])
    lengths = [len(rows) for rows in cells]
    ordered = vectors.take(np.concatenate(cells))
    nothing = Directions(
        np.zeros((len(cells), vectors.rows.shape[1]), np.int8),
        np.zeros(len(cells), np.float32),
    )
    heads = ordered.means(np.repeat(np.arange(len(cells)), lengths), nothing)
    return Centroids(
        ordered.rows,
        ordered.scales,
        heads.rows,
        heads.scales,
        np.cumsum([0, *lengths]),
    )


def _one_cell(vectors: Directions) -> Centroids:
    return Centroids(
        vectors.rows,
        vectors.scales,
        vectors.rows[:1],
        vectors.scales[:1],
        np.array([0, len(vectors)]),
    )


def _groups(points: Directions, heads: Directions) -> list[Ints]:
    """Return the numbers of the points by nearest head; heads without points are left out."""
    owners = points.owners(_one_cell(heads), 1)
    groups = np.split(
        np.argsort(owners, kind="stable"),
        np.cumsum(np.bincount(owners, minlength=len(heads)))[:-1],
    )
    return [rows for rows in groups if len(rows)]


def _kmeans(points: Directions, k: int, rng: np.random.Generator) -> Directions:
    """Return at most ``k`` centroids by Lloyd's algorithm, begun with points; one without points
    does not move."""
    if len(points) <= max(1, k):
        return points
    centroids = points.take(rng.choice(len(points), max(1, k), replace=False))
    before = None
    for _ in range(ROUNDS):
        owners = points.owners(_one_cell(centroids), 1)
        if before is not None and np.array_equal(owners, before):
            break
        centroids = points.means(owners, centroids)
        before = owners
    return centroids
