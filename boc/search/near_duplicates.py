"""Near-duplicates under one hit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from boc.types import Hit

if TYPE_CHECKING:
    from boc.plugins import Engine

# hits per hit to return, from which distinct ones are chosen; more if near-duplicates leave too few
POOL = 4


def select_distinct(
    ask: Callable[[int], Sequence[Hit]],
    index: Engine,
    k: int,
    near: float,
) -> list[Hit]:
    """Return at most k of the hits of ``ask(depth)``, best first, with cosines to each other below
    ``near``."""
    depth = POOL * k
    while True:
        hits = ask(depth)
        distinct = collapse(
            hits,
            index.vectors([hit.item.id for hit in hits]).astype(np.float32),
            near,
        )
        if len(distinct) >= k or len(hits) < depth:
            return distinct[:k]
        depth *= POOL


def collapse(hits: Sequence[Hit], vectors: NDArray[np.float32], threshold: float) -> list[Hit]:
    """Put near-duplicates under their best hit; return the hits that remain, with those ids.

    Near hits have ``vectors`` (n, d) with a cosine of at least ``threshold``; each goes under the
    best one.
    """
    rows: list[int] = []
    duplicates: dict[int, list[str]] = {}
    for i, hit in enumerate(hits):
        near = np.flatnonzero(vectors[rows] @ vectors[i] >= threshold)
        if len(near):
            duplicates[rows[near[0]]].append(hit.item.id)
        else:
            rows.append(i)
            duplicates[i] = []
    return [replace(hits[i], duplicates=tuple(duplicates[i])) for i in rows]
