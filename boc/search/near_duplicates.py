"""Group near-duplicates under one hit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from boc.plan import PAGE
from boc.plugins import Engine
from boc.types import Hit
from boc.vectors import Floats

# candidates per hit for choosing distinct hits; more if too few hits remain
POOL = 4
# Number of hits searched for distinct hits, in a fifth of a second, unless POOL per hit is more.
DEEPEST = 4_000
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
    hits: Sequence[Hit] = []
    distinct: list[Hit] = []
    while True:
        deeper = ask(depth)
        # Only the rest of a list that begins as the shorter list is compared.
        begun = len(hits) if deeper[: len(hits)] == hits else 0
        hits = deeper
        distinct = [*distinct[:begun], *hits[begun:]]
        vectors = index.vectors([hit.id for hit in distinct]).astype(np.float32)
        distinct = collapse(distinct, vectors, near, wanted)
        if len(distinct) >= wanted or len(hits) < depth or depth >= deepest:
            return distinct[:k]
        depth = min(POOL * depth, deepest)


def collapse(
    hits: Sequence[Hit],
    vectors: Floats,
    threshold: float,
    most: int,
) -> list[Hit]:
    """Put near-duplicates under their best hit; return the first ``most`` hits that remain, with
    the ids of the others, and with the duplicates that both already have.

    Hits are near-duplicates if their ``vectors`` (n, d) have a cosine of at least ``threshold``.
    Each duplicate is assigned to the best hit near it.
    """
    duplicates: dict[int, list[str]] = {}
    remaining = np.empty_like(vectors[:most])
    for begin in range(0, len(hits), BLOCK):
        block = vectors[begin : begin + BLOCK]
        known = len(duplicates)
        near = np.hstack([block @ remaining[:known].T, block @ block.T]) >= threshold
        others = [*duplicates, *range(begin, begin + len(block))]
        remain = np.arange(len(others)) < known
        for i, row in enumerate(near, begin):
            beside = row & remain
            best = beside.argmax()
            if beside[best]:
                duplicates[others[best]] += [hits[i].id, *hits[i].duplicates]
            elif len(duplicates) < most:
                remain[known + i - begin] = True
                remaining[len(duplicates)] = vectors[i]
                duplicates[i] = [*hits[i].duplicates]
    return [replace(hits[i], duplicates=tuple(ids)) for i, ids in duplicates.items()]
