"""Variety of hits: maximal marginal relevance, and near-duplicates under one hit.

Maximal marginal relevance (Carbonell and Goldstein, The Use of MMR, Diversity-Based Reranking, SIGIR 1998) takes, one
after the other, the hit of largest

    balance * relevance - (1 - balance) * its largest similarity to a hit that is taken

Cosines of a sentence with pictures and those of pictures with each other have different ranges, so both are scaled to
0 to 1 over the hits to choose from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from boc.types import Hit

if TYPE_CHECKING:
    from boc.plugins import Index

POOL = 4  # hits per hit to return, from which varied ones are chosen; more if near-duplicates leave too few


def select_varied(
    ask: Callable[[int], list[Hit]], index: Index, k: int, near: float | None, balance: float | None
) -> list[Hit]:
    """Return at most k of the hits of ``ask(depth)``, best first: without near-duplicates, if ``near`` is their least
    cosine, and by maximal marginal relevance of ``balance``, if given."""
    depth = POOL * k
    while True:
        hits = ask(depth)
        vectors = index.vectors([hit.item.id for hit in hits]).astype(np.float32)
        distinct, places = (hits, list(range(len(hits)))) if near is None else collapse(hits, vectors, near)
        if len(distinct) >= k or len(hits) < depth:
            return distinct[:k] if balance is None else diverse(distinct, vectors[places], k, balance)
        depth *= POOL


def diverse(hits: Sequence[Hit], vectors: NDArray[np.float32], k: int, balance: float) -> list[Hit]:
    """Return at most k of ``hits`` by maximal marginal relevance; ``vectors`` (n, d) are theirs, of unit length.

    ``balance`` of 1 keeps the ranking, 0 asks for different hits only; the first hit is the best one. Ties go to the
    better hit.
    """
    if not hits:
        return []
    relevance = _rescale(np.array([hit.score for hit in hits], np.float64))
    similar = _rescale((vectors @ vectors.T).astype(np.float64))
    chosen, nearest = [0], similar[0].copy()
    left = np.arange(1, len(hits))
    while len(chosen) < k and len(left):
        best = int((balance * relevance[left] - (1 - balance) * nearest[left]).argmax())
        chosen.append(int(left[best]))
        nearest = np.maximum(nearest, similar[chosen[-1]])
        left = np.delete(left, best)
    return [hits[i] for i in chosen]


def collapse(hits: Sequence[Hit], vectors: NDArray[np.float32], threshold: float) -> tuple[list[Hit], list[int]]:
    """Put near-duplicates under their best hit; return the hits that remain, with those ids, and their places.

    Two hits are near if the cosine of their ``vectors`` (n, d) is at least ``threshold``; a hit that is near several is
    put under the best of them.
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
    return [replace(hits[i], duplicates=tuple(duplicates[i])) for i in rows], rows


def _rescale(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values as shares of their range; 0 if all are the same."""
    least, most = values.min(), values.max()
    scaled: NDArray[np.float64] = (values - least) / (most - least if most > least else 1)
    return scaled
