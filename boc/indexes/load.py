"""Feature files to indexes: fit a code, load, append, delete. ``boc.indexes.build`` starts from pictures."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boc import plugins
from boc.codecs import SurrogateCodec
from boc.codecs.surrogate_text import FIELD, with_words, word_fields
from boc.errors import BocError, BocWarning, EncoderError, FeatureFileError
from boc.inputs.features import FeatureFile, FeatureFiles, LazyBatch
from boc.inputs.file_facts import FACTS
from boc.inputs.metadata import Metadata
from boc.inputs.sources import shard_of
from boc.inputs.stored_terms import concepts_of
from boc.manifest import Manifest
from boc.names import Metric
from boc.plugins import check_name
from boc.prefetch import ahead
from boc.rerank import check_metric
from boc.rerank.storage import kept, store
from boc.types import (
    MODALITIES,
    Batch,
    Item,
    StoredConcepts,
    TermMatrix,
)

if TYPE_CHECKING:
    from boc.plugins import Index, IndexEditor

BATCH = 4096  # items encoded and added at a time
CONCEPT_BATCH = 256  # items encoded and added at a time with concept sets, which are many times larger
DEFAULT_RM = 10.0
FOUND = 1000  # ids looked up at a time


_Documents: TypeAlias = tuple[list[Item], TermMatrix, NDArray[np.float32], StoredConcepts | None]
"""The input of an index writer: items, term frequencies, vectors and concept sets."""


def new_manifest(
    file: FeatureFile | FeatureFiles,
    codec: SurrogateCodec,
    rm: float = DEFAULT_RM,
    *,
    rerank: Metric = "dot",
    vectors: str | None = None,
    concepts: str | None = None,
    metadata: Metadata | None = None,
) -> Manifest:
    """The manifest of an index of all items of ``file`` with a fitted ``codec`` and ``metadata``.

    ``vectors`` is the type that vectors are rounded to, float16 or int8; None stores them as ``file`` does.
    ``concepts`` is the type that concept sets are stored as, float16 or int8; None stores none, unless the ``rerank``
    metric needs them. FeatureFileError if ``file`` has none to store.
    """
    head = file.header
    if check_metric(rerank) != "dot":
        concepts = concepts or "float16"
    if concepts is not None:
        _check_concepts(file)
    own = word_fields(codec.words)
    if metadata is not None and own.keys() & metadata.types.keys():
        raise BocError(
            f"the metadata field {FIELD!r} holds the words of pictures under this code; name yours otherwise"
        )
    return Manifest.new(
        head.identity,
        codec.config(),
        codec.arrays(),
        rm=rm,
        dtype=vectors or head.dtype,
        source=_source(file, metadata, sets=concepts is not None or codec.reads_concepts),
        rerank=rerank,
        concept_dtype=concepts,
        fields=file.header.types | ({} if metadata is None else metadata.types) | own,
        table_facts=facts_among(metadata),
    )


def stored_manifest(
    file: FeatureFile, rm: float | None = None, rerank: Metric | None = None, metadata: Metadata | None = None
) -> tuple[Manifest, SurrogateCodec]:
    """The manifest of an exported index as it was, but for what is given, and its code."""
    old = file.manifest
    assert old is not None
    if rerank is not None and check_metric(rerank) != "dot" and old.concept_dtype is None:
        raise BocError(f"{file.path} holds no concept sets, which {rerank} compares; leave out --rerank")
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    changed = replace(old, rm=old.rm if rm is None else rm, rerank=rerank or old.rerank, created=now)
    if metadata is not None:
        source = _digest(old.source, metadata.digest)
        given = sorted({*old.table_facts, *facts_among(metadata)})
        changed = replace(changed, source=source, fields=old.fields | metadata.types, table_facts=given)
    return changed, SurrogateCodec.restore(old.codec, file.code_arrays())


def load_index(
    file: FeatureFile | FeatureFiles,
    at: str,
    name: str,
    codec: SurrogateCodec,
    manifest: Manifest,
    metadata: Metadata | None = None,
    *,
    as_stored: bool = False,
    part: str | None = None,
) -> Iterator[int]:
    """Make index ``name`` at back end ``at`` from embeddings and a fitted codec, replacing an older one.

    Yields the number of items done, including those of an earlier load that was killed. The index is published when
    the iterator is exhausted. ``metadata`` must be that of ``manifest``. With ``as_stored`` the file is an
    exported index, whose terms and concept sets are taken as they are. With ``part``, ``I/N``, one of N processes
    takes every N-th batch, and the last one publishes the index.
    """
    _check_items(file, metadata)
    backend, given = plugins.backend(at), (check_name(name), manifest, codec.arrays())
    with backend.create(*given) if part is None else backend.create_part(*given, part) as writer:
        mine, every = (1, 1) if part is None else shard_of(part)

        def chosen(number: int) -> bool:
            return number % every == mine - 1

        done = 0
        for number, batch in _encoding(file, codec, manifest, metadata, writer.has, chosen, as_stored=as_stored):
            if batch is not None:
                writer.add(*batch)
            done += number
            yield done
        writer.commit()


def append_items(
    file: FeatureFile | FeatureFiles, at: str, name: str, metadata: Metadata | None = None
) -> Iterator[int]:
    """Add all items of ``file`` to index ``name`` with its code, replacing items with the same ids.

    Yields the number of items done. EncoderError if they are by another encoder; BocError if the index does not declare
    their metadata; FeatureFileError if it stores concept sets and ``file`` has none.
    """
    backend = plugins.backend(at)
    with backend.edit(check_name(name)) as editor:
        index = backend.open(name)
        manifest, codec = index.manifest, SurrogateCodec.restore(index.manifest.codec, index.arrays())
        check_same_encoder(file, manifest)
        check_fields(manifest, metadata)
        _check_items(file, metadata)
        if manifest.concept_dtype is not None:
            _check_concepts(file)
        yield from put_items(editor, file, codec, manifest, metadata)
        sets = manifest.concept_dtype is not None or codec.reads_concepts
        given = sorted({*manifest.table_facts, *facts_among(metadata)})
        editor.commit(_digest(manifest.source, _source(file, metadata, sets=sets)), table_facts=given)


def put_items(
    editor: IndexEditor,
    file: FeatureFile | FeatureFiles,
    codec: SurrogateCodec,
    manifest: Manifest,
    metadata: Metadata | None = None,
) -> Iterator[int]:
    """Put all items of ``file`` into the index of ``editor``, which has this code; yields the number of items done."""
    done = 0
    for count, batch in _encoding(file, codec, manifest, metadata):
        if batch is not None:
            editor.put(*batch)
        done += count
        yield done


def delete_items(at: str, name: str, ids: Sequence[str]) -> tuple[int, list[str]]:
    """Delete items from index ``name``; return how many were deleted, and the unknown ids.

    BackendError if the index would be empty.
    """
    backend = plugins.backend(at)
    index = backend.open(check_name(name))
    distinct = list(dict.fromkeys(ids))
    unknown = set(_unknown(index, distinct))
    known = [key for key in distinct if key not in unknown]
    if known:
        with backend.edit(name) as editor:
            for start in range(0, len(known), FOUND):
                editor.delete(known[start : start + FOUND])
            editor.commit(_digest(index.manifest.source, "without", *sorted(known)))
    return len(known), [key for key in distinct if key in unknown]


def batches(file: FeatureFile | FeatureFiles, codec: SurrogateCodec, manifest: Manifest) -> Iterator[Batch]:
    """All items of ``file`` with what the codec and an index with this manifest need of them."""
    return (read() for _, read in _lazy_batches(file, codec, manifest))


def _lazy_batches(file: FeatureFile | FeatureFiles, codec: SurrogateCodec, manifest: Manifest) -> Iterator[LazyBatch]:
    """The same, still to be read."""
    sets = manifest.concept_dtype is not None or codec.reads_concepts
    size = CONCEPT_BATCH if sets else BATCH
    for modality in MODALITIES:
        yield from file.lazy_batches(modality, size, sets=sets)


def _encoding(
    file: FeatureFile | FeatureFiles,
    codec: SurrogateCodec,
    manifest: Manifest,
    metadata: Metadata | None,
    known: Callable[[list[str]], bool] = lambda ids: False,
    chosen: Callable[[int], bool] = lambda number: True,
    *,
    as_stored: bool = False,
) -> Iterator[tuple[int, _Documents | None]]:
    """Yield for each batch the number of its items, and their encoding; None if they are ``known``, or if its number is
    not ``chosen``: then it is not even read."""
    fields, words = _Fields(file, manifest, metadata), codec.words
    rounds = manifest.vector_dtype != file.header.dtype and not as_stored

    def encoded(task: tuple[int, Batch | None]) -> tuple[int, _Documents | None]:
        count, batch = task
        if batch is None:
            return count, None
        _check_range(batch, manifest)
        if rounds:  # first, so that the terms are those of the vectors that the index holds
            rows = kept(batch.embeddings.vectors, manifest.vector_dtype).astype(np.float32, copy=False)
            batch = replace(batch, embeddings=replace(batch.embeddings, vectors=rows))
        return count, _documents(batch, codec, manifest, fields, words, as_stored=as_stored)

    def tasks() -> Iterator[tuple[int, Batch | None]]:
        for number, (count, read) in enumerate(_lazy_batches(file, codec, manifest)):
            batch = read() if chosen(number) else None
            there = batch is None or known([item.id for item in batch.items])
            yield count, None if there else batch

    yield from ahead(encoded, tasks())


class _Fields:
    """The metadata of the items of a file: what the file holds of them, and over it the values of a table.

    Fields of the file that the index declares otherwise, or not at all, are left out.
    """

    def __init__(self, file: FeatureFile | FeatureFiles, manifest: Manifest, metadata: Metadata | None) -> None:
        types = file.header.types
        self._odd = {name for name, kind in types.items() if manifest.fields.get(name) != kind}
        self._metadata = metadata

    def of(self, item: Item) -> Item:
        kept = {name: value for name, value in item.fields.items() if name not in self._odd}
        return replace(item, fields=kept if self._metadata is None else {**kept, **self._metadata.of(item)})


def _parts(file: FeatureFile | FeatureFiles) -> Sequence[FeatureFile]:
    return file.files if isinstance(file, FeatureFiles) else [file]


def _check_range(batch: Batch, manifest: Manifest) -> None:
    """FeatureFileError if a vector has components that the index cannot store."""
    largest = np.finfo(manifest.vector_floats).max
    beyond = (np.abs(batch.embeddings.vectors) > largest).any(axis=1)
    if beyond.any():
        raise FeatureFileError(
            f"the vector of {batch.items[beyond.argmax()].id!r} has numbers too large for {manifest.vector_dtype}, as "
            "which the index stores vectors; make the features again, with smaller vectors"
        )


def _documents(
    batch: Batch,
    codec: SurrogateCodec,
    manifest: Manifest,
    fields: _Fields,
    words: Mapping[int, str],
    *,
    as_stored: bool,
) -> _Documents:
    items, found, dtype = batch.items, batch.embeddings, manifest.concept_dtype
    if manifest.fields:
        items = [fields.of(item) for item in items]
    if as_stored and batch.stored is not None:
        sets = None if dtype is None or found.concepts is None else concepts_of(found.concepts, batch.stored)
        return items, batch.stored.terms, found.vectors, sets
    sets = None if dtype is None or found.concepts is None else store(found.concepts, dtype)
    terms = codec.encode_documents(found)
    return with_words(items, terms, words), terms, found.vectors, sets


def _source(file: FeatureFile | FeatureFiles, metadata: Metadata | None, *, sets: bool) -> str:
    """Digest of what an index takes of a file: its list of items with their vectors, the concept sets if ``sets`` are
    read, and the metadata."""
    parts = [file.header.source, file.contents(sets=sets)]
    return _digest(*parts, *([] if metadata is None else [metadata.digest]))


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _check_concepts(file: FeatureFile | FeatureFiles) -> None:
    for modality in MODALITIES:
        batch = next(file.batches(modality, 1), None)
        if batch is not None and batch.embeddings.concepts is None:
            raise FeatureFileError(
                f"{file.path}: holds no concept sets of its {modality} items; make it with boc extract --encoder "
                "(an encoder that has them, such as tern), or leave out --concepts and --rerank"
            )


def source_digest(file: FeatureFile | FeatureFiles) -> str:
    """The digest of the items of ``file`` and their vectors."""
    return _source(file, None, sets=False)


def check_same_encoder(file: FeatureFile | FeatureFiles, manifest: Manifest) -> None:
    """EncoderError if the encoder of ``file`` is not that of an index with this manifest."""
    found, wanted = file.header.identity, manifest.identity
    if found.digest != wanted.digest:
        raise EncoderError(f"{file.path}: made by {found.spec}, the index by {wanted.spec}; use the same encoder")


def facts_among(metadata: Metadata | None) -> list[str]:
    """The fields of a table that are facts of files otherwise, sorted."""
    return [] if metadata is None else sorted(metadata.types.keys() & FACTS.keys())


def check_fields(manifest: Manifest, metadata: Metadata | None) -> None:
    """BocError if the index does not declare the fields of ``metadata`` with their types."""
    given = {} if metadata is None else metadata.types
    odd = [f"{name}:{kind}" for name, kind in given.items() if manifest.fields.get(name) != kind]
    if odd:
        there = ", ".join(f"{name}:{kind}" for name, kind in manifest.fields.items()) or "none"
        raise BocError(
            f"the index has no metadata fields {', '.join(odd)} (it has: {there}); make it again, or rename them"
        )


def _check_items(file: FeatureFile | FeatureFiles, metadata: Metadata | None) -> None:
    """BocError if no line of ``metadata`` matches an item, a warning if some lines match none."""
    if metadata is None:
        return
    items = (
        item
        for part in _parts(file)
        for modality in MODALITIES
        for start in range(0, part.count(modality), BATCH)
        for item in part.items(modality, start, start + BATCH)
    )
    strange = metadata.strangers(items)
    if len(strange) == len(metadata.rows):
        raise BocError(f"no id of the metadata is that of an item (such as {strange[0]!r}); give ids of {file.path}")
    if strange:
        warnings.warn(
            BocWarning(f"{len(strange)} lines of the metadata are of no item here (such as {strange[0]!r})"),
            stacklevel=2,
        )


def _unknown(index: Index, ids: Sequence[str]) -> Iterator[str]:
    """Yield the ids without an item."""
    for start in range(0, len(ids), FOUND):
        asked = list(ids[start : start + FOUND])
        while asked:
            try:
                index.find(asked)
                break
            except KeyError as error:
                asked.remove(error.args[0])
                yield error.args[0]
