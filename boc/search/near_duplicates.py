"""Group near-duplicates under one hit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from boc.plan import PAGE
from boc.types import Hit

if TYPE_CHECKING:
    from boc.plugins import Engine

# candidates per hit for choosing distinct hits; more if too few hits remain
POOL = 4
# Number of hits searched for distinct hits, in a fifth of a second, unless POOL per hit is more.
DEEPEST = 5_120
BLOCK = 128  # hits compared together


def select_distinct(
    ask: Callable[[int], Sequence[Hit]],
    index: Engine,
    k: int,
    near: float,
) -> list[Hit]:
    """Return at most k hits from ``ask(depth)``, best first, whose cosines with each other are
    below ``near``."""
    # Hits are chosen from at least a page, so that a hit's duplicates do not depend on k.
    wanted = max(k, PAGE)
    depth = min(POOL * wanted, wanted + 1000)
    deepest = max(DEEPEST, POOL * wanted)
    while True:
        hits = ask(depth)
        distinct = collapse(
            hits,
            index.vectors([hit.id for hit in hits]).astype(np.float32),
            near,
            wanted,
        )
        if len(distinct) >= wanted or len(hits) < depth or depth >= deepest:
            return distinct[:k]
        depth = min(POOL * depth, deepest)


def collapse(
    hits: Sequence[Hit],
    vectors: NDArray[np.float32],
    threshold: float,
    most: int,
) -> list[Hit]:
    """Group near-duplicates under their best hit. Return the first ``most`` remaining hits, with
    the ids of their duplicates.

    Hits are near-duplicates if their ``vectors`` (n, d) have a cosine of at least ``threshold``.
    Each duplicate is assigned to the best hit near it.
    """
    duplicates: dict[int, list[str]] = {}
    for begin in range(0, len(hits), BLOCK):
        block = range(len(hits))[begin : begin + BLOCK]
        others = [*duplicates, *block]
        near = vectors[block] @ vectors[others].T >= threshold
        remain = np.arange(len(others)) < len(duplicates)
        for place, i in enumerate(block, len(duplicates)):
            beside = near[i - begin] & remain
            best = beside.argmax()
            if beside[best]:
                duplicates[others[best]].append(hits[i].id)
            elif len(duplicates) < most:
                remain[place] = True
                duplicates[i] = []
    return [replace(hits[i], duplicates=tuple(ids)) for i, ids in duplicates.items()]
