"""HDF5 feature files: items of both modalities with their arrays, written in batches, resumable
after a kill.

While a file is written, its batches are small files in a folder beside it (``FILE.parts/``), each
renamed into place when complete. HDF5 itself cannot do this: a file whose writer is killed can be
unreadable. The folder shows how much is done; ``FILE`` appears when it is complete. A file and a
part have the same layout::

    /            attributes: format, kind ("regions" or "embeddings"), spec, digest, dim, dtype,
                 source; precision if it is not float32, shard if the source is a part, fields if
                 items have metadata
    /failed      pairs (id, reason) of items that could not be used
    /image, /text
        ids, content, group     UTF-8 strings, one per item
        dense/NAME              (n, d), contiguous
        ragged/NAME             (N, d), contiguous rows of all items; offsets (n + 1,) int64
                                separates them
        words                   (N,) strings: the word-piece of each ragged row, in embeddings of
                                sentences
        fields                  one string per item, if the header has fields: JSON of its metadata
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import pairwise, repeat
from pathlib import Path
from tokenize import TokenError
from types import TracebackType
from typing import Any, Literal, TypeAlias

import h5py
import numpy as np
from numpy.typing import NDArray

from boc.atomic_files import json_sha256
from boc.errors import FeatureFileError, check_system
from boc.foreign import parse_json
from boc.inputs.hdf5_check import check_heaps, check_layout, check_values
from boc.inputs.metadata import are_types, well_typed
from boc.types import (
    MODALITIES,
    WIDEST,
    Batch,
    Embeddings,
    FieldType,
    Identity,
    Item,
    Modality,
    Ragged,
    RegionBatch,
)

LazyBatch: TypeAlias = tuple[int, Callable[[], list[str]], Callable[[], Batch]]
"""The number of items of a batch, and the functions that read their ids, and all of them."""

FORMAT = 2
SUFFIXES = frozenset({".h5", ".hdf5"})  # of the names of feature files
KINDS = ("regions", "embeddings")
OPTIONAL = {
    "precision": "float32",
    "shard": "",
    "fields": "",
    "index": "",
}  # entries of a header that may be missing, with their defaults
BLOCK = 1 << 14  # rows of an array digested at a time
QUERIES = 256  # queries read at a time, with their concept sets
SAMPLED = 1 << 12  # rows of a sample read at a time
ENDED = (
    EOFError,
    TokenError,
    MemoryError,
)  # of arrays that end too early, or claim a size beyond any memory


@dataclass(frozen=True)
class Header:
    """The header of a feature file.

    ``source`` is the digest of the list of items it was made from, ``shard`` the part of the full
    list, and ``precision`` that of the matrix products of the encoder, which the vectors do not
    show. ``fields`` is JSON of the metadata fields of the items with their types, or empty.
    ``index`` is not empty in a copy of an index by an older boc, whose terms are not read.
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
    fields: str = ""
    index: str = ""

    @classmethod
    def of(
        cls,
        identity: Identity,
        dtype: str,
        source: str,
        types: Mapping[str, FieldType],
    ) -> Header:
        """Make the header of embeddings whose items have metadata of these ``types``."""
        fields = json.dumps(types, sort_keys=True) if types else ""
        owner = (identity.spec, identity.digest, identity.dim)
        return cls("embeddings", *owner, dtype, source, fields=fields)

    @property
    def types(self) -> dict[str, FieldType]:
        """The metadata fields of the items, with their types."""
        return parse_json(self.fields) if self.fields else {}

    @property
    def identity(self) -> Identity:
        return Identity(self.spec, self.digest, self.dim)

    def entries(self) -> dict[str, Any]:
        """Return the entries to write: all without those that have their defaults."""
        return {
            key: value
            for key, value in asdict(self).items()
            if key not in OPTIONAL or value != OPTIONAL[key]
        }


