"""Sample an index as the background of its scores. The sample's scores show the usual score for a
query; cosines of sampled pairs determine the threshold for near-duplicates."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from boc.names import Metric, Modality
from boc.rerank.alignment import alignment_scores
from boc.rerank.dot import dot
from boc.types import Embeddings, Rescore, StoredConcepts

if TYPE_CHECKING:
    from boc.plugins import Engine

# largest distance of near-duplicates, relative to random pairs (docs/howto/duplicates.md)
NEAR = 0.2
SIZE = 1000  # items in the sample
SETS = 100  # sampled items whose concept sets are read
ALIKE = 1e-6  # standard deviation caused by rounding alone


class Background:
    """Sample of the items of one modality, drawn on first use. An unchanged index always has the
    same sample."""

    def __init__(self, index: Engine, modality: Modality) -> None:
        self._index = index
        self._modality = modality

    @cached_property
    def _ids(self) -> list[str]:
        return self._index.sample(SIZE, self._modality)

    @cached_property
    def vectors(self) -> NDArray[np.float32]:
        """Return the sampled vectors, float32 (n, d)."""
        return self._index.vectors(self._ids).astype(np.float32)

    @cached_property
    def near(self) -> float:
        """Return the smallest cosine of near-duplicates, 1 - NEAR * (1 - c), where c is the median
        cosine of random pairs.

        The threshold therefore adapts to encoders whose vectors all lie close together, and to
        collections of one subject.
        """
        if len(self._ids) < 2:
            return 1.0
        usual = float(np.median((self.vectors[:-1] * self.vectors[1:]).sum(axis=1)))
        return 1 - NEAR * (1 - min(usual, 1.0))

    @cached_property
    def _concepts(self) -> StoredConcepts:
        return self._index.concepts(self._ids[:SETS])

    def scores(self, query: Embeddings, metric: Metric) -> NDArray[np.float32]:
        """Return the scores (n,) of sampled items for a ``query`` of one row. An alignment scores
        only a hundred items."""
        if metric == "dot":
            return dot(query.vectors[0], self.vectors)
        return alignment_scores(Rescore(metric, query, 0), 0, self._concepts, self._modality)

    def standard_deviation(self, query: Embeddings, metric: Metric) -> float:
        """Return the standard deviation of the scores; 1 if all scores are equal."""
        scores = self.scores(query, metric)
        if len(scores) > 1 and (deviation := float(scores.std(dtype=np.float64))) > ALIKE:
            return deviation
        return 1.0
