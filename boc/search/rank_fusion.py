"""Rank fusion: combines several rankings into one."""

import math
from collections import defaultdict
from collections.abc import Sequence

from boc.types import Hit

CONSTANT = 60  # damps the weight of the first ranks; value of the paper


def reciprocal_rank_fusion(rankings: Sequence[Sequence[Hit]], k: int) -> list[Hit]:
    """Return the k items of largest sum over ``rankings`` of 1 / (60 + rank), with ranks from 1;
    ties are ordered by id.

    Cormack, Clarke and Buettcher, Reciprocal Rank Fusion outperforms Condorcet and Individual Rank
    Learning Methods, SIGIR 2009. A ranking adds nothing to the sums of items that it lacks. Scores
    are not used. A ranking has no repeated items.
    """
    parts = defaultdict(list)
    items = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking, 1):
            items[hit.item.id] = hit.item
            parts[hit.item.id].append(1 / (CONSTANT + rank))
    # fsum rounds once, so sums do not depend on the order of the rankings, and equal ranks give
    # ties.
    fused = [Hit(items[key], math.fsum(shares)) for key, shares in parts.items()]
    return sorted(fused, key=lambda hit: (-hit.score, hit.item.id))[:k]
