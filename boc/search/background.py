"""The background of an index: a sample of its items, whose scores say what score is usual for a
query.

Most items of an index have nothing to do with a query, so its scores over the sample are what
chance gives: their median, and their scale, the distance from the median to the lower sixth, which
relevant items do not widen. The confidence of a hit has two factors. The first tests whether the
best hit could be chance: of n normal scores, with n the number of items, n * P(score >= best) are
expected to be that high, with a scale WIDER than that of the sample, since real scores have longer
tails. The second compares the height of a hit with that of the best one: it falls from 1 at the
best hit to 0 at FOOT of its height over the median.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from boc.names import Metric, Modality
from boc.rerank.alignment import alignment_scores
from boc.rerank.dot import dot
from boc.types import Embeddings, Rescore, StoredConcepts

if TYPE_CHECKING:
    from boc.plugins import Engine

# of the distance of random pairs, where near-duplicates begin; how it was chosen:
# docs/howto/duplicates.md
NEAR = 0.2
SIZE = 1000  # items of the sample
SETS = 100  # of these, whose concept sets are read
# how they were chosen: docs/explanation/confidence.md
WIDER = 1.4
FOOT = 0.5
SIXTH = 0.158655  # share of normal scores below the mean less one standard deviation
ALIKE = 1e-6  # standard deviation that rounding alone gives


class Background:
    """A sample of the items of one modality, drawn at first use; the same each time for an
    unchanged index."""

    def __init__(self, index: Engine, modality: Modality) -> None:
        self._index = index
        self._modality = modality

    @cached_property
    def _ids(self) -> list[str]:
        return self._index.sample(SIZE, self._modality)

    @cached_property
    def vectors(self) -> NDArray[np.float32]:
        """The vectors of the sample, float32 (n, d)."""
        return self._index.vectors(self._ids).astype(np.float32)

    @cached_property
    def near(self) -> float:
        """The cosine from which items are near-duplicates: 1 - NEAR * (1 - c), with c the median of
        random pairs.

        So it fits encoders whose vectors all lie close together, and collections of one subject.
        """
        if len(self._ids) < 2:
            return 1.0
        usual = float(np.median((self.vectors[:-1] * self.vectors[1:]).sum(axis=1)))
        return 1 - NEAR * (1 - min(usual, 1.0))

    @cached_property
    def _concepts(self) -> StoredConcepts:
        return self._index.concepts(self._ids[:SETS])

    def scores(
        self,
        query: Embeddings,
        metric: Metric,
        parts: Sequence[tuple[Embeddings, float]] = (),
    ) -> NDArray[np.float32]:
        """Return the scores (n,) of items of the sample for a ``query`` of one row; by an
        alignment, of a hundred of them, as the sum over weighted ``parts`` if there are any."""
        if metric == "dot":
            return dot(query.vectors[0], self.vectors)
        return alignment_scores(Rescore(metric, query, 0, parts), 0, self._concepts, self._modality)

    def standard_deviation(self, query: Embeddings, metric: Metric) -> float:
        """Return the standard deviation of the scores; 1 if all are the same."""
        scores = self.scores(query, metric)
        if len(scores) > 1 and (deviation := float(scores.std(dtype=np.float64))) > ALIKE:
            return deviation
        return 1.0


def confidences(
    scores: Sequence[float],
    usual: NDArray[np.floating[Any]],
    total: int,
) -> NDArray[np.float64]:
    """Return the confidence (k,) in 0 to 1 of hits by their ``scores``, best first.

    ``usual`` (n,) are the scores of a sample of the ``total`` items. Only differences count, and
    their ratios.
    """
    values = np.asarray(scores, np.float64)
    if not len(values) or not len(usual):
        return np.zeros(len(values))
    middle = float(np.median(usual))
    scale = max(middle - float(np.quantile(usual, SIXTH)), ALIKE)
    height = float(values.max()) - middle
    by_chance = total * NormalDist().cdf(-height / (WIDER * scale))
    beside = (values - middle) / max(height, ALIKE)
    return max(0.0, 1 - by_chance) * np.clip((beside - FOOT) / (1 - FOOT), 0, 1)
