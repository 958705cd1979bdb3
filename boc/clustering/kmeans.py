"""K-means, search for nearest centroids, distances to centroids, and centring and rescaling of
concepts."""

import numpy as np

from boc.types import MODALITIES, Modality
from boc.vectors import Floats, Ints, unit_rows

DISTANCES = 1 << 23  # distances computed at a time, 64 MB as float64
ROWS = 1 << 14  # concepts assigned at a time
SMALL = 1 << 20  # number of distances below which importing faiss is not worthwhile
POWER = 0.35  # exponent of the variances in ``rescaling``
LEAST = 1e-3  # minimum variance for scaling, as a fraction of the maximum variance


def kmeans(
    X: Floats,
    clusters: int,
    *,
    seed: int = 0,
    spherical: bool = False,
    rounds: int = 25,
    crowd: int | None = None,
) -> Floats:
    """Compute at most ``clusters`` centroids (p, d) of the points ``X`` (n, d), p <= n, with
    Lloyd's algorithm.

    If ``spherical`` is True, points are compared by cosine, and centroids have unit length.
    ``crowd`` is the maximum number of points per centroid.
    """
    if spherical:
        X = unit_rows(X)
    points = np.ascontiguousarray(X, dtype=np.float32)
    if clusters >= len(points):
        return points.copy()
    if spherical and not points.any():
        return points[:1]
    import faiss

    kmeans = faiss.Kmeans(
        points.shape[1],
        clusters,
        niter=rounds,
        seed=seed,
        spherical=spherical,
        min_points_per_centroid=1,
        max_points_per_centroid=crowd or len(points),
        gpu=faiss.get_num_gpus() > 0,
    )
    kmeans.train(points)
    return np.asarray(kmeans.centroids, np.float32)


def nearest(
    X: Floats,
    centroids: Floats,
    z: int,
) -> tuple[Ints, Floats]:
    """Return the numbers (n, z) and squared L2 distances (n, z) of the nearest centroids of each
    row, in arbitrary order."""
    if len(X) * len(centroids) > SMALL:
        import faiss

        squared, columns = faiss.knn(X, np.ascontiguousarray(centroids), z)
        return columns, np.maximum(squared, 0)
    offered = X @ centroids.T - np.einsum("ij,ij->i", centroids, centroids) / 2
    columns = np.argpartition(offered, len(centroids) - z, axis=1)[:, len(centroids) - z :]
    apart = X[:, None, :] - centroids[columns]
    return columns, np.einsum("ijk,ijk->ij", apart, apart)


def squared_distances(X: Floats, centroids: Floats) -> Floats:
    """Return |x - c|**2 for all pairs, (n, p). Sums are computed in float64 to prevent loss of
    precision by cancellation in the expanded square."""
    rows = X.astype(np.float64)
    columns = centroids.astype(np.float64)
    squared = rows @ (-2 * columns.T)
    squared += np.einsum("ij,ij->i", rows, rows)[:, None]
    squared += np.einsum("ij,ij->i", columns, columns)
    return np.maximum(squared, 0, out=squared).astype(np.float32)


def row_block(compared: int) -> int:
    """Return the number of rows that can be compared with ``compared`` centroids at a time, so that
    at most ``DISTANCES`` distances are in memory."""
    return max(1, min(DISTANCES // compared, ROWS))


def center(
    concepts: Floats,
    modality: Modality,
    means: Floats | None,
    axes: Floats | None = None,
) -> Floats:
    """Subtract the mean of the modality in ``means`` (2, d) from ``concepts`` (m, d) and multiply
    the result by ``axes`` (d, d). Arrays that are None or empty are ignored."""
    if means is not None and means.size:
        concepts = concepts - means[MODALITIES.index(modality)]
    if axes is not None and axes.size:
        concepts = concepts @ axes
    return concepts


def rescaling(points: Floats) -> Floats:
    """Return the symmetric matrix (d, d) that divides the principal axes of ``points`` (n, d) by
    their variances to the power .35.

    Summed over many centroids, products of similarities approximate a product of concepts, in which
    each axis is weighted by the spread of the centroids along this axis. The centroids are spread
    in the same way as the points. With variances v, dividing the concepts by v**.25 gives each axis
    the weight v**-.25 * v**.5 * v**-.25 = 1, as in the plain product. Narrow axes need slightly
    more weight, because only the largest terms of an item are kept. Among exponents from .2 to .45,
    .35 gave the highest recall on held-out training pictures.
    """
    rows = unit_rows(points)
    variances, vectors = np.linalg.eigh((rows.T @ rows / len(rows)).astype(np.float64))
    largest = variances.max(initial=0) or 1.0
    scales = (np.maximum(variances, LEAST * largest) / largest) ** -POWER
    axes: Floats = ((vectors * scales) @ vectors.T).astype(np.float32)
    return axes
