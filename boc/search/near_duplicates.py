"""Near-duplicates under one hit."""

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

# hits per hit to return, from which distinct ones are chosen; more if near-duplicates leave too few
POOL = 4
SPARE = 1000  # of these beside k
DEEPEST = 20_000  # hits among which distinct ones are looked for
BLOCK = 128  # hits compared together


def select_distinct(
    ask: Callable[[int], Sequence[Hit]],
    index: Engine,
    k: int,
    near: float,
) -> list[Hit]:
    """Return at most k of the hits of ``ask(depth)``, best first, with cosines to each other below
    ``near``."""
    # A page is chosen from at least, so that the duplicates of a hit do not depend on k.
    wanted = max(k, PAGE)
    depth = min(POOL * wanted, wanted + SPARE)
    while True:
        hits = ask(depth)
        distinct = collapse(
            hits,
            index.vectors([hit.item.id for hit in hits]).astype(np.float32),
            near,
        )
        if len(distinct) >= wanted or len(hits) < depth or depth >= DEEPEST:
            return distinct[:k]
        depth *= POOL


def collapse(hits: Sequence[Hit], vectors: NDArray[np.float32], threshold: float) -> list[Hit]:
    """Put near-duplicates under their best hit; return the hits that remain, with the ids of the
    others.

    Near hits have ``vectors`` (n, d) with a cosine of at least ``threshold``; each goes under the
    best one.
    """
    rows: list[int] = []
    duplicates: dict[int, list[str]] = {}
    for begin in range(0, len(hits), BLOCK):
        block = vectors[begin : begin + BLOCK]
        near = block @ vectors[rows].T >= threshold
        own = block @ block.T >= threshold
        remain = np.zeros(len(block), bool)
        for place, i in enumerate(range(begin, begin + len(block))):
            beside = own[place] & remain
            if near[place].any():
                best = rows[int(near[place].argmax())]
            elif beside.any():
                best = begin + int(beside.argmax())
            else:
                remain[place] = True
                rows.append(i)
                duplicates[i] = []
                continue
            duplicates[best].append(hits[i].item.id)
    return [replace(hits[i], duplicates=tuple(duplicates[i])) for i in rows]
