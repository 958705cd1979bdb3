"""Write feature files part by part, so that a killed run can be resumed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from boc.atomic_files import check_writable, replacing, sole_writer, sync, write_text
from boc.errors import FeatureFileError
from boc.foreign import parse_json
from boc.inputs.features import OPTIONAL, FeatureFile, Header
from boc.types import MODALITIES, Batch, Modality, RegionBatch
from boc.vectors import Floats, Ints


class FeatureWriter:
    """Write a feature file batch by batch. If a writer is killed, a new writer with the same
    arguments resumes its work.

    ``done`` is the number of source items that are safely stored. Parts from a run with other
    arguments (source, encoder or weights) are rejected, so that the results of two runs are never
    mixed.
    """

    def __init__(self, path: Path | str, header: Header, stamp: str = "") -> None:
        self.path = Path(path)
        self.header = header
        self._stamp = stamp
        self.folder = self.path.with_name(f"{self.path.name}.parts")
        check_writable(self.path)
        with ExitStack() as held:
            held.enter_context(sole_writer(self.folder))
            self.done = self._resume()
            self._held = held.pop_all()

    def __enter__(self) -> FeatureWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        self._held.close()

    def append(
        self,
        consumed: int,
        batches: Sequence[Batch | RegionBatch],
        failed: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Store the results for the next ``consumed`` items of the source: batches of either
        modality, and failures."""
        part = self.folder / f"{self.done:012d}-{self.done + consumed:012d}.h5"
        with replacing(part) as temporary:
            _write(temporary, self.header, lambda: batches, failed)
        self.done += consumed

    def finish(self) -> None:
        """Join the parts into the final file, and remove the parts."""
        failed: dict[str, str] = {}
        parts = self._parts()
        with replacing(self.path) as temporary:
            _write(temporary, self.header, lambda: self._batches(parts, failed), failed.items())
        # Also remove the files of a killed run, but keep the files of other programs.
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
        """Yield the batches in all parts, and add the failures in the parts to ``failed``."""
        for part in parts:
            with FeatureFile(part) as file:
                if file.header != self.header:
                    raise FeatureFileError(
                        f"{part} belongs to another run; delete {self.folder} to start over",
                    )
                failed |= file.failures
                read = file.batch if file.header.kind == "embeddings" else file.region_batch
                for modality in MODALITIES:
                    yield read(modality, 0, file.count(modality))

    def _parts(self) -> list[Path]:
        name = "[0-9]{12,20}-[0-9]{12,20}[.]h5"
        return sorted(path for path in self.folder.iterdir() if re.fullmatch(name, path.name))

    def _resume(self) -> int:
        """Check that the note of an earlier run matches this run, or write a new note. Return the
        number of finished items."""
        note = self.folder / "header.json"
        mine = self.header.entries()
        if self._stamp:
            mine["state of the pictures"] = self._stamp
        text = json.dumps(mine, indent=1)
        if not note.exists():
            write_text(note, text)
        elif (earlier := note.read_bytes()) != text.encode():
            try:
                theirs = OPTIONAL | parse_json(earlier)
            except (ValueError, TypeError):
                raise FeatureFileError(
                    f"{note} is damaged; delete {self.folder} to start over",
                ) from None
            ours = OPTIONAL | mine
            differing = [key for key in ours | theirs if theirs.get(key) != ours.get(key)]
            raise FeatureFileError(
                f"{self.folder} contains an unfinished run with a different "
                f"{' and '.join(differing)}; run the same command again to finish it, or delete "
                "the folder to start over",
            )
        done = 0
        for part in self._parts():
            start, stop = map(int, part.stem.split("-"))
            if start == done:
                done = stop
            else:
                # There is a gap before this part, because a run stopped while it was removing its
                # parts.
                part.unlink()
        return done


