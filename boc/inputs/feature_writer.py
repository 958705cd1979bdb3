"""Writes feature files, part by part, so that a run that was killed goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

import h5py
import numpy as np

from boc.atomic_files import check_writable, replacing, sole_writer, sync
from boc.errors import FeatureFileError
from boc.inputs.features import OPTIONAL, FeatureFile, Header
from boc.types import MODALITIES, Modality, Rows


class FeatureWriter:
    """Writes a feature file batch by batch; made again with the same arguments after a kill, it goes on.

    ``done`` counts the items of the source that are safely stored. Parts left by other arguments (another source,
    encoder or weights) are refused, so two runs never mix.
    """

    def __init__(self, path: Path | str, header: Header) -> None:
        self.path = Path(path)
        self.header = header
        self.folder = self.path.with_name(f"{self.path.name}.parts")
        check_writable(self.path)
        self._lock = sole_writer(self.folder)
        self._lock.__enter__()
        try:
            self.done = self._resume()
        except FeatureFileError:
            self._lock.__exit__(None, None, None)
            raise

    def __enter__(self) -> FeatureWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._lock.__exit__(None, None, None)

    def append(self, consumed: int, batches: Sequence[Rows], failed: Sequence[tuple[str, str]] = ()) -> None:
        """Store the outcome of the next ``consumed`` items of the source: rows of either modality, and failures."""
        part = self.folder / f"{self.done:012d}-{self.done + consumed:012d}.h5"
        with replacing(part) as temporary:
            _write(temporary, self.header, lambda: batches, failed)
        self.done += consumed

    def finish(self) -> None:
        """Join the parts into the file and remove them."""
        failed: list[tuple[str, str]] = []
        parts = self._parts()
        for part in parts:
            with FeatureFile(part) as file:
                failed += file.failed
        with replacing(self.path) as temporary:
            _write(temporary, self.header, lambda: _part_rows(parts), failed)
        for part in reversed(parts):
            part.unlink()
        shutil.rmtree(self.folder)
        sync(self.folder.parent)

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9]*-[0-9]*.h5"))

    def _resume(self) -> int:
        note = self.folder / "header.json"
        mine = json.dumps(self.header.entries(), indent=1)
        if note.exists() and note.read_text(encoding="utf-8") != mine:
            theirs = OPTIONAL | json.loads(note.read_text(encoding="utf-8"))
            differing = [key for key, value in asdict(self.header).items() if theirs.get(key) != value]
            raise FeatureFileError(
                f"{self.folder} holds an unfinished run with another {' and '.join(differing)}; "
                "repeat that run to finish it, or delete the folder to start anew"
            )
        if not note.exists():
            with replacing(note) as temporary:
                temporary.write_text(mine, encoding="utf-8")
        done = 0
        for part in self._parts():
            start, stop = map(int, part.stem.split("-"))
            if start == done:
                done = stop
            else:
                part.unlink()  # behind a gap, where a run was stopped while it removed its parts
        return done


@dataclass
class _Layout:
    """Sizes of the arrays of one modality: number of items, of ragged rows, and the width of each array by name."""

    items: int
    rows: int
    dense: dict[str, int]
    ragged: dict[str, int]
    words: bool

    @classmethod
    def of(cls, rows: Rows) -> _Layout:
        dense = {name: array.shape[1] for name, array in rows.dense.items()}
        ragged = {name: sets.values.shape[1] for name, sets in rows.ragged.items()}
        count = len(next(iter(rows.ragged.values())).values) if ragged else 0
        return cls(len(rows.items), count, dense, ragged, rows.words is not None)

    def __add__(self, other: _Layout) -> _Layout:
        if (self.dense, self.ragged, self.words) != (other.dense, other.ragged, other.words):
            raise FeatureFileError(
                f"arrays of widths {self.dense | self.ragged} and {other.dense | other.ragged} mixed"
            )
        return _Layout(self.items + other.items, self.rows + other.rows, self.dense, self.ragged, self.words)


def _part_rows(parts: Sequence[Path]) -> Iterator[Rows]:
    for part in parts:
        with FeatureFile(part) as file:
            for modality in MODALITIES:
                yield from file.batches(modality, 1 << 30)


def _write(
    path: Path, header: Header, batches: Callable[[], Iterable[Rows]], failed: Sequence[tuple[str, str]]
) -> None:
    """Two passes over the same batches: one for the sizes, so that arrays are contiguous, one for the values."""
    layouts: dict[Modality, _Layout] = {}
    for rows in batches():
        if rows.items:
            modality, layout = rows.items[0].modality, _Layout.of(rows)
            layouts[modality] = layouts[modality] + layout if modality in layouts else layout
    with h5py.File(path, "w") as file:
        file.attrs.update(header.entries())
        pairs = np.array(failed, dtype=object).reshape(-1, 2)
        file.create_dataset("failed", data=pairs, dtype=h5py.string_dtype())
        for modality, layout in layouts.items():
            _allocate(file.create_group(modality), layout, header.dtype)
        place = dict.fromkeys(layouts, (0, 0))
        for rows in batches():
            if rows.items:
                modality = rows.items[0].modality
                place[modality] = _fill(file[modality], rows, *place[modality])


def _allocate(group: h5py.Group, layout: _Layout, dtype: str) -> None:
    for name in ("ids", "content", "group"):
        group.create_dataset(name, shape=(layout.items,), dtype=h5py.string_dtype())
    group.create_dataset("offsets", data=np.zeros(layout.items + 1, dtype=np.int64))
    for name, width in layout.dense.items():
        group.create_dataset(f"dense/{name}", shape=(layout.items, width), dtype=dtype)
    for name, width in layout.ragged.items():
        # Boxes are small, and their last bits decide areas.
        group.create_dataset(
            f"ragged/{name}", shape=(layout.rows, width), dtype="float32" if name == "boxes" else dtype
        )
    if layout.words:
        group.create_dataset("words", shape=(layout.rows,), dtype=h5py.string_dtype())


def _fill(group: h5py.Group, rows: Rows, item: int, row: int) -> tuple[int, int]:
    """Store ``rows`` from item number ``item`` and ragged row ``row`` on; the numbers behind them."""
    end = item + len(rows.items)
    group["ids"][item:end] = np.array([i.id for i in rows.items], dtype=object)
    group["content"][item:end] = np.array([i.content for i in rows.items], dtype=object)
    group["group"][item:end] = np.array([i.group for i in rows.items], dtype=object)
    for name, array in rows.dense.items():
        group[f"dense/{name}"][item:end] = array
    last = row
    for name, sets in rows.ragged.items():
        last = row + len(sets.values)
        group[f"ragged/{name}"][row:last] = sets.values
        group["offsets"][item + 1 : end + 1] = sets.offsets[1:] + row
    if rows.words is not None:
        group["words"][row:last] = np.array([word for words in rows.words for word in words], dtype=object)
    return end, last
