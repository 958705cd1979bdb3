"""Read HDF5 feature files, which contain items of both modalities and their arrays.

A killed writer can be resumed. Until a file is complete, its batches are small files in a folder
beside it (``FILE.parts/``), and each is renamed into place once it is complete. HDF5 itself cannot
be resumed, because a file may be unreadable after its writer is killed. The folder shows the
progress; ``FILE`` appears once it is complete. A file and its parts have the same layout::

    /            attributes: format, kind ("regions" or "embeddings"), spec, digest, dim, dtype,
                 source; precision if it is not float32, shard if the source is a part, fields if
                 items have metadata
    /failed      pairs (id, reason) of items that could not be used
    /image, /text
        ids, content, group     UTF-8 strings, one per item
        dense/NAME              (n, d), contiguous
        ragged/NAME             (N, d), contiguous rows of all items; offsets (n + 1,) int64
                                separates them
        words                   (N,) strings: the word piece of each ragged row, in embeddings of
                                sentences
        fields                  one string per item, if the header has fields: JSON of its metadata
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
from numpy.typing import NDArray

from boc.atomic_files import json_sha256
from boc.errors import FeatureFileError
from boc.foreign import parse_json
from boc.inputs.hdf5_check import (
    FORMAT as FORMAT,
    OPTIONAL as OPTIONAL,
    Header as Header,
    check_values,
    open_checked,
    reporting_damage,
)
from boc.inputs.metadata import well_typed
from boc.types import MODALITIES, Batch, Embeddings, Identity, Item, Modality, Ragged, RegionBatch
from boc.vectors import Floats, Ints

LazyBatch: TypeAlias = tuple[int, Callable[[], list[str]], Callable[[], Batch]]
"""The number of items in a batch, a function that reads their ids, and a function that reads the
batch."""

SUFFIXES = frozenset({".h5", ".hdf5"})
"""Suffixes of feature files."""

BLOCK = 1 << 14  # rows of an array per read
SAMPLED = 1 << 12  # rows of a sample per read


class FeatureFile:
    """Complete feature file that is open for reading. Arrays are read batch by batch.

    Raises FeatureFileError if the file is missing, damaged, not a feature file, or written by a
    newer version of boc.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file, self.header = open_checked(self.path)

    def __enter__(self) -> FeatureFile:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def check_embeddings(self) -> None:
        """Raise FeatureFileError for a region file."""
        if self.header.kind != "embeddings":
            raise FeatureFileError(
                f"{self.path}: contains regions, not vectors",
                "encode the regions first, with <boc extract --encoder>",
            )

    def count(self, modality: Modality) -> int:
        """Return the number of items of one modality."""
        return len(self._file[modality]["ids"]) if modality in self._file else 0

    @property
    def failures(self) -> list[tuple[str, str]]:
        """An (id, reason) pair for each source item that could not be used."""
        with reporting_damage(self.path):
            pairs = self._file["failed"].asstr()[:].reshape(-1, 2)
            return [(str(key), str(reason)) for key, reason in pairs]

    def _strings(
        self,
        modality: Modality,
        name: str,
        start: int,
        stop: int | None,
    ) -> list[str]:
        if not self.count(modality):
            return []
        with reporting_damage(self.path):
            strings: list[str] = self._file[modality][name].asstr()[start:stop].tolist()
            return strings

    def ids(self, modality: Modality, start: int = 0, stop: int | None = None) -> list[str]:
        """Return the ids of items ``start`` to ``stop`` of one modality."""
        return self._strings(modality, "ids", start, stop)

    def items(self, modality: Modality, start: int = 0, stop: int | None = None) -> list[Item]:
        """Return items ``start`` to ``stop`` of one modality, in the order of the source."""
        ids, content, groups = (
            self._strings(modality, name, start, stop) for name in ("ids", "content", "group")
        )
        fields: list[Any] = [{} for _ in ids]
        if self.header.fields:
            types = self.header.types
            with reporting_damage(self.path):
                fields = list(map(parse_json, self._strings(modality, "fields", start, stop)))
            if not all(well_typed(each, types) for each in fields):
                raise FeatureFileError(
                    f"{self.path}: {modality}/fields does not match the types in the header; "
                    "recreate the file",
                )
        return list(map(Item, ids, repeat(modality), content, groups, fields))

    def batch(self, modality: Modality, start: int, stop: int, *, sets: bool = True) -> Batch:
        """Return items ``start`` to ``stop`` with their embeddings as float32; without ``sets``,
        only with their vectors.

        Raises FeatureFileError for a region file.
        """
        self.check_embeddings()
        items = self.items(modality, start, stop)
        if not items:
            return Batch(items, Embeddings(modality, np.empty((0, self.header.dim), np.float32)))
        end = start + len(items)
        vectors = self._single(self._file[modality]["dense/vectors"], start, end)
        if not sets:
            return Batch(items, Embeddings(modality, vectors))
        ragged, words = self._sets(modality, start, end)
        return Batch(
            items,
            Embeddings(modality, vectors, ragged.get("concepts"), ragged.get("boxes"), words),
        )

    def region_batch(self, modality: Modality, start: int, stop: int) -> RegionBatch:
        """Return items ``start`` to ``stop`` of a region file, with float32 arrays."""
        items = self.items(modality, start, stop)
        if not items:
            return RegionBatch(items)
        ragged, _ = self._sets(modality, start, start + len(items))
        return RegionBatch(items, ragged.get("features"), ragged.get("boxes"))

    def ragged_arrays(self, modality: Modality) -> set[str]:
        """Return the names of the arrays that have several rows per item: concepts, features,
        boxes."""
        return set(self._file[modality].get("ragged", {})) if modality in self._file else set()

    def _sets(
        self,
        modality: Modality,
        start: int,
        end: int,
    ) -> tuple[dict[str, Ragged], list[list[str]] | None]:
        """Return the arrays that have several rows per item, by name, and the word for each row."""
        group = self._file[modality]
        offsets = group["offsets"][start : end + 1]
        low = offsets[0]
        high = offsets[-1]
        ragged = {
            name: Ragged(self._single(data, low, high), offsets - low)
            for name, data in group.get("ragged", {}).items()
        }
        if "words" not in group:
            return ragged, None
        with reporting_damage(self.path):
            flat = group["words"].asstr()[low:high].tolist()
        return ragged, [flat[a:b] for a, b in pairwise((offsets - low).tolist())]

    def memory_map(self, modality: Modality, name: str) -> NDArray[Any]:
        """Return the array ``dense/NAME``, ``ragged/NAME`` or ``offsets`` as a read-only memory map
        of the file."""
        data = self._file[modality][name]
        if data.size == 0:
            return np.empty(data.shape, data.dtype)
        return np.memmap(self.path, data.dtype, "r", data.id.get_offset(), data.shape)

    def batches(
        self,
        modality: Modality,
        size: int = 1024,
        *,
        sets: bool = True,
    ) -> Iterator[Batch]:
        """Return an iterator over all items of one modality with their embeddings, in batches of
        ``size`` items."""
        return (read() for *_, read in self.lazy_batches(modality, size, sets=sets))

    def lazy_batches(self, modality: Modality, size: int, *, sets: bool) -> Iterator[LazyBatch]:
        """Yield the same batches as ``batches``, but without reading them yet."""
        count = self.count(modality)
        for start in range(0, count, size):
            stop = min(start + size, count)
            ids = partial(self.ids, modality, start, stop)
            yield stop - start, ids, partial(self.batch, modality, start, stop, sets=sets)

    def vectors(self, modality: Modality) -> Floats:
        """Return all global vectors of one modality as float32 (n, d). They need 4 d bytes of
        memory per item."""
        if not self.count(modality):
            return np.empty((0, self.header.dim), np.float32)
        return self._single(self._file[modality]["dense/vectors"], 0, None)

    def contents(self, *, sets: bool) -> str:
        """Return a SHA-256 digest of the vectors of all items; with ``sets``, also of their other
        arrays."""
        digest = hashlib.sha256()
        for modality in MODALITIES:
            arrays = ["dense/vectors"]
            if sets:
                arrays.append("offsets")
                arrays += [f"ragged/{name}" for name in sorted(self.ragged_arrays(modality))]
            for name in arrays if self.count(modality) else ():
                for start in range(0, len(self._file[modality][name]), BLOCK):
                    # A new memory map for each block lets the process release pages that it has
                    # read.
                    block = self.memory_map(modality, name)[start : start + BLOCK]
                    digest.update(np.ascontiguousarray(block).data)
                    del block
        return digest.hexdigest()

    def sample(self, modality: Modality, rows: Ints) -> Iterator[Floats]:
        """Yield the global vectors of the items with the numbers ``rows`` (ascending) in blocks,
        float32 (n, d)."""
        for start in range(0, len(rows), SAMPLED):
            chosen = self.memory_map(modality, "dense/vectors")[rows[start : start + SAMPLED]]
            vectors: Floats = chosen.astype(np.float32)
            check_values(self.path, vectors)
            yield vectors

    def _single(self, data: h5py.Dataset, start: int, stop: int | None) -> Floats:
        """Return rows of an array as float32. Raises FeatureFileError if a number is infinite or
        NaN."""
        with reporting_damage(self.path):
            values: Floats = data[start:stop].astype(np.float32)
        check_values(self.path, values)
        return values


