"""The parts of an index: segments with the rows of each that still count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.errors import ManifestError
from boc.manifest import Manifest
from boc.types import MODALITIES

from . import commits, old_formats
from .commits import Commit, Entry
from .npy_files import DAMAGED, Files, load_array
from .segment import Segment, load


@dataclass(eq=False)
class Part:
    """A segment, and which of its rows are ``live``: uint8 (n,), or None if all are.

    ``name`` is that of its folder; None if it comes from an index of an older format.
    """

    name: str | None
    segment: Segment
    files: Files = field(default_factory=dict)
    live: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.segment) if self.live is None else int(np.count_nonzero(self.live))

    def find(self, key: str) -> int | None:
        """The live row of an id."""
        row = self.segment.find(key)
        return row if row is not None and (self.live is None or self.live[row]) else None

    def remove(self, key: str) -> bool:
        """Let the row of an id count no longer; whether there was one."""
        row = self.find(key)
        if row is None:
            return False
        if self.live is None:
            self.live = np.ones(len(self.segment), np.uint8)
        self.live[row] = 0
        return True

    def rows(self) -> Iterator[tuple[str, int]]:
        """The live rows and their ids, in order."""
        ids = self.segment.texts["ids"]
        rows = range(len(self.segment)) if self.live is None else np.flatnonzero(self.live).tolist()
        return ((ids[row], row) for row in rows)

    def counts(self) -> dict[str, int]:
        """How many live rows are of each modality."""
        if self.live is None:
            return self.segment.counts
        found = np.bincount(self.segment.modality[self.live != 0], minlength=len(MODALITIES)).tolist()
        return dict(zip(MODALITIES, found, strict=True))


@dataclass(frozen=True)
class Opened:
    """What an index was at a moment: its parts stay as they are, whatever becomes of the files."""

    manifest: Manifest
    arrays: dict[str, NDArray[Any]]
    parts: list[Part]
    commit: Commit | None


def open_current(home: Path, *, scattered: bool = False) -> Opened:
    """What the index in ``home`` is now. ManifestError naming a file that is missing, damaged or of a newer format.

    ``scattered`` says that vectors will be read here and there, as searches do, and not from end to end.
    """
    name = commits.current(home)
    if name.startswith("generation-") and "/" not in name:
        manifest, arrays, segment = old_formats.load(home / name)
        return Opened(manifest, arrays, [Part(None, segment)], None)
    _, commit = commits.read_current(home)
    commits.check(home, commit)
    return Opened(commit.manifest, commits.load_codec(home, commit), open_parts(home, commit, scattered), commit)


def open_parts(home: Path, commit: Commit, scattered: bool = False) -> list[Part]:
    """The parts that a commit lists. ManifestError naming a damaged file."""
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
    """The entries of a commit for named parts, and their files, with new ones for rows that do not count."""
    entries: list[Entry] = []
    files: Files = {}
    for part in parts:
        assert part.name is not None
        dead = None
        if part.live is not None:
            dead, told = commits.keep_array(home, "dead", np.flatnonzero(part.live == 0).astype(np.int32))
            files |= told
        entries.append(Entry(part.name, len(part.segment), dead))
        files |= part.files
    return entries, files
