"""k-means, nearest centroids, distances to centroids, and what moves concepts before they are
compared."""

import numpy as np

from boc.types import MODALITIES, Modality
from boc.vectors import Floats, Ints, unit_rows

DISTANCES = 1 << 23  # distances in memory at a time, 64 MB as float64
ROWS = 1 << 14  # concepts assigned at a time
SMALL = 1 << 20  # number of distances below which loading faiss does not pay
POWER = 0.35  # of the variances
LEAST = 1e-3  # of the largest variance: narrower axes are scaled as if they had this


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

    ``spherical`` clusters by cosine and gives centroids of unit length. ``crowd`` limits the points
    per centroid.
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
    centroids: Floats = np.asarray(kmeans.centroids, np.float32)
    return centroids


def nearest(
    X: Floats,
    centroids: Floats,
    z: int,
) -> tuple[Ints, Floats]:
    """Return the numbers (n, z) and squared L2 distances (n, z) of the nearest centroids of each
    row, in any order."""
    if len(X) * len(centroids) > SMALL:
        import faiss

        squared, columns = faiss.knn(X, np.ascontiguousarray(centroids), z)
        return columns, np.maximum(squared, 0)
    offered = X @ centroids.T - np.einsum("ij,ij->i", centroids, centroids) / 2
    columns = np.argpartition(offered, len(centroids) - z, axis=1)[:, len(centroids) - z :]
    apart = X[:, None, :] - centroids[columns]
    return columns, np.einsum("ijk,ijk->ij", apart, apart)


def squared_distances(X: Floats, centroids: Floats) -> Floats:
    """Return |x - c|**2 of all pairs, (n, p). Summed in float64: the expanded square of a small
    distance cancels."""
    rows = X.astype(np.float64)
    columns = centroids.astype(np.float64)
    squared = rows @ (-2 * columns.T)
    squared += np.einsum("ij,ij->i", rows, rows)[:, None]
    squared += np.einsum("ij,ij->i", columns, columns)
    return np.maximum(squared, 0, out=squared).astype(np.float32)


def row_block(compared: int) -> int:
    """Return how many rows to compare at a time with so many centroids each, so that at most
    ``DISTANCES`` distances are in memory."""
    return max(1, min(DISTANCES // compared, ROWS))


def center(
    concepts: Floats,
    modality: Modality,
    means: Floats | None,
    axes: Floats | None = None,
) -> Floats:
    """Return ``concepts`` (m, d) less the mean of their modality in ``means`` (2, d), times
    ``axes`` (d, d), if any."""
    if means is not None and means.size:
        concepts = concepts - means[MODALITIES.index(modality)]
    if axes is not None and axes.size:
        concepts = concepts @ axes
    return concepts


def rescaling(points: Floats) -> Floats:
    """Return the symmetric matrix (d, d) that divides the principal axes of ``points`` (n, d) by
    variances**.35.

    The similarities to many centroids add up to a product of concepts in which axes count as
    centroids spread along them, and these spread as points do. With variances v the product of
    concepts divided by v**.25 counts an axis v**-.25 * v**.5 * v**-.25 = 1 time, as the plain
    product does. Narrow axes need a little more, since an item keeps its largest terms only: of
    powers from .2 to .45, .35 found most of the training photographs that were held out.
    """
    rows = unit_rows(points)
    variances, vectors = np.linalg.eigh((rows.T @ rows / len(rows)).astype(np.float64))
    largest = variances.max(initial=0) or 1.0
    scales = (np.maximum(variances, LEAST * largest) / largest) ** -POWER
    axes: Floats = ((vectors * scales) @ vectors.T).astype(np.float32)
    return axes
