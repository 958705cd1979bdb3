"""Approximate late interaction with an inverted index. The dot product of two codes is the MrSw
score of TERAN, with each word replaced by its nearest centroid.

MrSw (Messina et al., Fine-grained Visual Textual Alignment, ACM TOMM 2021, eq. 3) sums, over the
words of a sentence, the cosine between a word and its nearest region. If c_k are word centroids,
and the nearest centroid c_k(w) replaces every word w, MrSw is the dot product of two vectors over
the centroids::

    picture    s[k] = max over its regions v of cos(v, c_k)
    sentence   h[k] = number of its words whose nearest centroid is c_k
    h . s      = sum over the words w of max over the regions v of cos(v, c_k(w))

With these codes, every posting list would contain all pictures. Therefore, the index stores only
the amount by which s[k] exceeds a threshold t_k, which ``density`` percent of the pictures exceed.
The scores of all pictures for a sentence then differ by a constant from the scores with max(s[k],
t_k) in place of s[k].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from boc.clustering.kmeans import kmeans
from boc.codecs.base import ConceptStep, labels_of, reduce_sets, stack_rows
from boc.types import Modality, Ragged
from boc.vectors import Floats, unit_rows

TOP = 127  # frequency per unit of cosine; the maximum range of two units fits into 8 bits
ROUNDS = 12  # rounds of k-means
CROWD = 64  # maximum number of words per centroid in training
CELLS = 1 << 22  # cosines computed at a time


class LateInteraction(ConceptStep):
    """Encode pictures as thresholded similarities to word centroids, and sentences as histograms
    over these centroids.

    Parameters
    ----------
    terms : int, default=1024
        Maximum number of centroids; there are fewer if the sample contains fewer words.
    density : int, default=20
        Percentage of the pictures that contain a given term, 1 to 100.
    seed : int, default=0
        Random seed for the clustering.

    Attributes
    ----------
    centroids_ : ndarray of float32 (p, d)
        Unit vectors.
    labels_ : ndarray of str (m,)
        Labels seen by ``fit``. Without labels, sentences are encoded in the same way as pictures.
    thresholds_ : ndarray of float32 (p,)

    Examples
    --------
    >>> import numpy as np
    >>> from boc.types import Ragged
    >>> words, pictures = [[[1.0, 0.0], [0.0, 1.0]]], [[[1.0, 0.0]], [[0.0, 1.0]]]
    >>> sets = Ragged.from_sets(words + pictures, 2)
    >>> step = LateInteraction(density=50).fit(sets, ["text", "image", "image"])
    >>> words, pictures = step.encode_documents(sets, "text"), step.encode_documents(sets, "image")
    >>> (words @ pictures.T).toarray()[0].tolist()
    [254, 127, 127]
    """

    learned = ("centroids_", "labels_", "thresholds_")
    outputs = "centroids_"

    def __init__(
        self,
        terms: int = 1024,
        density: int = 20,
        seed: int = 0,
    ) -> None:
        self.terms = terms
        self.density = density
        self.seed = seed

    def fit(self, X: Any, y: Any = None) -> LateInteraction:
        """Learn centroids from the sets labelled "text" in ``y``, and thresholds from the sets
        labelled "image". If a label is missing, all sets are used in its place."""
        if self.terms < 1:
            raise ValueError(f"terms must be at least 1, got {self.terms}")
        if not 1 <= self.density <= 100:
            raise ValueError(
                f"density must be between 1 and 100 percent of the pictures, got {self.density}",
            )
        sets = self._sets(X, reset=True)
        filled = np.diff(sets.offsets) > 0
        if not filled.any():
            raise ValueError("0 concepts in the sample; learning a code needs at least 1")
        labels = labels_of(y, len(sets))

        def labelled(modality: Modality) -> Ragged:
            chosen = filled & (labels == modality)
            if not chosen.any():
                chosen = filled
            return sets.take(np.flatnonzero(chosen).tolist())

        self.labels_ = np.unique(labels)
        self.centroids_ = kmeans(
            labelled("text").values,
            self.terms,
            spherical=True,
            seed=self.seed,
            rounds=ROUNDS,
            crowd=CROWD,
        )
        largest = np.concatenate(list(self._largest(labelled("image"))))
        thresholds = np.quantile(
            largest,
            1 - self.density / 100,
            axis=0,
            method="lower",
        )
        self.thresholds_ = thresholds.astype(np.float32)
        return self

    def transform(self, X: Any) -> sparse.csr_array:
        """Encode n sets of regions -> int32 csr (n, p)."""
        return self.encode_documents(X, "image")

    def encode_documents(self, X: Any, modality: Modality) -> sparse.csr_array:
        """Encode n sets -> int32 csr (n, p): pictures as similarities, sentences as histograms."""
        X = self._sets(X)
        if modality == "text" and self.labels_.any():
            return self._histograms(X)
        above = (np.maximum(largest - self.thresholds_, 0) for largest in self._largest(X))
        parts = [sparse.csr_array(np.rint(TOP * block).astype(np.int32)) for block in above]
        return stack_rows(parts, len(self.centroids_), np.int32)

    def _histograms(self, X: Ragged) -> sparse.csr_array:
        p = len(self.centroids_)
        numbers = np.zeros(len(X.values), np.int64)
        rows = max(1, CELLS // p)
        for first in range(0, len(numbers), rows):
            words = unit_rows(X.values[first : first + rows])
            numbers[first : first + rows] = (words @ self.centroids_.T).argmax(axis=1)
        ones = np.ones(len(numbers), np.int32)
        terms = sparse.csr_array((ones, numbers, X.offsets.copy()), (len(X), p))
        terms.sum_duplicates()
        return terms

    def _largest(self, X: Ragged) -> Iterator[Floats]:
        """Yield the maximum cosine between each set and each centroid, in blocks of float32 (n, p);
        -1 for empty sets."""
        for block in X.blocks(max(1, CELLS // len(self.centroids_))):
            cosines = unit_rows(block.values) @ self.centroids_.T
            yield reduce_sets(
                np.maximum,
                cosines,
                block,
                empty=-1,
            )
