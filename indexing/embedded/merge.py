"""Merge segments to keep their number small."""

from __future__ import annotations

import math
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from boc.manifest import Manifest
from boc.rerank.compact import CompactCode

from . import commits, fs
from .live_segments import LiveSegment
from .segment import Segment, load, merge

MERGE = 8  # number of segments of similar size that are merged into one
FEW = 1 << 14
"""Segments with fewer rows are merged immediately, because a query needs the same overhead for a
small segment as for a large segment."""
LIVE = 0.9
"""Minimum fraction of live rows in a segment, because queries also read the terms of deleted
rows."""


@dataclass
class Merger:
    """Keep the number of ``parts`` of an index small.

    Size classes are powers of ``MERGE``, so each row is written about log(n) times in total.
    """

    home: Path
    manifest: Manifest
    parts: list[LiveSegment]
    code: CompactCode | None

    def add(self, segment: Segment) -> None:
        """Store a segment as a part, then merge parts if necessary."""
        self.parts.append(self._write_merge([LiveSegment("", segment)]))
        while ripe := _ripe(self.parts, 0):
            self._merge(ripe)

    def settle(self) -> None:
        """Merge all parts that should be merged, and rewrite segments with a lot of deleted rows. A
        rewritten segment is merged with all smaller segments."""
        while ripe := _ripe(self.parts, FEW) or self._worn():
            self._merge(ripe)

    def _worn(self) -> list[LiveSegment]:
        worn = [len(part) for part in self.parts if len(part) < LIVE * len(part.segment)]
        return [part for part in self.parts if worn and len(part) <= max(worn)]

    def compact(self) -> None:
        """Merge all parts into one, unless the index already consists of a single part with all
        files and without deleted rows."""
        for part in self.parts:
            uncoded = self.code is not None and part.segment.compact is None
            if len(self.parts) > 1 or part.live is not None or uncoded:
                self._merge(self.parts)
                return

    def _merge(self, parts: Sequence[LiveSegment]) -> None:
        kept = [part for part in parts if len(part)]
        rest = [part for part in self.parts if part not in parts]
        if kept:
            rest.append(self._write_merge(kept))
        self.parts[:] = rest

    def _write_merge(self, parts: Sequence[LiveSegment]) -> LiveSegment:
        stage = self.home / f"building-{uuid.uuid4().hex[:12]}"
        fs.make(stage)
        files = merge(
            stage,
            [part.segment for part in parts],
            [part.live for part in parts],
            self.manifest.fields,
            self.code,
        )
        name, named = commits.keep_folder(stage, "segment", files)
        return LiveSegment(name, load(self.home / name, self.manifest), named)


def _ripe(parts: Sequence[LiveSegment], few: int) -> list[LiveSegment]:
    """Return the parts to merge: all parts of fewer than ``few`` rows if at least two exist,
    otherwise ``MERGE`` parts of the smallest full size class, or an empty list."""
    sizes = defaultdict(list)
    for part in parts:
        if len(part):  # skip parts without live rows
            sizes[-1 if len(part) < few else int(math.log(len(part), MERGE))].append(part)
    for size, ripe in sorted(sizes.items()):
        if len(ripe) >= (2 if size < 0 else MERGE):
            return ripe
    return []
