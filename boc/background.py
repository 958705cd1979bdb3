"""The background of an index: a sample of its items, whose scores say what score is usual for a query."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from boc.names import Metric, Modality
from boc.rerank.alignment import rescored
from boc.rerank.dot import dot
from boc.types import Embeddings, Rescore, StoredConcepts

if TYPE_CHECKING:
    from boc.plugins import Index

SIZE = 1000  # items of the sample
SETS = 100  # of these, whose concept sets are read
ALIKE = 1e-6  # standard deviation that rounding alone gives


class Background:
    """A sample of the items of one modality, drawn when it is first asked; the same for an index not edited."""

    def __init__(self, index: Index, modality: Modality) -> None:
        self._index = index
        self._modality = modality

    @cached_property
    def _ids(self) -> list[str]:
        return self._index.sample(SIZE, self._modality)

    @cached_property
    def vectors(self) -> NDArray[np.float32]:
        """Those of the sample, float32 (n, d)."""
        return self._index.vectors(self._ids).astype(np.float32)

    @cached_property
    def _concepts(self) -> StoredConcepts:
        return self._index.concepts(self._ids[:SETS])

    def scores(self, query: Embeddings, metric: Metric) -> NDArray[np.float32]:
        """The scores (n,) of items of the sample for a ``query`` of one row; by an alignment, of a hundred of them."""
        if metric == "dot":
            return dot(query.vectors[0], self.vectors)
        return rescored(Rescore(metric, query, 0), 0, self._concepts, self._modality)

    def spread(self, query: Embeddings, metric: Metric) -> float:
        """The standard deviation of the scores; 1 if all are the same."""
        scores = self.scores(query, metric)
        found = float(scores.std(dtype=np.float64)) if len(scores) > 1 else 0.0
        return found if found > ALIKE else 1.0
