"""The candidates whose vectors are read: of many, those whose compact codes promise most.

Posting lists order candidates coarsely, so that hundreds are needed to contain the best ten. Compact codes
(``boc/rerank/compact.py``) order them well enough that few of their vectors need to be read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boc.rerank.compact import CompactCode

from .live_segments import Part, Snapshot

LEAST = 20_000  # items from which an index has a shortlist; the vectors of fewer are in the cache
PER_HIT = 5  # vectors read per hit at least
SHARE = 0.05  # of the candidates whose vectors are read at least

Found: TypeAlias = tuple[Part, NDArray[np.int64], NDArray[Any]]
"""A part, some of its rows, and their scores."""


class Shortlist:
    """Chooses the candidates whose vectors are read. The choice depends neither on the segments nor on the machine."""

    def __init__(self, code: CompactCode) -> None:
        self.code = code

    @classmethod
    def of(cls, opened: Snapshot) -> Shortlist | None:
        """The shortlist of an index; None if it is small, or a segment has no compact codes."""
        manifest, parts = opened.manifest, [part for part in opened.parts if len(part.segment)]
        if sum(map(len, parts)) < LEAST:
            return None
        code = CompactCode.of(manifest.codec, opened.arrays, manifest.identity.dim)
        if code is None or any(part.segment.compact is None for part in parts):
            return None
        return cls(code)

    @staticmethod
    def size(depth: int, k: int) -> int:
        """How many of ``depth`` candidates are kept for k hits: a twentieth of them, and five per hit at least."""
        return min(depth, max(PER_HIT * k, math.ceil(SHARE * depth)))

    def cut(
        self, found: Sequence[Sequence[Found]], queries: NDArray[np.float32], depth: int, k: int
    ) -> list[list[Found]]:
        """For each of ``queries`` (n, d) the candidates of the largest estimates, of equal ones those of the smaller
        id, in the order of rows. The candidates, in ``found``, are rows of one modality."""
        size = self.size(depth, k)
        return [self._cut(parts, query, size) for parts, query in zip(found, queries, strict=True)]

    def _cut(self, found: Sequence[Found], query: NDArray[np.float32], size: int) -> list[Found]:
        if sum(len(rows) for _, rows, _ in found) <= size:
            return list(found)
        return leading([(part, rows, self._estimates(query, part, rows)) for part, rows, _ in found], size)

    def _estimates(self, query: NDArray[np.float32], part: Part, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        compact = part.segment.compact
        return np.empty(0, np.float32) if compact is None else self.code.estimates(query, compact, rows)


def leading(found: Sequence[Found], k: int) -> list[Found]:
    """The k best rows of all parts by (-score, id), in the order that they have in each part.

    Ids are read only of rows whose score is that of the k-th best.
    """
    counts = [len(rows) for _, rows, _ in found]
    if sum(counts) <= k:
        return list(found)
    scores = np.concatenate([scores for _, _, scores in found])
    owners = np.repeat(np.arange(len(found)), counts)
    rows = np.concatenate([rows for _, rows, _ in found])
    least = np.partition(scores, -k)[-k]
    above, tied = scores > least, np.flatnonzero(scores == least)
    by_id = sorted(tied.tolist(), key=lambda at: found[int(owners[at])][0].segment.texts["ids"][int(rows[at])])
    above[by_id[: k - np.count_nonzero(above)]] = True
    kept = [above & (owners == i) for i in range(len(found))]
    return [(part, rows[mine], scores[mine]) for (part, _, _), mine in zip(found, kept, strict=True)]
