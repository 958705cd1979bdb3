"""The candidates whose vectors are read: of many, those whose compact codes promise most.

Posting lists order candidates coarsely, so that hundreds are needed to contain the best ten.
Compact codes (``boc/rerank/compact.py``) order them well enough that few of their vectors need to
be read.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from boc.rerank.compact import CompactCode

from .live_segments import LiveSegment, Snapshot

LEAST = 20_000  # items from which an index has a shortlist; the vectors of fewer are in the cache
# vectors read per hit at least, and as many as for ten hits, so that fewer hits are the first of
# these
PER_HIT = 5
SHARE = 0.05  # of the candidates whose vectors are read at least


class Shortlist:
    """Chooses the candidates whose vectors are read. The choice depends neither on the segments nor
    on the machine."""

    def __init__(self, code: CompactCode) -> None:
        self.code = code

    @classmethod
    def of(cls, opened: Snapshot) -> Shortlist | None:
        """Return the shortlist of an index; None if it is small, or a segment has no compact
        codes."""
        manifest = opened.manifest
        parts = [part for part in opened.parts if len(part.segment)]
        if sum(map(len, parts)) < LEAST:
            return None
        code = CompactCode.of(manifest.codec, opened.arrays, manifest.identity.dim)
        if code is None or any(part.segment.compact is None for part in parts):
            return None
        return cls(code)

    @staticmethod
    def size(depth: int, k: int) -> int:
        """Return how many of ``depth`` candidates are kept for k hits: a twentieth, and five per
        hit at least."""
        return min(depth, max(PER_HIT * max(k, 10), math.ceil(SHARE * depth)))

    def estimates(
        self,
        query: NDArray[np.float32],
        part: LiveSegment,
        rows: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        compact = part.segment.compact
        return (
            np.empty(0, np.float32)
            if compact is None
            else self.code.estimates(query, compact, rows)
        )
