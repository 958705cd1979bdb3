"""Several feature files of one encoder, read as one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from boc.errors import FeatureFileError
from boc.inputs.features import FeatureFile, Header, LazyBatch
from boc.types import MODALITIES, Batch, Modality


class FeatureFiles:
    """Several feature files of one encoder, such as the shards of a source, read as one. Their order does not depend on
    the order of the arguments.

    FeatureFileError if they do not belong together or an item is in two of them; then none stays open.
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
        """The header of the single file, or the combined one."""
        first = self.files[0].header
        if len(self.files) == 1:
            return first
        sources = json.dumps([file.header.source for file in self.files])
        return replace(first, source=hashlib.sha256(sources.encode()).hexdigest(), shard="")

    @property
    def failures(self) -> list[tuple[str, str]]:
        """(id, reason) of the items that could not be used."""
        return [pair for file in self.files for pair in file.failures]

    @property
    def index_file(self) -> FeatureFile | None:
        """The file, if it is a single one and an exported index."""
        return self.files[0] if len(self.files) == 1 and self.files[0].manifest is not None else None

    @property
    def dim(self) -> int:
        """Components of a vector."""
        return self.header.dim

    def count(self, modality: Modality) -> int:
        """Return the number of items of one modality."""
        return sum(file.count(modality) for file in self.files)

    def batches(self, modality: Modality, size: int = 1024, *, sets: bool = True) -> Iterator[Batch]:
        """Return all items of one modality with their embeddings, at most ``size`` items of one file at a time."""
        return (read() for _, read in self.lazy_batches(modality, size, sets=sets))

    def lazy_batches(self, modality: Modality, size: int, *, sets: bool) -> Iterator[LazyBatch]:
        """Yield the batches of ``batches``, still to be read."""
        for file in self.files:
            yield from file.lazy_batches(modality, size, sets=sets)

    def contents(self, *, sets: bool) -> str:
        """Return the SHA-256 over the vectors of all items, and with ``sets`` over all else that is of them."""
        return hashlib.sha256(json.dumps([file.contents(sets=sets) for file in self.files]).encode()).hexdigest()

    def sample(self, modality: Modality, rows: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        """Yield the global vectors of the items with the numbers ``rows``, ascending, in blocks, float32 (n, d)."""
        before = 0
        for file in self.files:
            first, last = np.searchsorted(rows, (before, before + file.count(modality)))
            yield from file.sample(modality, rows[first:last] - before)
            before += file.count(modality)


def _check_alike(files: Sequence[FeatureFile]) -> None:
    first = files[0]
    for file in files[1:]:
        for name in ("kind", "digest", "dim", "dtype", "precision", "fields"):
            one, other = getattr(first.header, name), getattr(file.header, name)
            if one != other:
                raise FeatureFileError(
                    f"{file.path} and {first.path} do not belong together: their {name} is {other} and {one}; give "
                    "files that one encoder made with the same options"
                )
    for modality in MODALITIES:
        filled = [file for file in files if file.count(modality)]
        arrays = [file.ragged_arrays(modality) for file in filled]
        for file, names in zip(filled, arrays, strict=True):
            if names != arrays[0]:
                raise FeatureFileError(
                    f"{file.path} and {filled[0].path} do not belong together: one of them holds no concept sets; make "
                    "both with --set concepts=false, or neither"
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
