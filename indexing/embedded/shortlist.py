"""The candidates whose vectors are read: of many, those whose compact codes promise most.

Posting lists order candidates coarsely, so that hundreds are needed to contain the best ten.
Compact codes (``boc/rerank/compact.py``) order them well enough that few of their vectors need to
be read.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from boc.rerank.compact import CompactCode

from .live_segments import LiveSegment, Snapshot

LEAST = 20_000  # items from which an index has a shortlist; the vectors of fewer are in the cache


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

    def estimates(
        self,
        query: NDArray[np.float32],
        part: LiveSegment,
        rows: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        compact = part.segment.compact
        if compact is None:  # of a part without rows
            return np.empty(0, np.float32)
        return self.code.estimates(query, compact, rows)