def is_feature_file(path: Path) -> bool:
    """Return whether ``path`` is a readable feature file."""
    try:
        FeatureFile(path).close()
    except FeatureFileError:
        return False
    return True


def is_embeddings(path: Path) -> bool:
    """Return whether a feature file contains embeddings rather than regions."""
    with FeatureFile(path) as file:
        return file.header.kind == "embeddings"


class FeatureFiles:
    """Several feature files from the same encoder, read as a single file. The order of the
    arguments does not matter.

    Raises FeatureFileError if the files do not belong together, or if two files contain the same
    item. After an error, all files are closed.
    """

    def __init__(self, paths: Sequence[Path | str]) -> None:
        with ExitStack() as stack:
            files = [stack.enter_context(FeatureFile(path)) for path in paths]
            self.files = sorted(files, key=lambda file: file.header.source)
            self._check_alike()
            # An item must not be in two files.
            place: dict[str, FeatureFile] = {}
            for file in self.files if len(files) > 1 else ():
                ids = [key for modality in MODALITIES for key in file.ids(modality)]
                for key in ids:
                    if key in place:
                        raise FeatureFileError(
                            f"{file.path} and {place[key].path} both contain {key!r}; omit one "
                            "of the files, or extract distinct shards",
                        )
                place.update(dict.fromkeys(ids, file))
            self._stack = stack.pop_all()
        self.path = self.files[0].path

    def _check_alike(self) -> None:
        first = self.files[0]
        types = {**first.header.types}
        arrays: dict[Modality, tuple[FeatureFile, set[str]]] = {}
        for file in self.files:
            pairs = [
                (name, getattr(first.header, name), getattr(file.header, name))
                for name in ("kind", "digest", "dim", "dtype", "precision")
            ]
            for name, kind in file.header.types.items():
                pairs.append((f"type of {name}", types.setdefault(name, kind), kind))
            for name, one, other in pairs:
                if one != other:
                    raise FeatureFileError(
                        f"{file.path} and {first.path} do not belong together: their {name} is "
                        f"{other} and {one}; use files from the same encoder with the same options",
                    )
            for modality in MODALITIES:
                names = file.ragged_arrays(modality)
                if file.count(modality) and arrays.setdefault(modality, (file, names))[1] != names:
                    raise FeatureFileError(
                        f"{file.path} and {arrays[modality][0].path} do not belong together: only "
                        "one of them contains concept sets",
                        "create both with <boc extract --set concepts=false>, or neither",
                    )

    def __enter__(self) -> FeatureFiles:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    @property
    def header(self) -> Header:
        """Return the header of a single file, or a combined header for several files."""
        first = self.files[0].header
        if len(self.files) == 1:
            return first
        source = json_sha256([file.header.source for file in self.files])
        types = {name: kind for file in self.files for name, kind in file.header.types.items()}
        fields = json.dumps(types) if types else ""
        return replace(first, source=source, fields=fields, shard="")

    @property
    def failures(self) -> list[tuple[str, str]]:
        """An (id, reason) pair for each item that could not be used."""
        return [pair for file in self.files for pair in file.failures]

    def count(self, modality: Modality) -> int:
        """Return the number of items of one modality."""
        return sum(file.count(modality) for file in self.files)

    def items(self, modality: Modality) -> Iterator[Item]:
        """Yield the items of one modality, read in blocks."""
        for file in self.files:
            for start in range(0, file.count(modality), BLOCK):
                yield from file.items(modality, start, start + BLOCK)

    def lazy_batches(self, modality: Modality, size: int, *, sets: bool) -> Iterator[LazyBatch]:
        """Yield lazy batches of all items of one modality. A batch contains at most ``size`` items,
        all from the same file."""
        for file in self.files:
            yield from file.lazy_batches(modality, size, sets=sets)

    def contents(self, *, sets: bool) -> str:
        """Return a SHA-256 digest of the vectors of all items; with ``sets``, also of their other
        arrays."""
        return json_sha256([file.contents(sets=sets) for file in self.files])

    def sample(self, modality: Modality, rows: Ints) -> Iterator[Floats]:
        """Yield the global vectors of the items with the numbers ``rows`` (ascending) in blocks,
        float32 (n, d)."""
        before = 0
        for file in self.files:
            first, last = np.searchsorted(rows, (before, before + file.count(modality)))
            yield from file.sample(modality, rows[first:last] - before)
            before += file.count(modality)


def read_queries(path: Path, identity: Identity) -> Iterator[tuple[list[Item], Embeddings]]:
    """Yield the items of a file as queries, in batches. Raises FeatureFileError if the file
    contains no items or comes from another encoder."""
    with FeatureFile(path) as file:
        file.check_embeddings()
        if file.header.digest != identity.digest:
            raise FeatureFileError(
                f"{path}: created with {file.header.spec}, but the index with {identity.spec}; use "
                "the same encoder",
            )
        if not any(map(file.count, MODALITIES)):
            raise FeatureFileError(f"{path}: contains no items")
        for modality in MODALITIES:
            for batch in file.batches(modality, 256):
                yield batch.items, batch.embeddings
