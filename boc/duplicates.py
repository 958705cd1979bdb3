"""Exact and near duplicates of an index, as groups.

Posting lists bring the candidates of each item, by a search with its stored vector; the vectors decide. Groups are not
the connected components of all near pairs, which would join a sunset to a portrait by a chain of small steps: every
member is near the item that the group keeps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from boc.errors import BocError
from boc.search import Searcher
from boc.types import Embeddings, Item, Modality

BATCH = 256  # items searched by at a time
DEPTH = 16  # near items asked for at first; more if all of them are near
SAMPLE = 1000  # items of the background
NEAR = 0.2  # the default threshold, as a share of the distance of random pairs; how it was chosen: docs/commands.md
HASH = "content_hash"  # the field with the digest of the file, where the index has it


@dataclass(frozen=True)
class Duplicate:
    """A member of a group: ``score`` is the cosine with the kept item, ``exact`` says that file or vector are equal."""

    item: Item
    score: float
    exact: bool


@dataclass(frozen=True)
class Group:
    """An item that is kept, and its ``duplicates``, nearest first."""

    kept: Item
    duplicates: list[Duplicate]


def find_duplicates(
    searcher: Searcher,
    threshold: float | None = None,
    *,
    find: Modality | None = None,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
) -> list[Group]:
    """The groups of duplicates among the items of one modality, ordered by the id of the kept item.

    Two items are near if the cosine of their vectors is at least ``threshold``; the default follows from the cosines
    of random pairs, see ``default_threshold``. Items whose vectors are equal, or their field ``content_hash``, are
    exact duplicates. The item with most near items is kept, ties to the smaller id. Memory is used for pairs, not for
    vectors. BocError for a threshold outside 0 to 1.
    """
    modality = searcher.target(find)
    least = default_threshold(searcher, modality) if threshold is None else threshold
    if not 0 < least <= 1:
        raise BocError(f"the threshold must be above 0 and at most 1 (a cosine), got {least:g}; 0.95 is a common one")
    near, twins, total = _Near(), defaultdict[object, list[str]](list), searcher.index.manifest.items[modality]
    done = 0
    for items, asked in _asking(searcher, modality):
        for row, (item, found) in enumerate(zip(items, _near(searcher, asked, least, modality), strict=True)):
            for key, score in found.items():
                if key != item.id:
                    near[item.id][key] = near[key][item.id] = score
            twins[asked.vectors[row].tobytes()].append(item.id)
            if HASH in item.fields:
                twins[item.fields[HASH]].append(item.id)
        done += len(items)
        progress("comparing", done, total)
    exact = {(one, other) for keys in twins.values() if len(keys) > 1 for one in keys for other in keys if one != other}
    for one, other in exact:
        near[one][other] = 1.0
    return _groups(searcher, grouped(near), exact)


def default_threshold(searcher: Searcher, modality: Modality) -> float:
    """1 - NEAR * (1 - c), where c is the median cosine of random pairs of the index.

    So it fits encoders whose vectors all lie close together, and collections of one subject.
    """
    ids = searcher.index.sample(SAMPLE, modality)
    vectors = searcher.index.vectors(ids).astype(np.float32)
    if len(ids) < 2:
        return 1.0
    background = float(np.median((vectors[:-1] * vectors[1:]).sum(axis=1)))
    return 1 - NEAR * (1 - min(background, 1.0))


def grouped(near: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Groups of near items: the kept item, and the others with their scores.

    Items are taken in the order of how many near items they have, ties to the smaller id; each keeps the near items
    that no earlier group has. So all members are near the kept one.
    """
    taken: set[str] = set()
    groups = {}
    for key in sorted(near, key=lambda key: (-len(near[key]), key)):
        if key not in taken:
            others = {other: score for other, score in near[key].items() if other not in taken}
            taken |= {key, *others}
            if others:
                groups[key] = others
    return dict(sorted(groups.items()))


class _Near(defaultdict[str, dict[str, float]]):
    """Near items by id, with the cosine."""

    def __init__(self) -> None:
        super().__init__(dict)


def _asking(searcher: Searcher, modality: Modality) -> Iterator[tuple[list[Item], Embeddings]]:
    """All items of one modality in batches, with what they are searched by."""
    index, sets = searcher.index, searcher.codec.reads_concepts
    items = (item for item in index.items() if item.modality == modality)
    while batch := list(islice(items, BATCH)):
        ids = [item.id for item in batch]
        concepts = index.concepts(ids).ragged() if sets else None
        yield batch, Embeddings(modality, index.vectors(ids).astype(np.float32), concepts)


def _near(searcher: Searcher, asked: Embeddings, least: float, modality: Modality) -> list[dict[str, float]]:
    """For each row the items that are near; more are asked for while all found are near."""
    found: list[dict[str, float]] = [{} for _ in range(len(asked))]
    rows, depth = list(range(len(asked))), DEPTH
    while rows:
        answers = searcher.search_vectors(asked.take(rows), k=depth, find=modality, rerank="dot")
        full = []
        for row, hits in zip(rows, answers, strict=True):
            found[row] = {hit.item.id: hit.score for hit in hits if hit.score >= least}
            if len(found[row]) == depth:
                full.append(row)
        rows, depth = full, 4 * depth
    return found


def _groups(searcher: Searcher, groups: Mapping[str, Mapping[str, float]], exact: set[tuple[str, str]]) -> list[Group]:
    found = []
    for key, others in groups.items():
        ordered = sorted(others, key=lambda other: (-others[other], other))
        kept, *items = searcher.index.find([key, *ordered])
        rest = [Duplicate(item, others[item.id], (key, item.id) in exact) for item in items]
        found.append(Group(kept, rest))
    return found
