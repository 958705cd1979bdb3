"""Read vector files from other programs as items, like feature files."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from boc.atomic_files import json_sha256
from boc.errors import SourceError
from boc.inputs.features import Header, LazyBatch
from boc.inputs.vector_files import VectorRows, read_vectors
from boc.types import MODALITIES, Batch, Embeddings, Item, Modality
from boc.vectors import Floats, Ints, unit_rows

BATCH = 4096


class _Part(NamedTuple):
    """Row numbers in a file, and the items to which the rows belong."""

    file: VectorRows
    rows: Ints
    items: list[Item]

    def vectors(self, rows: Ints) -> Floats:
        vectors = np.asarray(self.file.rows[rows], np.float32)
        return vectors if self.file.exact else unit_rows(vectors)


class VectorItems:
    """Items and vectors from files that ``boc.inputs.vector_files`` reads.

    Vectors are scaled to unit length, unless their length is significant. ``stored_as`` is the type
    in which an index stores the vectors by default: float32 if their length is significant, int8 if
    the files contain int8, otherwise float16. ``failures`` contains an (id, reason) pair for each
    unusable row. Raises SourceError if the files do not belong together.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        files = list(map(read_vectors, paths))
        widths = {int(file.rows.shape[1]) for file in files}
        if len(widths) > 1:
            raise SourceError(
                f"{paths[0]} and the other files contain vectors of different widths; build a "
                "separate index for each width",
            )
        (width,) = widths
        lists = _items(files)
        spec = f"vectors:{paths[0].stem}"
        source = json_sha256([[each.id, each.content, each.group] for of in lists for each in of])
        self.path = paths[0]
        self.failures: list[tuple[str, str]] = []
        self.stored_as = "int8" if all(file.rows.dtype == np.int8 for file in files) else "float16"
        if any(file.exact for file in files):
            self.stored_as = "float32"
        self.header = Header("embeddings", spec, json_sha256(width), width, "float32", source)
        self._parts = []
        for file, items in zip(files, lists, strict=True):
            usable = np.ones(len(items), bool)
            for start in range(0, len(items), BATCH):
                rows = np.asarray(file.rows[start : start + BATCH], np.float32)
                usable[start : start + BATCH] = np.isfinite(rows).all(axis=1) & rows.any(axis=1)
            for row in np.flatnonzero(~usable).tolist():
                reason = f"row {row} of {file.path} is zero or not finite"
                self.failures.append((items[row].id, reason))
            chosen = np.flatnonzero(usable)
            self._parts.append(_Part(file, chosen, [items[row] for row in chosen]))

    def _of(self, modality: Modality) -> list[_Part]:
        return [part for part in self._parts if part.items and part.items[0].modality == modality]

    def count(self, modality: Modality) -> int:
        """Return the number of items of one modality."""
        return sum(len(part.items) for part in self._of(modality))

    def items(self, modality: Modality) -> Iterator[Item]:
        """Yield the items of one modality."""
        return (item for part in self._of(modality) for item in part.items)

    def lazy_batches(self, modality: Modality, size: int, *, sets: bool) -> Iterator[LazyBatch]:
        """Yield lazy batches of all items of one modality, without concept sets."""
        for part in self._of(modality):
            for start in range(0, len(part.items), size):
                some = _Part(part.file, part.rows[start:][:size], part.items[start:][:size])
                ids = [item.id for item in some.items]
                yield len(ids), partial(list, ids), partial(self._batch, some)

    def _batch(self, part: _Part) -> Batch:
        return Batch(part.items, Embeddings(part.items[0].modality, part.vectors(part.rows)))

    def sample(self, modality: Modality, rows: Ints) -> Iterator[Floats]:
        """Yield the vectors of the items at the positions ``rows`` (ascending) in blocks, float32
        (n, d)."""
        for part in self._of(modality):
            first, last = np.searchsorted(rows, (0, len(part.items)))
            for start in range(first, last, BATCH):
                yield part.vectors(part.rows[rows[start : min(start + BATCH, last)]])
            rows = rows - len(part.items)

    def contents(self, *, sets: bool) -> str:
        """Return a SHA-256 digest of the vectors of all items."""
        digest = hashlib.sha256()
        for modality in MODALITIES:
            for *_, read in self.lazy_batches(modality, BATCH, sets=sets):
                digest.update(read().embeddings.vectors.data)
        return json_sha256([digest.hexdigest()])


def _items(files: Sequence[VectorRows]) -> list[list[Item]]:
    """Return the items of each file. Raises SourceError if the picture of a sentence is unknown, or
    if an id occurs twice."""
    ids = [file.ids or list(map(str, range(file.rows.shape[0]))) for file in files]
    pairs = list(zip(files, ids, strict=True))
    known = [key for file, own in pairs if file.sentences is None for key in own]
    items = []
    for file, own in pairs:
        if file.sentences is None:
            items.append([Item(key, "image", key, key) for key in own])
            continue
        owners = file.owners or own
        each = len(own) // max(1, len(known))
        if file.owners is None and known:
            if len(own) != each * len(known):
                raise SourceError(
                    f"{file.path}: {len(own)} sentences for {len(known)} pictures, without picture "
                    "ids; before each sentence, write the id of its picture and a tab",
                )
            owners = [known[row // each] for row in range(len(own))]
        keys = file.ids or [f"{owner}#{row % max(1, each)}" for row, owner in enumerate(owners)]
        items.append(
            [
                Item(key, "text", sentence, owner)
                for key, sentence, owner in zip(keys, file.sentences, owners, strict=True)
            ],
        )
    key, count = Counter(item.id for each in items for item in each).most_common(1)[0]
    if count > 1:
        raise SourceError(
            f"{count} vectors have the id {key!r}; add ids next to each file: X.ids.txt for X.npy",
        )
    return items
