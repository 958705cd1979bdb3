"""Making few segments of many, while rows go on coming in."""

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

from . import commits, fs
from .live_segments import Part
from .npy_files import Files
from .segment import Segment, load, write
from .segment import merge as merge_segments

MERGE = 8  # segments of about one size become one
WASTE = 0.5  # the share of rows that do not count at which a segment is written anew


@dataclass
class _Job:
    """A merge under way: its parts, what was live of them when it began, and what it gives."""

    parts: list[Part]
    live: list[NDArray[np.uint8] | None]
    result: Future[tuple[Part, list[NDArray[np.int64]]]]


class Merger:
    """Keeps the ``parts`` of an index few; merges run in a thread of their own, one at a time.

    Sizes go in powers of ``MERGE``, so that a row is written about log(n) times in all.
    """

    def __init__(self, home: Path, manifest: Manifest, parts: list[Part]) -> None:
        self.parts = parts
        self._home = home
        self._manifest = manifest
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="merge")
        self._job: _Job | None = None

    def __enter__(self) -> Merger:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def add(self, segment: Segment) -> None:
        """Store a segment as a part, and merge in the background what has become many."""
        stage = self._stage()
        self.parts.append(self._named(stage, write(stage, segment, self._manifest.fields)))
        if self._job is not None and self._job.result.done():
            self._adopt()
        if self._job is None:
            ripe = _ripe(self.parts)
            if ripe:
                live = [None if part.live is None else part.live.copy() for part in ripe]
                segments = [part.segment for part in ripe]
                self._job = _Job(ripe, live, self._pool.submit(self._merged, segments, live))

    def hold(self, segment: Segment) -> None:
        """Take a segment as a part that is not stored, for ``compact`` to merge with the others."""
        self.parts.append(Part(None, segment))

    def settle(self) -> None:
        """Merge all that is ripe, and write anew what holds much that does not count, or is of an older format."""
        self._adopt()
        while ripe := _ripe(self.parts) or [part for part in self.parts if _wasteful(part)][:1]:
            self._merge(ripe)

    def compact(self) -> None:
        """Merge all parts into one; nothing to do where one is all."""
        self._adopt()
        if len(self.parts) > 1 or any(part.name is None or part.live is not None for part in self.parts):
            self._merge(self.parts)

    def close(self) -> None:
        """Let a merge under way come to its end; its result is lost."""
        self._pool.shutdown(cancel_futures=True)

    def _merge(self, parts: Sequence[Part]) -> None:
        """At once."""
        kept = [part for part in parts if len(part)]
        merged = [self._merged([part.segment for part in kept], [part.live for part in kept])[0]] if kept else []
        self.parts[:] = [part for part in self.parts if part not in parts] + merged

    def _adopt(self) -> None:
        """Wait for the merge under way and put its result in place of its parts."""
        if self._job is None:
            return
        job, self._job = self._job, None
        merged, moved = job.result.result()
        for part, before, places in zip(job.parts, job.live, moved, strict=True):
            if part.live is not None:
                gone = np.flatnonzero((part.live == 0) & (1 if before is None else before != 0))
                if len(gone):
                    merged.live = np.ones(len(merged.segment), np.uint8) if merged.live is None else merged.live
                    merged.live[places[gone]] = 0
        self.parts[:] = [part for part in self.parts if part not in job.parts] + [merged]

    def _merged(
        self, segments: Sequence[Segment], live: Sequence[NDArray[np.uint8] | None]
    ) -> tuple[Part, list[NDArray[np.int64]]]:
        stage = self._stage()
        files, moved = merge_segments(stage, segments, live, self._manifest.fields)
        return self._named(stage, files), moved

    def _stage(self) -> Path:
        stage = self._home / f"building-{uuid.uuid4().hex[:12]}"
        fs.make(stage)
        return stage

    def _named(self, stage: Path, files: Files) -> Part:
        name, named = commits.keep_folder(stage, "segment", files)
        return Part(name, load(self._home / name, self._manifest), named)


def _ripe(parts: Sequence[Part]) -> list[Part]:
    """``MERGE`` or more parts of about one size, the smallest such; none if there are fewer of all sizes."""
    sizes: defaultdict[int, list[Part]] = defaultdict(list)
    for part in parts:
        if len(part):  # else there is nothing to merge of it
            sizes[int(math.log(len(part), MERGE))].append(part)
    return next((found for _, found in sorted(sizes.items()) if len(found) >= MERGE), [])


def _wasteful(part: Part) -> bool:
    return part.name is None or len(part) < (1 - WASTE) * len(part.segment)
