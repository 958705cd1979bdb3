"""Moves and scales concepts, so that a codebook treats both modalities and all directions alike."""

from __future__ import annotations

import numpy as np

from boc.clustering.kmeans import Floats
from boc.types import MODALITIES, Modality
from boc.vectors import unit_rows

POWER = 0.35  # of the variances
LEAST = 1e-3  # of the largest variance: narrower axes are scaled as if they had this


def centred(concepts: Floats, modality: Modality, means: Floats | None, axes: Floats | None = None) -> Floats:
    """``concepts`` (m, d) less the mean of their modality in ``means`` (2, d), times ``axes`` (d, d), as far as there
    are any."""
    if means is not None and means.size:
        concepts = concepts - means[MODALITIES.index(modality)]
    return concepts @ axes if axes is not None and axes.size else concepts


def rescaling(points: Floats) -> Floats:
    """The symmetric matrix (d, d) that divides the principal axes of ``points`` (n, d), taken as directions, by the
    power .35 of their variances.

    The similarities to many centroids add up to a product of concepts in which each axis counts as much as centroids
    spread along it, and centroids of k-means spread as the points do. With variances v the product of concepts divided
    by v**.25 counts an axis v**-.25 * v**.5 * v**-.25 = 1 time, as the plain product does. Narrow axes need a little
    more, since an item keeps its largest terms only: of powers from .2 to .45, .35 found most of the training
    photographs that were held out.
    """
    rows = unit_rows(points)
    variances, vectors = np.linalg.eigh((rows.T @ rows / len(rows)).astype(np.float64))
    largest = variances.max(initial=0) or 1.0
    scales = (np.maximum(variances, LEAST * largest) / largest) ** -POWER
    axes: Floats = ((vectors * scales) @ vectors.T).astype(np.float32)
    return axes
