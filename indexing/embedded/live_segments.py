"""The parts of an index: segments with their tombstones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.errors import ManifestError
from boc.manifest import Manifest
from boc.types import MODALITIES, Item

from . import commits
from .commits import Commit, Entry
from .npy_files import DAMAGED, Files, load_array
from .segment import Segment, load


@dataclass(eq=False)
class Part:
    """A segment, and which of its rows are ``live``: uint8 (n,), or None if all are.

    ``name`` is that of its folder; None if it is in memory only.
    """

    name: str | None
    segment: Segment
    files: Files = field(default_factory=dict)
    live: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.segment) if self.live is None else int(np.count_nonzero(self.live))

    def find(self, key: str) -> int | None:
        """The live row of an id, or None."""
        row = self.segment.find(key)
        return row if row is not None and (self.live is None or self.live[row]) else None

    def remove(self, key: str) -> bool:
        """Mark the row of an id as deleted; return whether there was one."""
        row = self.find(key)
        if row is None:
            return False
        if self.live is None:
            self.live = np.ones(len(self.segment), np.uint8)
        self.live[row] = 0
        return True

    def items(self) -> Iterator[Item]:
        """The items of the live rows, in order."""
        return self.segment.all_items(self.live)

    def counts(self) -> dict[str, int]:
        """Number of live rows of each modality."""
        if self.live is None:
            return self.segment.counts
        totals = np.bincount(self.segment.modality[self.live != 0], minlength=len(MODALITIES)).tolist()
        return dict(zip(MODALITIES, totals, strict=True))


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of an index: its parts stay valid, whatever happens to the files."""

    manifest: Manifest
    arrays: dict[str, NDArray[Any]]
    parts: list[Part]
    commit: Commit


def open_current(home: Path, *, scattered: bool = False) -> Snapshot:
    """Open the current commit in ``home``. ManifestError naming a file that is missing, damaged or of another format.

    ``scattered`` means random access to the vectors, as in searches, and not sequential reading.
    """
    _, commit = commits.read_current(home)
    commits.check(home, commit)
    try:
        return Snapshot(commit.manifest, commits.load_codec(home, commit), open_parts(home, commit, scattered), commit)
    except (ValueError, IndexError) as error:
        raise ManifestError(f"{home}: damaged, its files do not fit each other ({error}); {DAMAGED}") from error


def open_parts(home: Path, commit: Commit, scattered: bool = False) -> list[Part]:
    """Open the parts of a commit. ManifestError naming a damaged file."""
    parts = []
    for entry in commit.segments:
        segment = load(home / entry.name, commit.manifest, scattered=scattered)
        live = None
        if entry.dead is not None:
            dead = load_array(home / entry.dead)
            if dead.min(initial=0) < 0 or dead.max(initial=0) >= len(segment):
                raise ManifestError(f"{home / entry.dead}: damaged (rows beyond {len(segment)}); {DAMAGED}")
            live = np.ones(len(segment), np.uint8)
            live[dead] = 0
        prefix = f"{entry.name}/"
        files = {name: told for name, told in commit.files.items() if name.startswith(prefix)}
        parts.append(Part(entry.name, segment, files, live))
    return parts


def listed(home: Path, parts: Sequence[Part]) -> tuple[list[Entry], Files]:
    """The entries of a commit for stored parts, and their files, with new ones for tombstones."""
    entries: list[Entry] = []
    files: Files = {}
    for part in parts:
        assert part.name is not None
        dead = None
        if part.live is not None:
            dead, entry = commits.keep_array(home, "dead", np.flatnonzero(part.live == 0).astype(np.int32))
            files |= entry
        entries.append(Entry(part.name, len(part.segment), dead))
        files |= part.files
    return entries, files
