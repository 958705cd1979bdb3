"""HDF5 feature files: items of both modalities with their arrays, written in batches, resumable after a kill.

While a file is written, its batches stand as small files in a folder beside it (``FILE.parts/``), each renamed into
place whole. HDF5 itself gives no such promise: killed in mid-write it can be left unreadable. The folder is what says
how much is done; ``FILE`` appears, complete, when all is. The layout of a file and of a part is the same::

    /            attributes: format, kind ("regions" or "embeddings"), spec, digest, dim, dtype, source; precision and
                 shard where they are not float32 and the whole
    /failed      pairs (id, reason) of items that could not be used
    /image, /text
        ids, content, group     UTF-8 strings, one an item
        dense/NAME              (n, d), contiguous
        ragged/NAME             (N, d), contiguous rows of all items; offsets (n + 1,) int64 tells them apart
        words                   (N,) strings: the word-piece of each ragged row, in embeddings of sentences
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from boc.errors import FeatureFileError
from boc.instances import instances
from boc.types import MODALITIES, Embeddings, Identity, Item, Modality, Ragged, Regions, Rows

FORMAT = 1
KINDS = ("regions", "embeddings")
OPTIONAL = {"precision": "float32", "shard": ""}  # entries of a header that may be missing


@dataclass(frozen=True)
class Header:
    """What a feature file says of itself.

    ``source`` is the digest of the list of items it was made from, ``shard`` which part of a greater list that is;
    ``precision`` is that of the encoder's matrix products, which its vectors tell no more.
    """

    kind: Literal["regions", "embeddings"]
    spec: str
    digest: str
    dim: int
    dtype: str
    source: str
    format: int = FORMAT
    precision: str = "float32"
    shard: str = ""

    @property
    def identity(self) -> Identity:
        return Identity(self.spec, self.digest, self.dim)

    def entries(self) -> dict[str, Any]:
        """What is written: all entries but those that a reader may take for granted."""
        return {key: value for key, value in asdict(self).items() if key not in OPTIONAL or value != OPTIONAL[key]}


class FeatureFile:
    """A complete feature file, opened for reading. Arrays are read a batch at a time.

    Raises FeatureFileError, naming the file, for a missing, foreign, damaged or newer file.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            self._file = h5py.File(self.path, "r")
        except FileNotFoundError:
            raise FeatureFileError(f"{self.path}: {_absent(self.path)}") from None
        except OSError as error:
            raise FeatureFileError(f"{self.path}: not a readable HDF5 file; make it with boc extract") from error
        try:
            self.header = _read_header(self.path, self._file.attrs)
        except FeatureFileError:
            self._file.close()
            raise

    def __enter__(self) -> FeatureFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def count(self, modality: Modality) -> int:
        """Number of items of one modality."""
        return len(self._file[modality]["ids"]) if modality in self._file else 0

    @property
    def failed(self) -> list[tuple[str, str]]:
        """(id, reason) of the items of the source that could not be used."""
        return [(str(key), str(reason)) for key, reason in self._file["failed"].asstr()[:].reshape(-1, 2)]

    def ids(self, modality: Modality) -> list[str]:
        """Ids of all items of one modality."""
        return self._file[modality]["ids"].asstr()[:].tolist() if self.count(modality) else []

    def items(self, modality: Modality, start: int = 0, stop: int | None = None) -> list[Item]:
        """Items ``start`` to ``stop`` in the order of the source."""
        if modality not in self._file:
            return []
        group = self._file[modality]
        ids, content, groups = (group[name].asstr()[start:stop].tolist() for name in ("ids", "content", "group"))
        return instances(Item, ids, [modality] * len(ids), content, groups, [{} for _ in ids])

    def rows(self, modality: Modality, start: int, stop: int, *, sets: bool = True) -> Rows:
        """Items ``start`` to ``stop`` with all their arrays, as float32; without ``sets``, with the dense ones only."""
        items = self.items(modality, start, stop)
        if not items:
            return Rows(items)
        group = self._file[modality]
        end = start + len(items)
        dense = {name: _single(data, start, end) for name, data in group.get("dense", {}).items()}
        if not sets:
            return Rows(items, dense)
        offsets = group["offsets"][start : end + 1]
        low, high = offsets[0], offsets[-1]
        ragged = {
            name: Ragged(_single(data, low, high), offsets - low) for name, data in group.get("ragged", {}).items()
        }
        words = None
        if "words" in group:
            flat = group["words"].asstr()[low:high].tolist()
            words = [flat[a:b] for a, b in pairwise((offsets - low).tolist())]
        return Rows(items, dense, ragged, words)

    def mapped(self, modality: Modality, name: str) -> NDArray[Any]:
        """The array ``dense/NAME`` or ``ragged/NAME`` as it lies in the file, memory-mapped, read-only."""
        data = self._file[modality][name]
        if data.size == 0:
            return np.empty(data.shape, data.dtype)
        return np.memmap(self.path, data.dtype, "r", data.id.get_offset(), data.shape)

    def offsets(self, modality: Modality) -> NDArray[np.int64]:
        """Where each item's ragged rows begin, int64 (n + 1,)."""
        found: NDArray[np.int64] = self._file[modality]["offsets"][:]
        return found

    def batches(self, modality: Modality, size: int = 1024, *, sets: bool = True) -> Iterator[Rows]:
        """All rows of one modality, ``size`` items at a time."""
        for start in range(0, self.count(modality), size):
            yield self.rows(modality, start, start + size, sets=sets)

    def vectors(self, modality: Modality) -> NDArray[np.float32]:
        """All global vectors of one modality, float32 (n, d): 4 d bytes an item in memory."""
        if not self.count(modality):
            return np.empty((0, self.header.dim), np.float32)
        data: NDArray[np.float32] = self._file[modality]["dense/vectors"][:].astype(np.float32)
        return data

    def sample(self, modality: Modality, step: int, first: int = 0) -> NDArray[np.float32]:
        """Global vectors number ``first``, ``first + step``, ... of one modality, float32 (n, d)."""
        if not self.count(modality):
            return np.empty((0, self.header.dim), np.float32)
        return self.mapped(modality, "dense/vectors")[first::step].astype(np.float32)