class FeatureFile:
    """A complete feature file, opened for reading. Arrays are read a batch at a time.

    Raises FeatureFileError, naming the file, for a missing, foreign, damaged or newer file.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        with _damage(self.path):
            try:
                self._file = h5py.File(self.path, "r")
            except FileNotFoundError:
                raise FeatureFileError(f"{self.path}: {_absent(self.path)}") from None
        try:
            with _damage(self.path):
                check_heaps(self.path, self._file)
                self.header = _read_header(self.path, self._file.attrs)
                check_layout(self.path, self._file)
                self._check_arrays()
        except FeatureFileError:
            self._file.close()
            raise

    def __enter__(self) -> FeatureFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: object,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def _check_arrays(self) -> None:
        """FeatureFileError unless there are the arrays that a file of this kind holds, as wide as
        its header says."""
        needed = {"regions": "ragged/features", "embeddings": "dense/vectors"}[self.header.kind]
        for modality in MODALITIES:
            if not self.count(modality) or (self.header.kind, modality) == ("regions", "text"):
                continue
            group = self._file[modality]
            if needed not in group or group[needed].shape[1] != self.header.dim:
                raise FeatureFileError(
                    f"{self.path}: {modality}/{needed} is missing, or not {self.header.dim} "
                    "wide; make the file again "
                    "with boc extract",
                )
            if needed == "ragged/features" and (
                "ragged/boxes" not in group or group["ragged/boxes"].shape[1] != 4
            ):
                raise FeatureFileError(
                    f"{self.path}: its boxes are missing; make the file again with boc extract",
                )

    def check_embeddings(self) -> None:
        """FeatureFileError for a file of regions."""
        if self.header.kind != "embeddings":
            raise FeatureFileError(
                f"{self.path}: holds regions, not vectors; use boc extract --encoder on it first",
            )

    def count(self, modality: Modality) -> int:
        """Return the number of items of one modality."""
        return len(self._file[modality]["ids"]) if modality in self._file else 0

    @property
    def failures(self) -> list[tuple[str, str]]:
        """(id, reason) of the items of the source that could not be used."""
        with _damage(self.path):
            return [
                (str(key), str(reason))
                for key, reason in self._file["failed"].asstr()[:].reshape(-1, 2)
            ]

    def ids(self, modality: Modality, start: int = 0, stop: int | None = None) -> list[str]:
        """Return the ids of items ``start`` to ``stop`` of one modality."""
        with _damage(self.path):
            return (
                self._file[modality]["ids"].asstr()[start:stop].tolist()
                if self.count(modality)
                else []
            )

    def items(self, modality: Modality, start: int = 0, stop: int | None = None) -> list[Item]:
        """Return items ``start`` to ``stop`` in the order of the source."""
        if modality not in self._file:
            return []
        group = self._file[modality]
        with _damage(self.path):
            ids, content, groups = (
                group[name].asstr()[start:stop].tolist() for name in ("ids", "content", "group")
            )
            texts = group["fields"].asstr()[start:stop] if self.header.fields else []
            known = [parse_json(text) for text in texts]
        types = self.header.types
        if not all(well_typed(each, types) for each in known):
            raise FeatureFileError(
                f"{self.path}: {modality}/fields is not of the types in its header; make it again",
            )
        fields = known if self.header.fields else [{} for _ in ids]
        return list(map(Item, ids, repeat(modality), content, groups, fields))

    def batch(self, modality: Modality, start: int, stop: int, *, sets: bool = True) -> Batch:
        """Return items ``start`` to ``stop`` with their embeddings, float32; without ``sets``, with
        the vectors only.

        FeatureFileError for a file of regions.
        """
        self.check_embeddings()
        items = self.items(modality, start, stop)
        if not items:
            return Batch(items, Embeddings(modality, np.empty((0, self.header.dim), np.float32)))
        end = start + len(items)
        vectors = self._single(self._file[modality]["dense/vectors"], start, end)
        ragged, words = self._sets(modality, start, end) if sets else ({}, None)
        concepts = ragged.get("concepts")
        return Batch(items, Embeddings(modality, vectors, concepts, ragged.get("boxes"), words))

    def region_batch(self, modality: Modality, start: int, stop: int) -> RegionBatch:
        """Return items ``start`` to ``stop`` of a file of regions, float32."""
        items = self.items(modality, start, stop)
        ragged = self._sets(modality, start, start + len(items))[0] if items else {}
        return RegionBatch(items, ragged.get("features"), ragged.get("boxes"))

    def ragged_arrays(self, modality: Modality) -> set[str]:
        """Return the names of the arrays with several rows per item: concepts, features, boxes."""
        return set(self._file[modality].get("ragged", {})) if modality in self._file else set()

    def _sets(
        self,
        modality: Modality,
        start: int,
        end: int,
    ) -> tuple[dict[str, Ragged], list[list[str]] | None]:
        """Return the arrays of items with several rows per item, by name, and the word of each
        row."""
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
        with _damage(self.path):
            flat = group["words"].asstr()[low:high].tolist()
        return ragged, [flat[a:b] for a, b in pairwise((offsets - low).tolist())]

    def memory_map(self, modality: Modality, name: str) -> NDArray[Any]:
        """Return the array ``dense/NAME`` or ``ragged/NAME`` of the file, memory-mapped,
        read-only."""
        data = self._file[modality][name]
        if data.size == 0:
            return np.empty(data.shape, data.dtype)
        return np.memmap(self.path, data.dtype, "r", data.id.get_offset(), data.shape)

    def offsets(self, modality: Modality) -> NDArray[np.int64]:
        """Return the offsets of the ragged rows of each item, int64 (n + 1,)."""
        offsets: NDArray[np.int64] = self._file[modality]["offsets"][:]
        return offsets

    def batches(
        self,
        modality: Modality,
        size: int = 1024,
        *,
        sets: bool = True,
    ) -> Iterator[Batch]:
        """Return all items of one modality with their embeddings, ``size`` items at a time."""
        return (read() for *_, read in self.lazy_batches(modality, size, sets=sets))

    def lazy_batches(self, modality: Modality, size: int, *, sets: bool) -> Iterator[LazyBatch]:
        """Yield the batches of ``batches``, still to be read."""
        count = self.count(modality)
        for start in range(0, count, size):
            stop = min(start + size, count)
            ids = partial(self.ids, modality, start, stop)
            yield stop - start, ids, partial(self.batch, modality, start, stop, sets=sets)

    def vectors(self, modality: Modality) -> NDArray[np.float32]:
        """Return all global vectors of one modality, float32 (n, d), which take 4 d bytes per item
        in memory."""
        if not self.count(modality):
            return np.empty((0, self.header.dim), np.float32)
        return self._single(self._file[modality]["dense/vectors"], 0, None)

    def contents(self, *, sets: bool) -> str:
        """Return the SHA-256 over the vectors of all items, and with ``sets`` over all else that is
        of them."""
        digest = hashlib.sha256()
        for modality in MODALITIES:
            if self.count(modality):
                arrays = ["dense/vectors"]
                if sets:
                    ragged = sorted(self._file[modality].get("ragged", {}))
                    arrays += ["offsets", *(f"ragged/{name}" for name in ragged)]
                for name in arrays:
                    for start in range(0, len(self._file[modality][name]), BLOCK):
                        array = (
                            self._file[modality][name]
                            if name == "offsets"
                            else self.memory_map(modality, name)
                        )
                        digest.update(np.ascontiguousarray(array[start : start + BLOCK]).data)
                        # unmapped, so that the pages that were read do not count as memory of the
                        # process
                        del array
        return digest.hexdigest()

    def sample(self, modality: Modality, rows: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        """Yield the global vectors of the items with the numbers ``rows``, ascending, in blocks,
        float32 (n, d)."""
        for start in range(0, len(rows), SAMPLED):
            chosen = self.memory_map(modality, "dense/vectors")[
                rows[start : start + SAMPLED]
            ]  # mapped for one block only
            vectors: NDArray[np.float32] = chosen.astype(np.float32)
            check_values(self.path, vectors)
            yield vectors

    def _single(self, data: h5py.Dataset, start: int, stop: int | None) -> NDArray[np.float32]:
        """Return rows of an array as float32. FeatureFileError if a number is none."""
        with _damage(self.path):
            values: NDArray[np.float32] = data[start:stop].astype(np.float32)
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
    """Return whether a feature file holds embeddings, not regions."""
    with FeatureFile(path) as file:
        return file.header.kind == "embeddings"


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """FeatureFileError in place of what HDF5, or text that is not UTF-8, makes of a damaged
    file."""
    try:
        yield
    except (
        OSError,
        RuntimeError,
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        *ENDED,
    ) as error:
        check_system(path, error, FeatureFileError)
        reason = (
            "damaged (text that is not UTF-8)"
            if isinstance(error, UnicodeError)
            else "not a readable HDF5 file"
        )
        raise FeatureFileError(f"{path}: {reason}; make it with boc extract") from error


def _absent(path: Path) -> str:
    if path.with_name(f"{path.name}.parts").exists():
        return (
            "not finished; repeat the boc extract command that began it, it continues where "
            "it stopped"
        )
    return "no such file; make it with boc extract"


def _read_header(path: Path, attributes: Mapping[str, Any]) -> Header:
    entries = {
        key: attributes[key] for key in (f.name for f in fields(Header)) if key in attributes
    }
    entries = {
        key: value.item() if isinstance(value, np.generic) else value
        for key, value in entries.items()
    }
    if not isinstance(entries.get("format"), int) or entries.get("kind") not in KINDS:
        raise FeatureFileError(
            f"{path}: an HDF5 file, but not a feature file of boc; make one with boc extract",
        )
    if entries["format"] > FORMAT:
        raise FeatureFileError(
            f"{path}: feature format {entries['format']}, this boc reads to {FORMAT}; upgrade boc",
        )
    if not {f.name for f in fields(Header)} <= entries.keys() | OPTIONAL.keys():
        raise FeatureFileError(f"{path}: incomplete header; make the file again with boc extract")
    numbers = {"format", "dim"}
    odd = [
        key
        for key, value in entries.items()
        if not isinstance(value, int if key in numbers else str)
    ]
    if odd or not 0 < entries["dim"] < WIDEST or entries["dtype"] not in ("float16", "float32"):
        raise FeatureFileError(
            f"{path}: its header is damaged ({', '.join(odd) or 'dim or dtype'}); make it again",
        )
    header = Header(**entries)
    if header.fields and not are_types(header.fields):
        raise FeatureFileError(f"{path}: its header is damaged (fields); make it again")
    return header


class FeatureFiles:
    """Several feature files of one encoder read as one, in an order that does not depend on that of
    the arguments.

    FeatureFileError if they do not belong together or an item is in two of them; then none stays
    open.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: object,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def header(self) -> Header:
        """The header of the single file, or the combined one."""
        first = self.files[0].header
        if len(self.files) == 1:
            return first
        source = json_sha256([file.header.source for file in self.files])
        types = {name: kind for file in self.files for name, kind in file.header.types.items()}
        fields = json.dumps(types) if types else ""
        return replace(first, source=source, fields=fields, shard="")

    @property
    def failures(self) -> list[tuple[str, str]]:
        """(id, reason) of the items that could not be used."""
        return [pair for file in self.files for pair in file.failures]

    def count(self, modality: Modality) -> int:
        """Return the number of items of one modality."""
        return sum(file.count(modality) for file in self.files)

    def items(self, modality: Modality) -> Iterator[Item]:
        """Yield the items of one modality, read in blocks."""
        for file in self.files:
            for start in range(0, file.count(modality), BLOCK):
                yield from file.items(modality, start, start + BLOCK)

    def batches(
        self,
        modality: Modality,
        size: int = 1024,
        *,
        sets: bool = True,
    ) -> Iterator[Batch]:
        """Return all items of one modality with their embeddings, at most ``size`` items of one
        file at a time."""
        return (read() for *_, read in self.lazy_batches(modality, size, sets=sets))

    def lazy_batches(self, modality: Modality, size: int, *, sets: bool) -> Iterator[LazyBatch]:
        """Yield the batches of ``batches``, still to be read."""
        for file in self.files:
            yield from file.lazy_batches(modality, size, sets=sets)

    def contents(self, *, sets: bool) -> str:
        """Return the SHA-256 over the vectors of all items, and with ``sets`` over all else that is
        of them."""
        return json_sha256([file.contents(sets=sets) for file in self.files])

    def sample(self, modality: Modality, rows: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        """Yield the global vectors of the items with the numbers ``rows``, ascending, in blocks,
        float32 (n, d)."""
        before = 0
        for file in self.files:
            first, last = np.searchsorted(rows, (before, before + file.count(modality)))
            yield from file.sample(modality, rows[first:last] - before)
            before += file.count(modality)


def _check_alike(files: Sequence[FeatureFile]) -> None:
    first = files[0]
    types = {**files[0].header.types}
    for file in files[1:]:
        alike = ("kind", "digest", "dim", "dtype", "precision")
        pairs = [(name, getattr(first.header, name), getattr(file.header, name)) for name in alike]
        pairs += [
            (f"type of {name}", types.setdefault(name, kind), kind)
            for name, kind in file.header.types.items()
        ]
        for name, one, other in pairs:
            if one != other:
                raise FeatureFileError(
                    f"{file.path} and {first.path} do not belong together: their {name} is "
                    f"{other} and {one}; give "
                    "files that one encoder made with the same options",
                )
    for modality in MODALITIES:
        filled = [file for file in files if file.count(modality)]
        arrays = [file.ragged_arrays(modality) for file in filled]
        for file, names in zip(filled, arrays, strict=True):
            if names != arrays[0]:
                raise FeatureFileError(
                    f"{file.path} and {filled[0].path} do not belong together: one of them holds "
                    "no concept sets; make "
                    "both with --set concepts=false, or neither",
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
                f"{file.path} and {place[twice].path} both hold {twice!r}; leave one of them "
                "out, or extract distinct "
                "shards",
            )
        place.update(dict.fromkeys(ids, file))


def read_queries(path: Path, identity: Identity) -> Iterator[tuple[list[Item], Embeddings]]:
    """Yield the items of a file as queries, in batches. FeatureFileError for none, or of another
    encoder."""
    with FeatureFile(path) as file:
        file.check_embeddings()
        if file.header.digest != identity.digest:
            raise FeatureFileError(
                f"{path}: made by {file.header.spec}, the index by {identity.spec}; use one "
                "encoder",
            )
        if not any(map(file.count, MODALITIES)):
            raise FeatureFileError(f"{path}: holds no items")
        for modality in MODALITIES:
            for batch in file.batches(modality, QUERIES):
                yield batch.items, batch.embeddings
