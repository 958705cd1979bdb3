"""The sparse head of learned terms (``boc.codecs.learned``): products of directions with the rows of items."""

from __future__ import annotations

import numpy as np

from boc.clustering.kmeans import Floats
from boc.types import Embeddings, Ragged
from boc.vectors import unit_rows

KINDS = ("vector", "concept")
"""What a row of an item is: the first of its set is the global vector."""


def item_rows(embeddings: Embeddings) -> Ragged:
    """The rows of each item, of unit length: its global vector first, then its concepts."""
    vectors, concepts = unit_rows(embeddings.vectors), embeddings.concepts
    if concepts is None:
        return Ragged(vectors, np.arange(len(vectors) + 1, dtype=np.int64))
    offsets = concepts.offsets + np.arange(len(vectors) + 1)
    whole = np.zeros(offsets[-1], dtype=bool)
    whole[offsets[:-1]] = True
    values = np.empty((len(whole), vectors.shape[1]), np.float32)
    values[whole], values[~whole] = vectors, unit_rows(concepts.values)
    return Ragged(values, offsets)


def products(rows: Ragged, directions: Floats, thresholds: Floats) -> Floats:
    """What each of the m rows has of each direction (p, d) above the threshold (2, p) of its kind: float32 (m, p)."""
    found: Floats = rows.values @ directions.T
    kinds = np.ones(len(found), np.int64)
    kinds[rows.offsets[:-1][np.diff(rows.offsets) > 0]] = 0
    found -= thresholds[kinds]
    return found


def largest_products(rows: Ragged, directions: Floats, thresholds: Floats) -> Floats:
    """The maximum of ``products`` over the rows of each item, float32 (n, p); -inf for an empty set."""
    return largest(products(rows, directions, thresholds), rows)


def largest(found: Floats, rows: Ragged) -> Floats:
    """The maximum of the rows of ``found`` (m, p) that belong to each item: float32 (n, p), -inf for an empty set."""
    best = np.full((len(rows), found.shape[1]), -np.inf, np.float32)
    filled = np.diff(rows.offsets) > 0
    if filled.any():  # reduceat cannot handle empty sets
        best[filled] = np.maximum.reduceat(found, rows.offsets[:-1][filled], axis=0)
    return best
