"""Vectors in the files of others as items, dense ones and sparse ones, which are read like feature
files."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boc.atomic_files import json_sha256
from boc.codecs import SurrogateCodec
from boc.codecs.given import GivenTerms, with_terms
from boc.errors import SourceError
from boc.inputs.features import Header, LazyBatch
from boc.inputs.vector_files import VectorRows, read_vectors
from boc.types import MODALITIES, Batch, Embeddings, Item, Modality
from boc.vectors import unit_rows

BATCH = 4096


@dataclass
class _Part:
    """Rows of a file of which items are made: the numbers of the rows that can be used."""

    file: VectorRows
    items: list[Item]
    rows: NDArray[np.int64]


class VectorItems:
    """The items of files of ``boc.inputs.vector_files``, and their vectors.

    Dense vectors get unit length, unless it counts. Sparse ones are terms of ``codec``, which is
    None for dense ones. ``failures`` are ids and reasons of rows that cannot be used. SourceError
    if the files do not belong together.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        files = list(map(read_vectors, paths))
        widths = {None if file.names is not None else int(file.rows.shape[1]) for file in files}
        if len(widths) > 1:
            raise SourceError(
                f"{paths[0]} and the others hold vectors of different kinds or widths; index them "
                "apart",
            )
        (width,) = widths
        self.path = paths[0]
        self.codec: SurrogateCodec | None = None
        self.failures: list[tuple[str, str]] = []
        lists = _items(files)
        source = json_sha256(
            [[item.id, item.content, item.group] for part in lists for item in part]
        )
        spec = f"vectors:{paths[0].stem}"
        self.header = Header("embeddings", spec, json_sha256(width), width or 1, "float32", source)
        if width is None:
            names = sorted({name for file in files for name in file.names or ()})
            # Weights that are no whole numbers are multiplied by 100, as is usual for SPLADE.
            whole = all((file.rows.data == np.rint(file.rows.data)).all() for file in files)
            self._step = GivenTerms.of(names, 1 if whole else 100)
            self.codec = SurrogateCodec([self._step])
            self.codec.fit(with_terms("image", self._step.rows([{}])))
            self.header = Header("embeddings", spec, json_sha256(names), 1, "float16", source)
        self._parts: dict[Modality, list[_Part]] = {modality: [] for modality in MODALITIES}
        for file, items in zip(files, lists, strict=True):
            if items:
                rows = self._usable(file, items) if self.codec is None else np.arange(len(items))
                self._parts[items[0].modality].append(_Part(file, items, rows))

    def _usable(self, file: VectorRows, items: Sequence[Item]) -> NDArray[np.int64]:
        usable = np.zeros(len(items), bool)
        for start in range(0, len(items), BATCH):
            rows = np.asarray(file.rows[start : start + BATCH], np.float32)
            usable[start : start + BATCH] = np.isfinite(rows).all(axis=1) & (rows != 0).any(axis=1)
        for row in np.flatnonzero(~usable).tolist():
            reason = f"row {row} of {file.path} is zero or not finite"
            self.failures.append((items[row].id, reason))
        return np.flatnonzero(usable)

    def count(self, modality: Modality) -> int:
        """Return the number of items of one modality."""
        return sum(len(part.rows) for part in self._parts[modality])

    def items(self, modality: Modality) -> Iterator[Item]:
        """Yield the items of one modality."""
        return (part.items[row] for part in self._parts[modality] for row in part.rows)

    def lazy_batches(self, modality: Modality, size: int, *, sets: bool) -> Iterator[LazyBatch]:
        """Yield all items of one modality in batches, still to be read; none has concept sets."""
        for part in self._parts[modality]:
            for start in range(0, len(part.rows), size):
                rows = part.rows[start : start + size]
                items = [part.items[row] for row in rows]
                ids = [item.id for item in items]
                yield len(rows), partial(list, ids), partial(self._batch, part.file, rows, items)

    def _batch(self, file: VectorRows, rows: NDArray[np.int64], items: list[Item]) -> Batch:
        modality = items[0].modality
        if self.codec is None:
            return Batch(items, Embeddings(modality, self._vectors(file, rows)))
        chosen = file.rows[rows]
        columns = np.array([self._step.columns[name] for name in file.names or ()], np.int32)
        terms = self._step.terms(chosen.data, columns[chosen.indices], chosen.indptr)
        return Batch(items, with_terms(modality, terms))

    def _vectors(self, file: VectorRows, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        vectors = np.asarray(file.rows[rows], np.float32)
        return vectors if file.exact else unit_rows(vectors)

    def sample(self, modality: Modality, rows: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors of the items with the numbers ``rows``, ascending, in blocks, float32
        (n, d)."""
        for part in self._parts[modality]:
            own = part.rows[rows[(rows >= 0) & (rows < len(part.rows))]]
            for start in range(0, len(own), BATCH):
                yield self._vectors(part.file, own[start : start + BATCH])
            rows = rows - len(part.rows)

    def contents(self, *, sets: bool) -> str:
        """Return the SHA-256 over the vectors of all items."""
        digest = hashlib.sha256()
        for modality in MODALITIES:
            for *_, read in self.lazy_batches(modality, BATCH, sets=sets):
                batch = read().embeddings
                if batch.terms is None:
                    digest.update(batch.vectors.data)
                else:
                    for array in (batch.terms.indptr, batch.terms.indices, batch.terms.data):
                        digest.update(array.data)
        return json_sha256([digest.hexdigest()])


def _items(files: Sequence[VectorRows]) -> list[list[Item]]:
    """Return the items of each file. SourceError for sentences of unknown pictures, and an id that
    occurs twice."""
    ids = [file.ids or list(map(str, range(file.rows.shape[0]))) for file in files]
    known = [
        key for file, own in zip(files, ids, strict=True) if file.sentences is None for key in own
    ]
    items = []
    for file, own in zip(files, ids, strict=True):
        if file.sentences is None:
            items.append([Item(key, "image", key, key) for key in own])
            continue
        owners = file.owners
        each = len(own) // max(1, len(known))
        if owners is None and known and len(own) != each * len(known):
            raise SourceError(
                f"{file.path}: {len(own)} sentences of {len(known)} pictures, and nobody says of "
                "which; write the id "
                "of its picture and a tab before each sentence",
            )
        if owners is None:
            owners = [known[row // each] for row in range(len(own))] if known else own
        keys = file.ids or [f"{owner}#{row % max(1, each)}" for row, owner in enumerate(owners)]
        triples = zip(keys, file.sentences, owners, strict=True)
        items.append([Item(key, "text", sentence, owner) for key, sentence, owner in triples])
    key, count = Counter(item.id for each in items for item in each).most_common(1)[0]
    if count > 1:
        raise SourceError(
            f"{count} vectors have the id {key!r}; write ids beside each file: X.ids.txt for X.npy",
        )
    return items
