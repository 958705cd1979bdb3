"""Exact and near duplicates of an index, as groups.

Posting lists bring the candidates of each item, by a search with its stored vector; the vectors
decide. Groups are not connected components, which join a sunset to a portrait by small steps:
members are near the item kept.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from types import MappingProxyType

import numpy as np

from boc.errors import BocError
from boc.progress import Progress, silent
from boc.search.searcher import Searcher
from boc.types import Embeddings, Item, Modality

BATCH = 256  # items per batch of searches
DEPTH = 16  # near items asked for at first; more if all of them are near
HASH = "content_hash"  # the field with the digest of the file, where the index has it


@dataclass(frozen=True)
class Duplicate:
    """A member of a group: ``score`` is the cosine with the kept item, ``exact`` says that file or
    vector are equal."""

    item: Item
    score: float
    exact: bool


@dataclass(frozen=True)
class DuplicateGroup:
    """An item that is kept, and its ``duplicates``, nearest first."""

    item: Item
    duplicates: list[Duplicate]


def find_duplicates(
    searcher: Searcher,
    threshold: float | None = None,
    *,
    find: Modality | None = None,
    progress: Progress = silent,
) -> list[DuplicateGroup]:
    """Find the groups of duplicates among the items of one modality, ordered by the id of the kept
    item.

    Two items are near if the cosine of their vectors is at least ``threshold``; the default follows
    from the cosines of random pairs, see ``Background.near``. Items whose vectors are equal, or
    their field ``content_hash``, are exact duplicates. The item with most near items is kept, ties
    to the smaller id. Items of equal vector and file are compared as one, and vectors are not kept
    in memory. BocError for a threshold outside 0 to 1.
    """
    modality = searcher.target(find)
    least = searcher.background(modality).near if threshold is None else threshold
    if not 0 < least <= 1:
        raise BocError(
            f"the threshold must be above 0 and at most 1 (a cosine), got {least:g}; 0.95 is a "
            "common one",
        )
    members = _equal(searcher, modality)
    leader = {key: first for first, keys in members.items() for key in keys}
    near: defaultdict[str, dict[str, float]] = defaultdict(dict)
    done = 0
    leaders = iter(members)
    while ids := list(islice(leaders, BATCH)):
        for key, scores in zip(ids, _near(searcher, ids, least, modality), strict=True):
            for other, score in scores.items():
                first = leader[other]
                if first != key:
                    near[key][first] = near[first][key] = score
        done += len(ids)
        progress("comparing", done, len(members))
    sizes = {key: len(keys) for key, keys in members.items() if len(keys) > 1}
    for key in sizes:
        near[key]  # a group of its own, if nothing else is near
    groups = []
    for key, others in group_near(near, sizes).items():
        near_by = dict.fromkeys(members[key][1:], (1.0, True))
        for other, score in others.items():
            near_by |= dict.fromkeys(members[other], (score, False))
        ordered = sorted(near_by, key=lambda id: (-near_by[id][0], id))
        first_item, *items = searcher.index.find([key, *ordered])
        duplicates = [Duplicate(item, *near_by[item.id]) for item in items]
        groups.append(DuplicateGroup(first_item, duplicates))
    return groups


def _equal(searcher: Searcher, modality: Modality) -> dict[str, list[str]]:
    """Return the ids of items of equal vector or equal file, which are compared as one, by the
    first of them."""
    members: defaultdict[str, list[str]] = defaultdict(list)
    known: dict[object, str] = {}
    items = (item for item in searcher.index.items() if item.modality == modality)
    while batch := list(islice(items, BATCH)):
        vectors = searcher.index.vectors([item.id for item in batch])
        for item, vector in zip(batch, vectors, strict=True):
            keys: list[object] = [blake2b(vector.tobytes(), digest_size=16).digest()]
            if HASH in item.fields:
                keys.append(item.fields[HASH])
            first = min((known[key] for key in keys if key in known), default=item.id)
            known |= {key: known.get(key, first) for key in keys}
            members[first].append(item.id)
    return members


def group_near(
    near: Mapping[str, Mapping[str, float]],
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, dict[str, float]]:
    """Group near items: the kept item, and the others with their scores.

    Items are taken in the order of how many near items they have, ties to the smaller id; each
    keeps the near items that no earlier group has. So all members are near the kept one. ``sizes``:
    how many equal items one stands for.
    """

    def rank(key: str) -> tuple[int, str]:
        return -sum(sizes.get(other, 1) for other in (key, *near[key])), key

    taken: set[str] = set()
    groups = {}
    for key in sorted(near, key=rank):
        if key not in taken:
            others = {other: score for other, score in near[key].items() if other not in taken}
            taken |= {key, *others}
            if others or sizes.get(key, 1) > 1:
                groups[key] = others
    return dict(sorted(groups.items()))


def _near(
    searcher: Searcher,
    ids: Sequence[str],
    least: float,
    modality: Modality,
) -> list[dict[str, float]]:
    """Search for the near items of each item by its stored vector; more are requested while all are
    near."""
    index = searcher.index
    concepts = index.concepts(ids).to_ragged() if searcher.codec.reads_concepts else None
    queries = Embeddings(modality, index.vectors(ids).astype(np.float32), concepts)
    scores: list[dict[str, float]] = [{} for _ in ids]
    rows = list(range(len(ids)))
    depth = DEPTH
    while rows:
        answers = searcher.search_vectors(queries.take(rows), k=depth, find=modality, rerank="dot")
        full = []
        for row, hits in zip(rows, answers, strict=True):
            scores[row] = {hit.item.id: hit.score for hit in hits if hit.score >= least}
            if len(scores[row]) == depth:
                full.append(row)
        rows = full
        depth = 4 * depth
    return scores
