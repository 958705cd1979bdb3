"""Sample an index to learn which scores are usual for a query. The cosines of sampled pairs
determine the threshold for near-duplicates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from boc.names import Metric, Modality
from boc.plugins import Engine
from boc.rerank.alignment import alignment_scores
from boc.rerank.dot import dot
from boc.types import Embeddings, Rescore, StoredConcepts
from boc.vectors import Floats

# maximum distance of near-duplicates, relative to random pairs (docs/howto/duplicates.md)
NEAR = 0.2
SIZE = 1000  # items in the sample
SETS = 100  # number of sampled items whose concept sets are read
ALIKE = 1e-6  # standard deviation that rounding alone can cause


def usual_cosine(vectors: Floats) -> float:
    """Return the median of the cosines between consecutive rows of ``vectors`` (n, d), at most
    1."""
    if len(vectors) < 2:
        return 1.0
    return min(float(np.median((vectors[:-1] * vectors[1:]).sum(axis=1))), 1.0)


@dataclass
class Background:
    """Sample of the items of one modality, drawn on first use. As long as the index does not
    change, the sample stays the same."""

    index: Engine
    modality: Modality

    @cached_property
    def _ids(self) -> list[str]:
        return self.index.sample(SIZE, self.modality)

    @cached_property
    def vectors(self) -> Floats:
        """Vectors of the sample, float32 (n, d)."""
        return self.index.vectors(self._ids).astype(np.float32)

    @cached_property
    def near(self) -> float:
        """Minimum cosine of near-duplicates: 1 - NEAR * (1 - c), where c is the usual cosine.

        The threshold therefore also works for encoders whose vectors are all close together, and
        for collections on a single subject. The usual cosine comes from the manifest, so it is the
        same in all back ends. If the manifest does not contain it, or if the index has grown since
        the measurement, the cosine of the sample is measured instead.
        """
        manifest = self.index.manifest
        usual = manifest.usual.get(self.modality)
        if usual is None or manifest.has_grown(manifest.usual):
            usual = usual_cosine(self.vectors)
        return 1 - NEAR * (1 - usual)

    @cached_property
    def _concepts(self) -> StoredConcepts:
        return self.index.concepts(self._ids[:SETS])

    def scores(self, query: Embeddings, metric: Metric) -> Floats:
        """Return the scores (n,) of sampled items for a ``query`` of one row. For an alignment,
        only a hundred of the items are scored."""
        if metric == "dot":
            return dot(query.vectors[0], self.vectors)
        return alignment_scores(Rescore(metric, query, 0), 0, self._concepts, self.modality)

    def standard_deviation(self, query: Embeddings, metric: Metric) -> float:
        """Return the standard deviation of the scores, or 1 if all scores are equal."""
        scores = self.scores(query, metric)
        if len(scores) > 1 and (deviation := float(scores.std(dtype=np.float64))) > ALIKE:
            return deviation
        return 1.0
