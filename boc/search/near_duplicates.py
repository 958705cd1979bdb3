"""Group near-duplicates under a single hit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from boc.plan import PAGE
from boc.plugins import Engine
from boc.types import Hit
from boc.vectors import Floats

# initial number of candidates per hit for the selection of distinct hits
POOL = 4
# Maximum number of hits among which distinct hits are searched, unless POOL per hit is more. The
# search takes a fifth of a second.
DEEPEST = 4_000
BLOCK = 128  # hits per comparison


def select_distinct(
    ask: Callable[[int], Sequence[Hit]],
    index: Engine,
    k: int,
    near: float,
) -> list[Hit]:
    """Return at most k hits from ``ask(depth)``, best first, whose pairwise cosines are below
    ``near``."""
    # Select the hits from at least a page, so that the duplicates of a hit do not depend on k.
    wanted = max(k, PAGE)
    depth = min(POOL * wanted, wanted + 1000)
    deepest = max(DEEPEST, POOL * wanted)
    hits: Sequence[Hit] = []
    distinct: list[Hit] = []
    while True:
        deeper = ask(depth)
        # If a list begins with the shorter list, compare only the rest of the list.
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
    """Group near-duplicates under their best hit. Return the first ``most`` remaining hits with the
    ids of their duplicates, including existing duplicates.

    Hits are near-duplicates if the cosine of their ``vectors`` (n, d) is at least ``threshold``.
    Each duplicate is assigned to the best hit that it duplicates.
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
