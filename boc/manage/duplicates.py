"""Find exact and near duplicates in an index, as groups.

Each item is searched by its stored vector. The posting lists provide candidates, and the vectors
decide. All members of a group are near the kept item. A group is not a connected component, since
small steps could connect a sunset with a portrait.
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

BATCH = 256  # items searched in one batch
DEPTH = 16  # hits of the first search for an item; more if all of them are near
HASH = "content_hash"  # metadata field with the digest of the file, if the index has it


@dataclass(frozen=True)
class Duplicate:
    """Member of a group. ``score`` is its cosine with the kept item; ``exact`` is True if the two
    files or vectors are equal."""

    item: Item
    score: float
    exact: bool


@dataclass(frozen=True)
class DuplicateGroup:
    """Kept item with its ``duplicates``, nearest first."""

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
    from the cosines of random pairs, see ``Background.near``. Items with equal vectors, or equal
    fields ``content_hash``, are exact duplicates. In each group the item with the smallest id is
    kept, with all near items that are not in an earlier group. Raises BocError for a threshold
    outside 0 to 1.
    """
    modality = searcher.target(find)
    least = searcher.background(modality).near if threshold is None else threshold
    if not 0 < least <= 1:
        raise BocError(
            f"the threshold must be above 0 and at most 1 (a cosine), got {least:g}; a common "
            "threshold is 0.95",
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
            # A rounded vector may be shorter than 1, but an equal vector is always near.
            vector = queries.vectors[row]
            bound = min(least, float(vector @ vector) or 1.0) - ALIKE
            depth = DEPTH
            while (near := values >= bound).sum() == depth:
                depth = 4 * depth
                (keys,), (values,) = rank(queries.take([row]), k=depth)
            scores = dict(zip(keys[near], values[near].tolist(), strict=True))
            # The search by a kept item may have missed this item.
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
