"""Combine several rankings into one by rank fusion."""

import math
from collections import defaultdict
from collections.abc import Sequence

from boc.types import Hit

CONSTANT = 60  # damping of the first ranks, as in the paper


def reciprocal_rank_fusion(rankings: Sequence[Sequence[Hit]], k: int) -> list[Hit]:
    """Return the k items with the largest sums, over ``rankings``, of 1 / (60 + rank), with ranks
    from 1. Ties are ordered by id.

    Cormack, Clarke and Buettcher, Reciprocal Rank Fusion outperforms Condorcet and Individual Rank
    Learning Methods, SIGIR 2009. A ranking does not affect the sums of items that it lacks. Scores
    are ignored. A ranking must not repeat items.
    """
    parts = defaultdict(list)
    items = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking, 1):
            items[hit.item.id] = hit.item
            parts[hit.item.id].append(1 / (CONSTANT + rank))
    # fsum rounds once, so sums do not depend on the order of the rankings.
    fused = [Hit(items[key], math.fsum(shares)) for key, shares in parts.items()]
    return sorted(fused, key=lambda hit: (-hit.score, hit.item.id))[:k]
