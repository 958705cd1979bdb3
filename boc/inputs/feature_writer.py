"""Writer of feature files, part by part, so that a killed run can continue."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from boc.atomic_files import check_writable, replacing, sole_writer, sync
from boc.errors import FeatureFileError
from boc.foreign import parse_json
from boc.inputs import stored_terms
from boc.inputs.features import OPTIONAL, FeatureFile, Header
from boc.types import MODALITIES, Batch, Modality, Ragged, RegionBatch

PART = re.compile("[0-9]{12,20}-[0-9]{12,20}[.]h5")


class FeatureWriter:
    """Writes a feature file batch by batch; with the same arguments it continues after a kill.

    ``done`` is the number of items of the source that are safely stored. Parts of a run with other
    arguments (source, encoder or weights) are refused, so two runs never mix. ``arrays`` are those
    of the code of an exported index.
    """

    def __init__(
        self,
        path: Path | str,
        header: Header,
        stamp: str = "",
        arrays: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self.path = Path(path)
        self.header = header
        self._arrays = arrays or {}
        self._stamp = stamp
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: object,
        trace: TracebackType | None,
    ) -> None:
        self._lock.__exit__(None, None, None)

    def append(
        self,
        consumed: int,
        batches: Sequence[Batch | RegionBatch],
        failed: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Store the results of the next ``consumed`` items of the source: batches of either
        modality, and failures."""
        part = self.folder / f"{self.done:012d}-{self.done + consumed:012d}.h5"
        with replacing(part) as temporary:
            _write(temporary, self.header, lambda: batches, failed)
        self.done += consumed

    def finish(self) -> None:
        """Join the parts into the file and remove them."""
        failed: dict[str, str] = {}
        parts = self._parts()
        with replacing(self.path) as temporary:
            _write(
                temporary,
                self.header,
                lambda: self._batches(parts, failed),
                failed.items(),
                self._arrays,
            )
        # What a kill has left goes, too; what somebody else has put there stays.
        for made in (
            *reversed(parts),
            *self.folder.glob(".[0-9h]*.tmp"),
            self.folder / "header.json",
        ):
            made.unlink()
        (self.folder / ".lock").unlink()
        with suppress(OSError):
            self.folder.rmdir()
        sync(self.folder.parent)

    def _batches(
        self,
        parts: Sequence[Path],
        failed: dict[str, str],
    ) -> Iterator[Batch | RegionBatch]:
        """Yield what the parts hold, and put their failures into ``failed``."""
        for part in parts:
            with FeatureFile(part) as file:
                if file.header != self.header:
                    raise FeatureFileError(
                        f"{part} is of another run; delete {self.folder} to start again",
                    )
                failed |= file.failures
                read = file.batch if file.header.kind == "embeddings" else file.region_batch
                for modality in MODALITIES:
                    yield read(modality, 0, file.count(modality))

    def _parts(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("*.h5") if PART.fullmatch(path.name))

    def _read_note(self, note: Path) -> str:
        try:
            text = note.read_text(encoding="utf-8")
            if isinstance(parse_json(text), dict):
                return text
        except ValueError:
            pass
        raise FeatureFileError(f"{note} is damaged; delete {self.folder} to start again")

    def _resume(self) -> int:
        note = self.folder / "header.json"
        entries = self.header.entries() | (
            {"state of the pictures": self._stamp} if self._stamp else {}
        )
        mine = json.dumps(entries, indent=1)
        if note.exists() and (text := self._read_note(note)) != mine:
            theirs = OPTIONAL | parse_json(text)
            all_of_mine = OPTIONAL | entries
            differing = [
                key for key in all_of_mine | theirs if theirs.get(key) != all_of_mine.get(key)
            ]
            raise FeatureFileError(
                f"{self.folder} holds an unfinished run with another {' and '.join(differing)}; "
                "repeat that run to finish it, or delete the folder to start again",
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
                part.unlink()  # after a gap, left by a run that stopped while it removed its parts
        return done


@dataclass
class _BatchArrays:
    """The arrays of a batch by their names in a file: one row per item, several rows per item, and
    words of those."""

    dense: dict[str, NDArray[np.float32]]
    ragged: dict[str, Ragged]
    words: list[list[str]] | None

    @classmethod
    def of(cls, batch: Batch | RegionBatch) -> _BatchArrays:
        content = batch if isinstance(batch, RegionBatch) else batch.embeddings
        sets = [(name, getattr(content, name, None)) for name in ("features", "concepts", "boxes")]
        ragged = {name: rows for name, rows in sets if rows is not None}
        if isinstance(content, RegionBatch):
            return cls({}, ragged, None)
        return cls({"vectors": content.vectors}, ragged, content.words)


@dataclass
class _FileLayout:
    """Sizes of the arrays of one modality: number of items, of ragged rows, and the width of each
    array by name."""

    items: int
    rows: int
    dense: dict[str, int]
    ragged: dict[str, int]
    words: bool
    postings: int
    terms: bool
    scales: bool

    @classmethod
    def of(cls, batch: Batch | RegionBatch) -> _FileLayout:
        arrays = _BatchArrays.of(batch)
        dense = {name: array.shape[1] for name, array in arrays.dense.items()}
        ragged = {name: sets.values.shape[1] for name, sets in arrays.ragged.items()}
        count = len(next(iter(arrays.ragged.values())).values) if ragged else 0
        stored = batch.stored if isinstance(batch, Batch) else None
        postings = 0 if stored is None else stored.terms.nnz
        scales = (
            stored is not None
            and stored.concepts is not None
            and stored.concepts.scales is not None
        )
        return cls(
            len(batch),
            count,
            dense,
            ragged,
            arrays.words is not None,
            postings,
            stored is not None,
            scales,
        )

    def __add__(self, other: _FileLayout) -> _FileLayout:
        if (self.dense, self.ragged, self.words) != (other.dense, other.ragged, other.words):
            raise FeatureFileError(
                f"arrays of width {self.dense | self.ragged} and "
                f"{other.dense | other.ragged} mixed",
            )
        return replace(
            self,
            items=self.items + other.items,
            rows=self.rows + other.rows,
            postings=self.postings + other.postings,
        )


class _Sink:
    """A file for HDF5, which ends the process after a failed write: the first ``error`` is kept,
    the rest dropped."""

    def __init__(self, raw: FileIO) -> None:
        self.error: OSError | None = None
        self.read = raw.read
        self.tell = raw.tell
        self.seek = raw.seek
        self.flush = raw.flush
        self._raw = raw

    def readinto(self, data: memoryview) -> int | None:
        """Read into ``data``. OSError once a write failed: what was dropped cannot be read
        again."""
        if self.error is not None:
            raise self.error
        return self._raw.readinto(data)

    def write(self, data: memoryview) -> int:
        left = memoryview(data).cast("B")
        try:
            while self.error is None and len(left):
                left = left[self._raw.write(left) :]
        except OSError as error:
            self.error = error
        return len(data)

    def truncate(self, size: int) -> int:
        try:
            if self.error is None:
                self._raw.truncate(size)
        except OSError as error:
            self.error = error
        return size


@contextmanager
def _open_sink(raw: FileIO) -> Iterator[_Sink]:
    """Yield a file for HDF5 to write within the block; raise the first error of writing at the end
    of it."""
    file = _Sink(raw)
    try:
        yield file
    finally:
        if file.error is not None:
            raise file.error


def _write(
    path: Path,
    header: Header,
    batches: Callable[[], Iterable[Batch | RegionBatch]],
    failed: Iterable[tuple[str, str]],
    arrays: Mapping[str, NDArray[Any]] | None = None,
) -> None:
    """Two passes over the same batches: for the sizes, so that arrays are contiguous; for
    ``failed`` and the values."""
    layouts: dict[Modality, _FileLayout] = {}
    for batch in batches():
        if batch.items:
            modality = batch.items[0].modality
            layout = _FileLayout.of(batch)
            layouts[modality] = layouts[modality] + layout if modality in layouts else layout
    with (
        path.open("w+b", buffering=0) as raw,
        _open_sink(raw) as sink,
        h5py.File(sink, "w") as file,
    ):
        file.attrs.update(header.entries())
        pairs = np.array(list(failed), dtype=object).reshape(-1, 2)
        file.create_dataset("failed", data=pairs, dtype=h5py.string_dtype())
        stored_terms.write_arrays(file, arrays or {})
        for modality, layout in layouts.items():
            _allocate(file.create_group(modality), layout, header)
        place = dict.fromkeys(layouts, (0, 0))
        for batch in batches():
            if batch.items:
                modality = batch.items[0].modality
                place[modality] = _fill(file[modality], batch, *place[modality])


def _allocate(group: h5py.Group, layout: _FileLayout, header: Header) -> None:
    dtype = header.dtype
    for name in ("ids", "content", "group", *(["fields"] if header.fields else [])):
        group.create_dataset(name, shape=(layout.items,), dtype=h5py.string_dtype())
    group.create_dataset("offsets", data=np.zeros(layout.items + 1, dtype=np.int64))
    for name, width in layout.dense.items():
        group.create_dataset(f"dense/{name}", shape=(layout.items, width), dtype=dtype)
    for name, width in layout.ragged.items():
        # Boxes stay float32: they are small, and their last bits matter for areas.
        group.create_dataset(
            f"ragged/{name}",
            shape=(layout.rows, width),
            dtype="float32" if name == "boxes" else dtype,
        )
    if layout.terms:
        stored_terms.allocate(
            group,
            layout.items,
            layout.postings,
            layout.rows if layout.scales else None,
        )
    if layout.words:
        group.create_dataset("words", shape=(layout.rows,), dtype=h5py.string_dtype())


def _fill(group: h5py.Group, batch: Batch | RegionBatch, item: int, row: int) -> tuple[int, int]:
    """Store ``batch`` from item ``item`` and ragged row ``row`` on; return the numbers after
    them."""
    arrays = _BatchArrays.of(batch)
    end = item + len(batch)
    group["ids"][item:end] = np.array([i.id for i in batch.items], dtype=object)
    group["content"][item:end] = np.array([i.content for i in batch.items], dtype=object)
    group["group"][item:end] = np.array([i.group for i in batch.items], dtype=object)
    if "fields" in group:
        group["fields"][item:end] = np.array(
            [json.dumps(dict(i.fields)) for i in batch.items],
            dtype=object,
        )
    for name, array in arrays.dense.items():
        group[f"dense/{name}"][item:end] = array
    if isinstance(batch, Batch) and batch.stored is not None:
        concepts = batch.stored.concepts
        stored_terms.fill(
            group,
            batch.stored.terms,
            None if concepts is None else concepts.scales,
            item,
            row,
        )
    last = row
    for name, sets in arrays.ragged.items():
        last = row + len(sets.values)
        group[f"ragged/{name}"][row:last] = sets.values
        group["offsets"][item + 1 : end + 1] = sets.offsets[1:] + row
    if arrays.words is not None:
        group["words"][row:last] = np.array(
            [word for words in arrays.words for word in words],
            dtype=object,
        )
    return end, last
