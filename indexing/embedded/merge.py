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
from .npy_files import Files
from .segment import Segment, load, write
from .segment import merge as merge_segments

MERGE = 8  # segments of similar size that are merged into one
FEW = (
    1 << 14
    # rows; segments of fewer are merged with each other at once: each costs a query as much as a
    # large one
)
WASTE = 0.5  # share of deleted rows at which a segment is rewritten


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
        stage = self._stage()
        self.parts.append(
            self._keep_part(stage, write(stage, segment, self._manifest.fields, self._code)),
        )
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
        while (
            ripe := _ripe(self.parts)
            or [p for p in self.parts if len(p) < (1 - WASTE) * len(p.segment)][:1]
        ):
            self._merge(ripe)

    def compact(self) -> None:
        """Merge all parts into one, unless there is only one without deleted rows, and with all
        files."""
        self._adopt()
        if len(self.parts) > 1 or any(self._is_due(part) for part in self.parts):
            self._merge(self.parts)

    def _is_due(self, part: LiveSegment) -> bool:
        uncoded = self._code is not None and part.segment.compact is None
        return part.name is None or part.live is not None or uncoded

    def close(self) -> None:
        """Wait for a merge in progress; its result is dropped."""
        self._pool.shutdown(cancel_futures=True)

    def _merge(self, parts: Sequence[LiveSegment]) -> None:
        kept = [part for part in parts if len(part)]
        merged = (
            [self._write_merge([part.segment for part in kept], [part.live for part in kept])[0]]
            if kept
            else []
        )
        self.parts[:] = [part for part in self.parts if part not in parts] + merged

    def _adopt(self) -> None:
        """Wait for the merge in progress and replace its parts by its result."""
        if self._job is None:
            return
        job = self._job
        self._job = None
        merged, moved = job.result.result()
        for part, before, places in zip(job.parts, job.live, moved, strict=True):
            if part.live is not None:
                gone = np.flatnonzero((part.live == 0) & (1 if before is None else before != 0))
                if len(gone):
                    merged.live = (
                        np.ones(len(merged.segment), np.uint8)
                        if merged.live is None
                        else merged.live
                    )
                    merged.live[places[gone]] = 0
        self.parts[:] = [part for part in self.parts if part not in job.parts] + [merged]

    def _write_merge(
        self,
        segments: Sequence[Segment],
        live: Sequence[NDArray[np.uint8] | None],
    ) -> tuple[LiveSegment, list[NDArray[np.int64]]]:
        stage = self._stage()
        files, moved = merge_segments(stage, segments, live, self._manifest.fields, self._code)
        return self._keep_part(stage, files), moved

    def _stage(self) -> Path:
        stage = self._home / f"building-{uuid.uuid4().hex[:12]}"
        fs.make(stage)
        return stage

    def _keep_part(self, stage: Path, files: Files) -> LiveSegment:
        name, named = commits.keep_folder(stage, "segment", files)
        return LiveSegment(name, load(self._home / name, self._manifest), named)


def _ripe(parts: Sequence[LiveSegment]) -> list[LiveSegment]:
    """Return the parts to merge: two or more of ``FEW`` rows, or ``MERGE`` in the smallest such
    size class, or none."""
    sizes: defaultdict[int, list[LiveSegment]] = defaultdict(list)
    for part in parts:
        if len(part):  # skips parts without live rows
            sizes[-1 if len(part) < FEW else int(math.log(len(part), MERGE))].append(part)
    return next(
        (ripe for size, ripe in sorted(sizes.items()) if len(ripe) >= (2 if size < 0 else MERGE)),
        [],
    )
