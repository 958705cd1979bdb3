"""Represent the parts of an index, which are segments with their tombstones."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from boc.errors import ManifestError
from boc.manifest import Manifest
from boc.types import MODALITIES, Filter, Item, Modality
from boc.vectors import Array, Ints

from . import commits
from .commits import Commit, SegmentEntry
from .npy_files import DAMAGED, Files, load_array
from .segment import Segment, load

T = TypeVar("T")
Located: TypeAlias = "tuple[LiveSegment, Ints, Ints]"
"""Part that contains some of the ids in a list, with the positions of these ids in the list, and
their rows."""


@dataclass(eq=False)
class LiveSegment:
    """Segment with a mask of its ``live`` rows, uint8 (n,), or None if all rows are live.

    ``name`` is the name of the segment's folder.
    """

    name: str
    segment: Segment
    files: Files = field(default_factory=dict)
    live: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.segment) if self.live is None else int(np.count_nonzero(self.live))

    def find(self, key: str) -> int | None:
        """Return the live row with an id, or None if there is no such row."""
        row = self.segment.find(key)
        return row if row is not None and (self.live is None or self.live[row]) else None

    def remove(self, key: str) -> bool:
        """Mark the row with an id as deleted, and return whether a live row existed."""
        row = self.find(key)
        if row is None:
            return False
        if self.live is None:
            self.live = np.ones(len(self.segment), np.uint8)
        self.live[row] = 0
        return True

    def items(self) -> Iterator[Item]:
        """Return the items of the live rows, in row order."""
        return self.segment.all_items(self.live)


@dataclass(frozen=True)
class Snapshot:
    """Snapshot of an index with the learned ``arrays`` of its codec. The parts remain valid even if
    files are removed."""

    manifest: Manifest
    arrays: dict[str, Array]
    parts: list[LiveSegment]
    commit: Commit


def open_current(home: Path, *, scattered: bool = False) -> Snapshot:
    """Open the current commit in ``home``. Raises ManifestError with the name of the file if a file
    is missing, damaged or in another format.

    ``scattered`` tells the operating system to expect random access to the vectors, as in searches,
    instead of sequential access.
    """
    _, commit = commits.read_current(home)
    commits.check(home, commit)
    try:
        arrays = {Path(name).stem: load_array(home / name) for name in commit.inside(commit.codec)}
        parts = open_parts(home, commit, scattered)
        return Snapshot(commit.manifest, arrays, parts, commit)
    except (ValueError, IndexError) as error:
        raise ManifestError(
            f"{home}: damaged, its files do not match each other ({error})",
            DAMAGED,
        ) from error


def open_parts(home: Path, commit: Commit, scattered: bool = False) -> list[LiveSegment]:
    """Open the parts of a commit. Raises ManifestError with the name of the file if a file is
    damaged."""
    parts = []
    for entry in commit.segments:
        segment = load(home / entry.name, commit.manifest, scattered=scattered)
        live = None
        if entry.dead is not None:
            dead = load_array(home / entry.dead)
            if dead.min(initial=0) < 0 or dead.max(initial=0) >= len(segment):
                raise ManifestError(
                    f"{home / entry.dead}: damaged (rows beyond {len(segment)})",
                    DAMAGED,
                )
            live = np.ones(len(segment), np.uint8)
            live[dead] = 0
        parts.append(
            LiveSegment(
                entry.name,
                segment,
                commit.inside(entry.name),
                live,
            ),
        )
    return parts


def masks_of(
    parts: Sequence[LiveSegment],
    modality: Modality | None,
    filters: Sequence[Filter],
) -> list[NDArray[np.uint8] | None]:
    """Return a mask for each part. A mask selects the live rows of this modality that pass all
    filters, and is None if all rows pass."""
    masks = []
    for part in parts:
        segment = part.segment
        marks = [] if part.live is None else [part.live]
        if modality is not None and segment.counts()[modality] < len(segment):
            marks.append((segment.modality == MODALITIES.index(modality)).view(np.uint8))
        for condition in filters:
            # If the items in a segment have no metadata, only != is true.
            passed = np.full(len(segment), condition.op == "!=")
            if condition.ids:
                rows = [row for key in condition.ids if (row := part.find(key)) is not None]
                passed ^= np.isin(np.arange(len(segment)), rows)
            elif segment.words is not None:
                passed = segment.words.passing(condition)
            marks.append(passed.view(np.uint8))
        masks.append(reduce(np.multiply, marks) if marks else None)
    return masks


def read(
    parts: Sequence[LiveSegment],
    numbers: NDArray[np.int32],
    rows: Ints,
    of: Callable[[Segment, Ints], list[T]],
) -> list[T]:
    """Read values with ``of`` from ``rows`` (m,) of the parts with these ``numbers`` (m,), and
    return the values in the same order."""
    if len(parts) == 1:
        return of(parts[0].segment, rows)
    values = np.empty(len(rows), object)
    for number in set(numbers.tolist()):
        mine = numbers == number
        values[mine] = of(parts[number].segment, rows[mine])
    found: list[T] = values.tolist()
    return found


def owner(parts: Sequence[LiveSegment], key: str) -> tuple[LiveSegment, int]:
    """Return the part that contains an id, and the row with the id in this part. Raises KeyError if
    the id is unknown."""
    for part in parts:
        row = part.find(key)
        if row is not None:
            return part, row
    raise KeyError(key)


def locate(parts: Sequence[LiveSegment], ids: Sequence[str]) -> list[Located]:
    """Return the parts that contain some of ``ids``. Raises KeyError if an id is unknown."""
    owners = [owner(parts, key) for key in ids]
    located = []
    for part in parts:
        mine = [(i, row) for i, (each, row) in enumerate(owners) if each is part]
        if mine:
            places, rows = np.array(mine, np.int64).T
            located.append((part, places, rows))
    return located


def list_entries(home: Path, parts: Sequence[LiveSegment]) -> tuple[list[SegmentEntry], Files]:
    """Return the commit entries and files of stored parts, including new tombstone files."""
    entries = []
    files: Files = {}
    for part in parts:
        dead = None
        if part.live is not None:
            dead, entry = commits.keep_dead(
                home,
                np.flatnonzero(part.live == 0).astype(np.int32),
            )
            files |= entry
        entries.append(SegmentEntry(part.name, len(part.segment), dead))
        files |= part.files
    return entries, files
