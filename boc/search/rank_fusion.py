"""Combine several rankings into one by rank fusion."""

import math
from collections import defaultdict
from collections.abc import Sequence

from boc.types import Hit

CONSTANT = 60  # reduces the influence of the top ranks; value from the paper


def reciprocal_rank_fusion(rankings: Sequence[Sequence[Hit]], k: int) -> list[Hit]:
    """Return the k items with the largest sums of 1 / (60 + rank) over all ``rankings``. Ranks
    start at 1, and ties are ordered by id.

    Cormack, Clarke and Buettcher, Reciprocal Rank Fusion outperforms Condorcet and Individual Rank
    Learning Methods, SIGIR 2009. A ranking contributes only to the items that it contains. Scores
    are ignored. An item must not occur twice in a ranking.
    """
    parts = defaultdict(list)
    items = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking, 1):
            items[hit.item.id] = hit.item
            parts[hit.item.id].append(1 / (CONSTANT + rank))
    # fsum rounds only once, so the sums do not depend on the order of the rankings.
    fused = [Hit(items[key], math.fsum(shares)) for key, shares in parts.items()]
    return sorted(fused, key=lambda hit: (-hit.score, hit.item.id))[:k]
