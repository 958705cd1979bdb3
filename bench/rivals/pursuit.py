"""Approximate an item by a sum of few words (SpLiCE; Bhalla et al., NeurIPS 2024), by a
non-negative lasso over word directions.

The dictionary is created by ``boc build-codebook --kind words``, and contains the contribution of
each frequent word to a caption vector. Rows are centred by modality, as in the paper. ``penalty``
is the weight of the sum of coefficients. scikit-learn solves the lasso by coordinate descent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.rivals.base import Largest
from boc.clustering.codebook import Codebook
from boc.types import Embeddings
from boc.vectors import Floats, unit_rows

SCALE = 255
ROUNDS = 1000


class WordSum(Largest):
    """Encode rows, centred by the modality means of ``sample``, as non-negative sums of words. The
    code is deterministic."""

    def __init__(
        self,
        words: Codebook,
        penalty: float,
        sample: Sequence[Embeddings],
        z: int = 32,
        query_z: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__(len(words), z, query_z, SCALE)
        self.dictionary = unit_rows(words.centroids)
        self.penalty = penalty
        self.means = {each.modality: unit_rows(each.vectors).mean(axis=0) for each in sample}

    def weights(self, embeddings: Embeddings) -> Floats:
        """Return the coefficients of the words, float32 (n, p)."""
        from sklearn.decomposition import SparseCoder

        rows = unit_rows(unit_rows(embeddings.vectors) - self.means[embeddings.modality]).astype(
            np.float64,
        )
        words = self.dictionary.astype(np.float64)
        coder = SparseCoder(
            words,
            transform_algorithm="lasso_cd",
            transform_alpha=self.penalty,
            positive_code=True,
            transform_max_iter=ROUNDS,
        )
        return np.asarray(coder.transform(rows), np.float32)
