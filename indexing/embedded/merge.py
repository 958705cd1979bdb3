"""Merging of segments in the background, while rows are added."""

from __future__ import annotations

import math
import uuid
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boc.manifest import Manifest
from boc.rerank.compact import CompactCode

from . import commits, fs
from .live_segments import LiveSegment
from .segment import Segment, load, merge

MERGE = 8  # segments of similar size that are merged into one
FEW = 1 << 14
"""Segments of fewer rows are merged with each other at once: each costs a query as much as a large
one."""


@dataclass
class _Job:
    """A merge in progress: its parts, their live rows when it began, and its result."""

    parts: list[LiveSegment]
    live: list[NDArray[np.uint8] | None]
    result: Future[tuple[LiveSegment, list[NDArray[np.int64]]]]


class Merger:
    """Keeps the number of ``parts`` of an index small; merges run in a background thread, one at a
    time.

    Size classes are powers of ``MERGE``, so a row is written about log(n) times in total.
    """

    def __init__(
        self,
        home: Path,
        manifest: Manifest,
        parts: list[LiveSegment],
        code: CompactCode | None = None,
    ) -> None:
        self.parts = parts
        self._code = code
        self._home = home
        self._manifest = manifest
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="merge")
        self._job: _Job | None = None

    def __enter__(self) -> Merger:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def add(self, segment: Segment) -> None:
        """Store a segment as a part, and start a background merge if there are ``MERGE`` of similar
        size."""
        self.parts.append(self._write_merge([segment], [None])[0])
        if self._job is not None and self._job.result.done():
            self._adopt()
        if self._job is None:
            ripe = _ripe(self.parts)
            if ripe:
                live = [None if part.live is None else part.live.copy() for part in ripe]
                segments = [part.segment for part in ripe]
                self._job = _Job(ripe, live, self._pool.submit(self._write_merge, segments, live))

    def hold(self, segment: Segment) -> None:
        """Add a segment that is not stored, for ``compact`` to merge with the others."""
        self.parts.append(LiveSegment(None, segment))

    def settle(self) -> None:
        """Merge everything that is due, and rewrite segments with many deleted rows."""
        self._adopt()
        # A segment of which half the rows are deleted is rewritten.
        while ripe := (
            _ripe(self.parts) or [p for p in self.parts if len(p) < len(p.segment) / 2][:1]
        ):
            self._merge(ripe)

    def compact(self) -> None:
        """Merge all parts into one, unless there is only one without deleted rows, and with all
        files."""
        self._adopt()
        for part in self.parts:
            uncoded = self._code is not None and part.segment.compact is None
            if len(self.parts) > 1 or part.name is None or part.live is not None or uncoded:
                self._merge(self.parts)
                return

    def close(self) -> None:
        """Wait for a merge in progress; its result is dropped."""
        self._pool.shutdown(cancel_futures=True)

    def _merge(self, parts: Sequence[LiveSegment]) -> None:
        kept = [part for part in parts if len(part)]
        rest = [part for part in self.parts if part not in parts]
        if kept:
            segments = [part.segment for part in kept]
            rest.append(self._write_merge(segments, [part.live for part in kept])[0])
        self.parts[:] = rest

    def _adopt(self) -> None:
        """Wait for the merge in progress and replace its parts by its result."""
        if self._job is None:
            return
        job = self._job
        self._job = None
        merged, moved = job.result.result()
        for part, before, places in zip(job.parts, job.live, moved, strict=True):
            if part.live is None:
                continue
            gone = part.live == 0
            if before is not None:
                gone &= before != 0
            if gone.any():
                if merged.live is None:
                    merged.live = np.ones(len(merged.segment), np.uint8)
                merged.live[places[gone]] = 0
        self.parts[:] = [part for part in self.parts if part not in job.parts] + [merged]

    def _write_merge(
        self,
        segments: Sequence[Segment],
        live: Sequence[NDArray[np.uint8] | None],
    ) -> tuple[LiveSegment, list[NDArray[np.int64]]]:
        stage = self._home / f"building-{uuid.uuid4().hex[:12]}"
        fs.make(stage)
        files, moved = merge(stage, segments, live, self._manifest.fields, self._code)
        name, named = commits.keep_folder(stage, "segment", files)
        return LiveSegment(name, load(self._home / name, self._manifest), named), moved


def _ripe(parts: Sequence[LiveSegment]) -> list[LiveSegment]:
    """Return the parts to merge: two or more of ``FEW`` rows, or ``MERGE`` in the smallest such
    size class, or none."""
    sizes: defaultdict[int, list[LiveSegment]] = defaultdict(list)
    for part in parts:
        if len(part):  # skips parts without live rows
            sizes[-1 if len(part) < FEW else int(math.log(len(part), MERGE))].append(part)
    for size, ripe in sorted(sizes.items()):
        if len(ripe) >= (2 if size < 0 else MERGE):
            return ripe
    return []
