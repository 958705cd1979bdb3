"""Find groups of exact duplicates and near-duplicates in an index.

A search with the stored vector of each item finds candidates through the posting lists, and the
cosines of the vectors decide which candidates are duplicates. Every member of a group is near the
item that is kept. Groups are not connected components, because a chain of similar pictures could
connect a sunset with a portrait.
"""

from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from boc.errors import BocError
from boc.progress import Progress, silent
from boc.search.background import ALIKE
from boc.search.searcher import Searcher
from boc.types import Embeddings, Item, Modality

BATCH = 256  # items per batch of searches
DEPTH = 16  # hits in the first search for an item; increased if all hits are near
HASH = "content_hash"  # optional metadata field with the digest of the file


@dataclass(frozen=True)
class Duplicate:
    """Duplicate of the kept item of a group. ``score`` is the cosine of the two items, and
    ``exact`` is True if their files or vectors are identical."""

    item: Item
    score: float
    exact: bool


@dataclass(frozen=True)
class DuplicateGroup:
    """Item to keep, with its ``duplicates``, nearest first."""

    item: Item
    duplicates: list[Duplicate]


def find_duplicates(
    searcher: Searcher,
    threshold: float | None = None,
    *,
    find: Modality | None = None,
    progress: Progress = silent,
) -> list[DuplicateGroup]:
    """Return the groups of duplicates among the items of one modality, sorted by the id of the kept
    item.

    Two items are near if the cosine of their vectors is at least ``threshold``; the default is
    derived from the cosines of random pairs (see ``Background.near``). Items with equal vectors, or
    with the same ``content_hash``, are exact duplicates. Each group consists of the item with the
    smallest id, which is kept, and all near items that are not in an earlier group. Raises BocError
    if the threshold is not above 0 and at most 1.
    """
    modality = searcher.target(find)
    least = searcher.background(modality).near if threshold is None else threshold
    if not 0 < least <= 1:
        raise BocError(
            f"the threshold must be a cosine above 0 and at most 1, got {least:g}; a common value "
            "is 0.95",
        )
    index = searcher.index
    groups: dict[str, dict[str, float]] = {}
    taken = set()
    ids = (item.id for item in index.items() if item.modality == modality and item.id not in taken)
    while batch := list(islice(ids, BATCH)):
        concepts = index.concepts(batch).to_ragged() if searcher.codec.reads_concepts else None
        queries = Embeddings(modality, index.vectors(batch).astype(np.float32), concepts)
        rank = partial(searcher.rank_vectors, find=modality, rerank="dot")
        for row, (key, keys, values) in enumerate(zip(batch, *rank(queries, k=DEPTH), strict=True)):
            if key in taken:
                continue
            # A rounded vector may have a length below 1, but equal vectors are always near.
            vector = queries.vectors[row]
            bound = min(least, float(vector @ vector) or 1.0) - ALIKE
            depth = DEPTH
            while (near := values >= bound).sum() == depth:
                depth = 4 * depth
                (keys,), (values,) = rank(queries.take([row]), k=depth)
            scores = dict(zip(keys[near], values[near].tolist(), strict=True))
            # The search with the kept item may have missed this item.
            kept = next((other for other in scores if other in groups), None)
            if kept is not None:
                groups[kept][key] = scores[kept]
                taken.add(key)
            else:
                scores.pop(key, None)
                groups[key] = {other: scores[other] for other in scores.keys() - taken}
                taken |= groups[key].keys()
        progress("comparing", len(groups) + len(taken), index.manifest.items[modality])
    report = []
    for key, scores in groups.items():
        if scores:
            ordered = [key, *sorted(scores, key=lambda other: (-scores[other], other))]
            vectors = index.vectors(ordered)
            first, *others = index.find(ordered)
            duplicates = []
            for item, vector in zip(others, vectors[1:], strict=True):
                same_file = HASH in item.fields and item.fields[HASH] == first.fields.get(HASH)
                exact = same_file or np.array_equal(vector, vectors[0])
                duplicates.append(Duplicate(item, scores[item.id], exact))
            report.append(DuplicateGroup(first, duplicates))
    return report