class FeatureFiles:
    """Several feature files of one encoder, such as the shards of a source, read as one: one file behind the other, in
    the same order however they are given.

    FeatureFileError if they do not belong together or an item stands in two of them; then none stays open.
    """

    def __init__(self, paths: Sequence[Path | str]) -> None:
        with ExitStack() as stack:
            files = [stack.enter_context(FeatureFile(path)) for path in paths]
            self.files = sorted(files, key=lambda file: file.header.source)
            _check_alike(self.files)
            _check_distinct(self.files)
            self._stack = stack.pop_all()
        self.path = self.files[0].path

    def __enter__(self) -> FeatureFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._stack.close()

    @property
    def header(self) -> Header:
        """That of the one file, or of all as one."""
        first = self.files[0].header
        if len(self.files) == 1:
            return first
        sources = json.dumps([file.header.source for file in self.files])
        return replace(first, source=hashlib.sha256(sources.encode()).hexdigest(), shard="")

    @property
    def failed(self) -> list[tuple[str, str]]:
        """(id, reason) of the items that could not be used."""
        return [pair for file in self.files for pair in file.failed]

    def count(self, modality: Modality) -> int:
        """Number of items of one modality."""
        return sum(file.count(modality) for file in self.files)

    def batches(self, modality: Modality, size: int = 1024, *, sets: bool = True) -> Iterator[Rows]:
        """All rows of one modality, at most ``size`` items of one file at a time."""
        for file in self.files:
            yield from file.batches(modality, size, sets=sets)

    def sample(self, modality: Modality, step: int) -> NDArray[np.float32]:
        """Every ``step``-th global vector of one modality, float32 (n, d)."""
        before = np.cumsum([0, *(file.count(modality) for file in self.files)])[:-1].tolist()
        parts = [file.sample(modality, step, -start % step) for file, start in zip(self.files, before, strict=True)]
        return np.concatenate(parts)


def _check_alike(files: Sequence[FeatureFile]) -> None:
    first = files[0]
    for file in files[1:]:
        for name in ("kind", "digest", "dim", "dtype", "precision"):
            one, other = getattr(first.header, name), getattr(file.header, name)
            if one != other:
                raise FeatureFileError(
                    f"{file.path} and {first.path} do not belong together: their {name} is {other} and {one}; give "
                    "files that one encoder made with the same options"
                )
    for modality in MODALITIES:
        filled = [file for file in files if file.count(modality)]
        arrays = [set(file.rows(modality, 0, 1).ragged) for file in filled]
        for file, names in zip(filled, arrays, strict=True):
            if names != arrays[0]:
                raise FeatureFileError(
                    f"{file.path} and {filled[0].path} do not belong together: one of them holds no concept sets; make "
                    "both with --no-concepts, or neither"
                )


def _check_distinct(files: Sequence[FeatureFile]) -> None:
    if len(files) == 1:
        return
    place: dict[str, FeatureFile] = {}
    for file in files:
        ids = [key for modality in MODALITIES for key in file.ids(modality)]
        twice = next((key for key in ids if key in place), None)
        if twice is not None:
            raise FeatureFileError(
                f"{file.path} and {place[twice].path} both hold {twice!r}; leave one of them out, or extract distinct "
                "shards"
            )
        place.update(dict.fromkeys(ids, file))


def is_embeddings(path: Path) -> bool:
    """Whether a feature file holds embeddings, not regions."""
    with FeatureFile(path) as file:
        return file.header.kind == "embeddings"


def embeddings(rows: Rows, modality: Modality) -> Embeddings:
    """The batch of an embeddings file as Embeddings."""
    return Embeddings(
        modality, rows.dense["vectors"], rows.ragged.get("concepts"), rows.ragged.get("boxes"), rows.words
    )


def regions(rows: Rows) -> list[Regions]:
    """The batch of a regions file as one Regions a picture."""
    features, boxes = rows.ragged["features"], rows.ragged["boxes"]
    return [Regions(features[i], boxes[i]) for i in range(len(rows.items))]


def _single(data: h5py.Dataset, start: int, stop: int) -> NDArray[np.float32]:
    values: NDArray[np.float32] = data[start:stop].astype(np.float32)
    return values


def _absent(path: Path) -> str:
    if path.with_name(f"{path.name}.parts").exists():
        return "not finished; repeat the boc extract command that began it, it goes on where it stopped"
    return "no such file; make it with boc extract"


def _read_header(path: Path, attributes: Mapping[str, Any]) -> Header:
    found = {key: attributes[key] for key in (f.name for f in fields(Header)) if key in attributes}
    if "format" not in found or found.get("kind") not in KINDS:
        raise FeatureFileError(f"{path}: an HDF5 file, but not a feature file of boc; make one with boc extract")
    if int(found["format"]) > FORMAT:
        raise FeatureFileError(f"{path}: feature format {found['format']}, this boc reads up to {FORMAT}; upgrade boc")
    if not {f.name for f in fields(Header)} <= found.keys() | OPTIONAL.keys():
        raise FeatureFileError(f"{path}: incomplete header; make the file anew with boc extract")
    return Header(**{key: value.item() if isinstance(value, np.generic) else value for key, value in found.items()})
