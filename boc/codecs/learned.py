"""Encode items by learned terms, which a sparse head computes from the rows of an item.

The rows of an item are its global vector and, if present, its concepts, all of unit length. Let w_k
be the direction of term k, and let t be the threshold of this term for rows of a given modality and
kind::

    x[k] = log(1 + max(0, max over the rows r of the item of (w_k . r - t[modality, kind of r, k])))

As in SPLADE (Formal et al., SIGIR 2021), a maximum over the rows is followed by a logarithm, which
limits the weight of single terms. Both modalities share the terms. One threshold per modality and
kind replaces centring, because w . (r - m) equals w . r minus a constant.
``encoders.training.learned_terms`` learns the terms from captions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy import sparse

from boc.codecs.base import BookTerms, ConceptStep, reduce_sets, stack_rows, take_codebook
from boc.codecs.frequencies import keep_block
from boc.types import MODALITIES, Embeddings, Modality, Ragged
from boc.vectors import Bytes, Floats, unit_rows

if TYPE_CHECKING:
    from typing import Self

    from boc.clustering.codebook import Codebook

CELLS = 1 << 22  # products computed at a time
LEAST = 1e-3  # minimum margin by which a product must exceed its threshold


class LearnedTerms(BookTerms, ConceptStep):
    """Encode rows as activations of learned terms that both modalities share.

    Parameters
    ----------
    clusters : int
        Number of terms.
    z : int, default=32
        Maximum number of terms per document; the largest activations are kept.
    query_z : int, default=32
        Maximum number of terms per query.

    Attributes
    ----------
    directions_ : ndarray of float32 (p, d)
    thresholds_ : ndarray of float32 (2, 2, p)
        Thresholds for each modality (pictures, sentences) and kind of row (global vector,
        concepts).
    term_labels_ : ndarray of uint8
        Labels of the terms, packed by ``boc.labels``; empty if there are no labels.

    Examples
    --------
    >>> import numpy as np
    >>> from boc.clustering.codebook import Codebook
    >>> from boc.types import Identity, Ragged
    >>> thresholds, directions = np.full((2, 2, 2), 0.5, np.float32), np.eye(2, dtype=np.float32)
    >>> book = Codebook(directions, Identity("", "", 2), (), {}, 2, thresholds=thresholds)
    >>> step = LearnedTerms.from_codebook(book)
    >>> sets = Ragged.from_sets([[[1.0, 0.0], [0.6, 0.8]]], 2)
    >>> (100 * step.transform(sets).toarray()).astype(int).tolist()
    [[40, 26]]
    """

    learned = ("directions_", "thresholds_", "term_labels_")
    retired: ClassVar[Mapping[str, Any]] = {"seed": 0}
    outputs = "directions_"
    directions_: Floats
    thresholds_: Floats
    term_labels_: Bytes

    @classmethod
    def from_codebook(cls, codebook: Codebook, **budgets: int) -> Self:
        """Create a fitted step from ``codebook``, which must contain thresholds."""
        step = super().from_codebook(codebook, **budgets)
        take_codebook(
            step,
            codebook,
            directions_="centroids",
            thresholds_="thresholds",
            term_labels_="labels",
        )
        step.frozen = True
        return step

    def read(self, embeddings: Embeddings) -> Ragged:
        """Return the rows of each item: its global vector, followed by its concepts if present."""
        return item_rows(embeddings)

    def transform(self, X: Any) -> sparse.csr_array:
        """Encode n sets of rows -> float32 csr (n, p), with positive values. Empty sets become
        empty rows."""
        return self.encode_documents(X, "image")

    def encode_documents(self, X: Any, modality: Modality) -> sparse.csr_array:
        return self._encode(X, modality, self.z)

    def encode_queries(self, X: Any, modality: Modality) -> sparse.csr_array:
        return self._encode(X, modality, self.query_z)

    def _encode(self, X: Any, modality: Modality, z: int) -> sparse.csr_array:
        """Encode n sets of rows -> float32 csr (n, p), with at most ``z`` positive values per
        row."""
        X = self._sets(X)
        thresholds = self.thresholds_[MODALITIES.index(modality)]
        p = len(self.directions_)
        parts = []
        for block in X.blocks(max(1, CELLS // p)):
            largest = largest_products(block, self.directions_, thresholds)
            parts.append(keep_block(np.log1p(np.where(largest > LEAST, largest, 0)), min(z, p)))
        return stack_rows(parts, p)


def item_rows(embeddings: Embeddings) -> Ragged:
    """Return the rows of each item, scaled to unit length: its global vector, followed by its
    concepts."""
    vectors = unit_rows(embeddings.vectors)
    concepts = embeddings.concepts
    if concepts is None:
        return Ragged(vectors, np.arange(len(vectors) + 1, dtype=np.int64))
    offsets = concepts.offsets + np.arange(len(vectors) + 1)
    whole = np.zeros(offsets[-1], dtype=bool)
    whole[offsets[:-1]] = True
    values = np.empty((len(whole), vectors.shape[1]), np.float32)
    values[whole] = vectors
    values[~whole] = unit_rows(concepts.values)
    return Ragged(values, offsets)


def largest_products(rows: Ragged, directions: Floats, thresholds: Floats) -> Floats:
    """Return the maximum of the products minus the thresholds (2, p) for each set and each
    direction (p, d), as float32 (n, p); -inf for empty sets."""
    products: Floats = rows.values @ directions.T
    kinds = np.ones(len(products), np.int64)
    kinds[rows.offsets[:-1][np.diff(rows.offsets) > 0]] = 0
    products -= thresholds[kinds]
    return reduce_sets(
        np.maximum,
        products,
        rows,
        empty=-np.inf,
    )
