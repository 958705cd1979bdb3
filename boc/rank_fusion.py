"""Several rankings made one."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from boc.types import Hit, Item

CONSTANT = 60  # how much the first places count above later ones; the paper's


def reciprocal_rank_fusion(rankings: Sequence[Sequence[Hit]], k: int) -> list[Hit]:
    """The k items of largest sum over ``rankings`` of 1 / (60 + rank), ranks from 1, ties by id.

    Cormack, Clarke and Buettcher, Reciprocal Rank Fusion outperforms Condorcet and Individual Rank Learning Methods,
    SIGIR 2009. A ranking that lacks an item adds nothing to it; the scores of the rankings do not count, and no item
    stands in one twice.
    """
    parts: defaultdict[str, list[float]] = defaultdict(list)
    items: dict[str, Item] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking, 1):
            items[hit.item.id] = hit.item
            parts[hit.item.id].append(1 / (CONSTANT + rank))
    # fsum rounds once, so that equal ranks in another order of the rankings tie.
    fused = [Hit(items[key], math.fsum(shares)) for key, shares in parts.items()]
    return sorted(fused, key=lambda hit: (-hit.score, hit.item.id))[:k]
