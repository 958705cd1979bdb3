"""K-means, nearest-centroid search, distances to centroids, and concept centring and rescaling."""

import numpy as np

from boc.types import MODALITIES, Modality
from boc.vectors import Floats, Ints, unit_rows

DISTANCES = 1 << 23  # distances in memory at a time, 64 MB as float64
ROWS = 1 << 14  # concepts assigned at a time
SMALL = 1 << 20  # number of distances below which loading faiss takes longer than it saves
POWER = 0.35  # exponent of the variances in ``rescaling``
LEAST = 1e-3  # smallest variance for scaling, as a share of the largest


def kmeans(
    X: Floats,
    clusters: int,
    *,
    seed: int = 0,
    spherical: bool = False,
    rounds: int = 25,
    crowd: int | None = None,
) -> Floats:
    """Return at most ``clusters`` centroids (p, d) of the points ``X`` (n, d) by Lloyd's algorithm;
    p <= n.

    With ``spherical``, points are compared by cosine, and centroids have unit length. ``crowd``
    limits the points per centroid.
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
    """Return the numbers (n, z) and squared L2 distances (n, z) of each row's nearest centroids, in
    arbitrary order."""
    if len(X) * len(centroids) > SMALL:
        import faiss

        squared, columns = faiss.knn(X, np.ascontiguousarray(centroids), z)
        return columns, np.maximum(squared, 0)
    offered = X @ centroids.T - np.einsum("ij,ij->i", centroids, centroids) / 2
    columns = np.argpartition(offered, len(centroids) - z, axis=1)[:, len(centroids) - z :]
    apart = X[:, None, :] - centroids[columns]
    return columns, np.einsum("ijk,ijk->ij", apart, apart)


def squared_distances(X: Floats, centroids: Floats) -> Floats:
    """Return |x - c|**2 for all pairs, (n, p). Sums are computed in float64, because the expanded
    square loses small distances to cancellation."""
    rows = X.astype(np.float64)
    columns = centroids.astype(np.float64)
    squared = rows @ (-2 * columns.T)
    squared += np.einsum("ij,ij->i", rows, rows)[:, None]
    squared += np.einsum("ij,ij->i", columns, columns)
    return np.maximum(squared, 0, out=squared).astype(np.float32)


def row_block(compared: int) -> int:
    """Return the number of rows to compare at a time, with ``compared`` centroids each, so that
    memory contains at most ``DISTANCES`` distances."""
    return max(1, min(DISTANCES // compared, ROWS))


def center(
    concepts: Floats,
    modality: Modality,
    means: Floats | None,
    axes: Floats | None = None,
) -> Floats:
    """Subtract the mean of their modality in ``means`` (2, d) from ``concepts`` (m, d), then
    multiply by ``axes`` (d, d). A step without its array is skipped."""
    if means is not None and means.size:
        concepts = concepts - means[MODALITIES.index(modality)]
    if axes is not None and axes.size:
        concepts = concepts @ axes
    return concepts


def rescaling(points: Floats) -> Floats:
    """Return the symmetric matrix (d, d) that divides the principal axes of ``points`` (n, d) by
    variances**.35.

    The similarities to many centroids add up to a product of concepts. The weight of an axis in
    this product is the spread of the centroids along the axis, and the centroids spread like the
    points. With variances v, the product of concepts divided by v**.25 weights an axis by v**-.25 *
    v**.5 * v**-.25 = 1, like the plain product. Narrow axes need slightly more weight, because an
    item keeps only its largest terms. Among exponents from .2 to .45, .35 found the most held-out
    training photographs.
    """
    rows = unit_rows(points)
    variances, vectors = np.linalg.eigh((rows.T @ rows / len(rows)).astype(np.float64))
    largest = variances.max(initial=0) or 1.0
    scales = (np.maximum(variances, LEAST * largest) / largest) ** -POWER
    axes: Floats = ((vectors * scales) @ vectors.T).astype(np.float32)
    return axes
