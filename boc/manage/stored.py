"""Read an index as the source of another index: all items with all their stored data, in
batches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.atomic_files import json_sha256
from boc.codecs import SurrogateCodec
from boc.codecs.surrogate_text import word_fields
from boc.errors import BocError, note
from boc.inputs.features import Header, LazyBatch
from boc.inputs.metadata import Metadata, values_of
from boc.manage.load import BATCH, CONCEPT_BATCH, facts_among
from boc.manifest import Manifest
from boc.names import Metric
from boc.plugins import Backend, Engine, check_name
from boc.rerank import check_metric
from boc.types import Batch, Embeddings, Item, Modality, Rows

VALUES: dict[str, tuple[type, ...]] = {
    "keyword": (str,),
    "text": (str,),
    "date": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "float": (float, int),
}
"""Python types of the values for each metadata type."""


class StoredItems:
    """Index ``name`` as a source that is read like a feature file. Raises BackendError if the index
    does not exist."""

    def __init__(self, backend: Backend, name: str) -> None:
        self._backend = backend
        self.path = name
        self.index = backend.open(check_name(name))
        self.failures: list[tuple[str, str]] = []
        self.left_out: set[str] = set()

    @property
    def manifest(self) -> Manifest:
        """Return the manifest of the index."""
        return self.index.manifest

    @property
    def header(self) -> Header:
        """Return the header of a feature file with these items."""
        return Header.of(
            self.manifest.identity,
            self.manifest.vector_dtype,
            self.manifest.source,
            self.manifest.fields,
        )

    def count(self, modality: Modality) -> int:
        """Return the number of items of one modality in the index."""
        return self.manifest.items[modality]

    def items(self, modality: Modality) -> Iterator[Item]:
        """Yield the items of one modality, sorted by id.

        Values that are not valid metadata are omitted, because documents of other programs can
        contain nulls, points, and fields that no filter supports.
        """
        if not self.count(modality):
            return
        types = self.manifest.fields
        for item in self.index.items():
            if item.modality != modality:
                continue
            fields = {}
            for name, value in item.fields.items():
                kinds = VALUES.get(types.get(name, ""), ())
                values = values_of(item.fields, name)
                kept = [each for each in values if type(each) in kinds]
                if len(kept) < len(values):
                    self.left_out.add(name)
                if kept:
                    fields[name] = kept if isinstance(value, list) else kept[0]
            yield replace(item, fields=fields)

    def sample(self, modality: Modality, rows: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors of items of one modality in blocks, float32 (n, d). ``rows`` contains
        the positions of the items when they are sorted by id."""
        numbers = set(rows.tolist())
        ids = (item.id for number, item in enumerate(self.items(modality)) if number in numbers)
        while some := list(islice(ids, 1000)):
            yield self.index.vectors(some).astype(np.float32)

    def lazy_batches(self, modality: Modality, size: int, *, sets: bool) -> Iterator[LazyBatch]:
        """Yield lazy batches of the items of one modality, with concept sets if the index stores
        them."""
        items = self.items(modality)
        while some := list(islice(items, size)):
            yield len(some), partial(_ids, some), partial(self._batch, modality, some)

    def _batch(self, modality: Modality, items: list[Item]) -> Batch:
        rows = stored_rows(self.index, items)
        concepts = None if rows.concepts is None else rows.concepts.to_ragged()
        return Batch(items, Embeddings(modality, rows.vectors, concepts), rows)

    def contents(self, *, sets: bool) -> str:
        """Return a digest of the items."""
        return json_sha256([self.manifest.source, self.index.exact_vectors])

    def check_unchanged(self) -> None:
        """Raise BocError if the index has changed since it was opened, and warn about omitted
        values."""
        if self.left_out:
            note(
                f"values that no filter of {self.path} supports are omitted from the fields "
                f"{', '.join(sorted(self.left_out)[:10])}",
            )
        if self._backend.open(self.path).manifest != self.manifest:
            raise BocError(
                f"{self.path} changed while it was being copied; try again when no other process "
                "is changing the index",
            )


def stored_rows(index: Engine, items: Sequence[Item]) -> Rows:
    """Return all stored data of ``items``. Raises BocError if an item has been deleted in the
    meantime."""
    ids = _ids(items)
    try:
        rows = Rows(items, index.terms(ids), index.vectors(ids).astype(np.float32))
        if index.manifest.concept_dtype is not None:
            rows = rows._replace(concepts=index.concepts(ids))
        return rows
    except KeyError as error:
        raise BocError(
            f"item {error.args[0]!r} was deleted in the meantime; copy the index again while no "
            "process edits it",
        ) from None


def stored_batches(index: Engine, items: Sequence[Item]) -> Iterator[Rows]:
    """Yield the ``stored_rows`` of ``items`` in batches."""
    size = BATCH if index.manifest.concept_dtype is None else CONCEPT_BATCH
    for start in range(0, len(items), size):
        yield stored_rows(index, items[start : start + size])


def _ids(items: Sequence[Item]) -> list[str]:
    return [item.id for item in items]


def stored_manifest(
    source: StoredItems,
    codec: SurrogateCodec | None = None,
    *,
    rm: float | None,
    rerank: Metric | None,
    metadata: Metadata | None = None,
) -> tuple[Manifest, Mapping[str, NDArray[Any]]]:
    """Return the manifest of a new, empty index like ``source``, and the arrays of its code. The
    code is ``codec``, by default the codec of the source."""
    old = source.manifest
    if rerank is not None and check_metric(rerank) != "dot" and old.concept_dtype is None:
        raise BocError(
            f"{source.path} has no concept sets, which {rerank} needs",
            "leave out <--rerank>",
        )
    parts = [old.source]
    fields = dict(old.fields)
    recall = old.recall if rm is None else {}
    config = old.codec
    arrays = source.index.arrays()
    if not source.index.exact_vectors:
        parts.append("rounded")
    if metadata is not None:
        parts.append(metadata.digest)
        fields |= metadata.types
    if codec is not None:
        fields |= word_fields(codec.words)
        recall = {}
        config = codec.config()
        arrays = codec.arrays()
    manifest = Manifest.new(
        old.identity,
        config,
        arrays,
        rm=rm or old.rm,
        dtype=old.vector_dtype,
        source=old.source if len(parts) == 1 else json_sha256(parts),
        rerank=rerank or old.rerank,
        concept_dtype=old.concept_dtype,
        fields=fields,
        unreadable=old.unreadable,
        table_facts=sorted({*old.table_facts, *facts_among(metadata)}),
        exclude=old.exclude,
        recall=recall,
        usual=old.usual,
    )
    return manifest, arrays