@dataclass
class _Columns:
    """Columns of a batch by their names in the file. ``items`` have one entry per item, and
    ``rows`` have one entry per row of a set; ``offsets`` separate the sets."""

    items: dict[str, list[str] | Floats]
    rows: dict[str, list[str] | Floats]
    offsets: Ints

    @classmethod
    def of(cls, batch: Batch | RegionBatch, header: Header) -> _Columns:
        columns = cls(
            {
                "ids": [item.id for item in batch.items],
                "content": [item.content for item in batch.items],
                "group": [item.group for item in batch.items],
            },
            {},
            np.zeros(len(batch) + 1, np.int64),
        )
        if header.fields:
            columns.items["fields"] = [json.dumps(dict(item.fields)) for item in batch.items]
        words = None
        if isinstance(batch, RegionBatch):
            sets = {"features": batch.features, "boxes": batch.boxes}
        else:
            columns.items["dense/vectors"] = batch.embeddings.vectors
            sets = {"concepts": batch.embeddings.concepts, "boxes": batch.embeddings.boxes}
            words = batch.embeddings.words
        for name, ragged in sets.items():
            if ragged is not None:
                columns.rows[f"ragged/{name}"] = ragged.values
                columns.offsets = ragged.offsets
        if words is not None:
            columns.rows["words"] = [word for each in words for word in each]
        return columns

    def widths(self) -> dict[str, int | None]:
        """Return the width of each array by name, or None for strings."""
        return {
            name: None if isinstance(each, list) else each.shape[1]
            for name, each in (self.items | self.rows).items()
        }


class _Sink:
    """File object for HDF5, which would end the process after a failed write. This object therefore
    keeps the first ``error`` and ignores later writes."""

    def __init__(self, raw: FileIO) -> None:
        self.error: OSError | None = None
        self.read = raw.read
        self.tell = raw.tell
        self.seek = raw.seek
        self.flush = raw.flush
        self._raw = raw

    def __enter__(self) -> _Sink:
        return self

    def __exit__(self, *error: object) -> None:
        """Raise the first write error, if there was one."""
        if self.error is not None:
            raise self.error

    def readinto(self, data: memoryview) -> int | None:
        """Read into ``data``. Raises OSError after a failed write, because ignored bytes cannot be
        read back."""
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


def _write(
    path: Path,
    header: Header,
    batches: Callable[[], Iterable[Batch | RegionBatch]],
    failed: Iterable[tuple[str, str]],
) -> None:
    """Write a file in two passes over the same batches. The first pass determines the sizes, so
    that arrays can be contiguous; the second pass writes the values and ``failed``."""
    widths: dict[Modality, dict[str, int | None]] = {}
    ends: dict[Modality, tuple[int, int]] = {}
    for batch in batches():
        if batch.items:
            columns = _Columns.of(batch, header)
            modality = batch.items[0].modality
            own = columns.widths()
            item, row = ends.get(modality, (0, 0))
            ends[modality] = (item + len(batch), row + int(columns.offsets[-1]))
            if widths.setdefault(modality, own) != own:
                raise FeatureFileError(f"cannot mix arrays of width {widths[modality]} and {own}")
    with (
        path.open("w+b", buffering=0) as raw,
        _Sink(raw) as sink,
        h5py.File(sink, "w") as file,
    ):
        file.attrs.update(header.entries())
        pairs = np.array(list(failed), dtype=object).reshape(-1, 2)
        file.create_dataset("failed", data=pairs, dtype=h5py.string_dtype())
        for modality, (items, rows) in ends.items():
            group = file.create_group(modality)
            group.create_dataset("offsets", data=np.zeros(items + 1, dtype=np.int64))
            for name, width in widths[modality].items():
                length = rows if name == "words" or name.startswith("ragged/") else items
                if width is None:
                    group.create_dataset(name, shape=(length,), dtype=h5py.string_dtype())
                else:
                    # Boxes stay float32, because they are small and their last bits matter for
                    # areas.
                    dtype = "float32" if name == "ragged/boxes" else header.dtype
                    group.create_dataset(name, shape=(length, width), dtype=dtype)
        begins = dict.fromkeys(ends, (0, 0))
        for batch in batches():
            if batch.items:
                columns = _Columns.of(batch, header)
                modality = batch.items[0].modality
                item, row = begins[modality]
                begins[modality] = (item + len(batch), row + int(columns.offsets[-1]))
                _fill(file[modality], columns.items, item)
                _fill(file[modality], columns.rows, row)
                _fill(file[modality], {"offsets": columns.offsets[1:] + row}, item + 1)


def _fill(group: h5py.Group, columns: Mapping[str, Any], start: int) -> None:
    for name, values in columns.items():
        if isinstance(values, list):
            values = np.array(values, dtype=object)
        group[name][start : start + len(values)] = values
