"""Load feature files into a new index, or add them to an existing index. ``boc.manage.build``
starts from pictures."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from boc import plugins
from boc.atomic_files import json_sha256
from boc.codecs import SurrogateCodec
from boc.codecs.surrogate_text import FIELD, with_words, word_fields
from boc.errors import BocError, EncoderError, FeatureFileError, note
from boc.inputs.features import FeatureFile, FeatureFiles, LazyBatch
from boc.inputs.file_facts import FACTS
from boc.inputs.metadata import Metadata
from boc.inputs.sources import shard_of
from boc.manifest import Manifest
from boc.names import Metric
from boc.plugins import check_name
from boc.prefetch import ahead
from boc.rerank import check_metric
from boc.rerank.storage import round_trip, store
from boc.search.background import SIZE, usual_cosine
from boc.types import MODALITIES, Batch, FieldType, Item, Rows
from boc.vectors import Array

if TYPE_CHECKING:
    from boc.manage.stored import StoredItems
    from boc.manage.vector_items import VectorItems

BATCH = 4096  # items per batch
CONCEPT_BATCH = 256  # items per batch with concept sets, which are many times larger
DEFAULT_RM = 10.0


VectorSource: TypeAlias = "FeatureFile | FeatureFiles | StoredItems | VectorItems"
"""A source of items with their vectors: feature files, an index, or vector files from other
programs."""


def new_manifest(
    file: VectorSource,
    codec: SurrogateCodec,
    rm: float = DEFAULT_RM,
    *,
    rerank: Metric = "dot",
    vectors: str | None = None,
    concepts: str | None = None,
    metadata: Metadata | None = None,
) -> Manifest:
    """Return the manifest of an index with all items of ``file``, a fitted ``codec`` and
    ``metadata``.

    Vectors are rounded to the type ``vectors``, float16 or int8; if it is None, vectors keep their
    type in ``file``. Concept sets are stored in the type ``concepts``, float16 or int8; if it is
    None, concept sets are stored only if the ``rerank`` metric needs them. Raises FeatureFileError
    if concept sets are needed but ``file`` contains no sets.
    """
    head = file.header
    if check_metric(rerank) != "dot":
        concepts = concepts or "float16"
    if concepts is not None:
        _check_concepts(file)
    own = word_fields(codec.words)
    types = _types_of(metadata)
    if own.keys() & types.keys():
        raise BocError(
            f"this code stores words in the metadata field {FIELD!r}; rename your field",
        )
    return Manifest.new(
        head.identity,
        codec.config(),
        codec.arrays(),
        rm=rm,
        dtype=vectors or head.dtype,
        source=source_digest(file, metadata, sets=concepts is not None or codec.reads_concepts),
        rerank=rerank,
        concept_dtype=concepts,
        fields=file.header.types | types | own,
        table_facts=facts_among(metadata),
        usual=usual_cosines(file),
    )


def usual_cosines(source: VectorSource) -> dict[str, float]:
    """Return the manifest entry ``usual``: the number of items, and the typical cosine of two items
    in each modality. Equal sources give equal entries."""
    rng = np.random.default_rng(0)
    usual: dict[str, float] = {"items": sum(map(source.count, MODALITIES))}
    for modality in MODALITIES:
        rows = rng.permutation(source.count(modality))[:SIZE]
        if len(rows):
            vectors = np.concatenate(list(source.sample(modality, np.sort(rows))))
            usual[modality] = usual_cosine(rng.permutation(vectors))
    return usual


def load_index(
    file: VectorSource,
    at: str,
    name: str,
    code: SurrogateCodec | Mapping[str, Array],
    manifest: Manifest,
    metadata: Metadata | None = None,
    *,
    part: str | None = None,
) -> Iterator[int]:
    """Build the index ``name`` at the back end ``at`` from embeddings, and replace any existing
    index of this name.

    ``code`` is a fitted codec. For a copy of an index, ``code`` contains the arrays of the code
    instead, and the stored terms and concept sets are used unchanged. Yields the number of items
    done, including items from an earlier load that was killed. The index is published when the
    iterator is exhausted. ``metadata`` must match ``manifest``. With ``part`` (``I/N``), this
    process is one of N processes and loads every N-th batch; the last process to finish publishes
    the index.
    """
    _check_items(file, metadata)
    codec = None
    arrays: Mapping[str, Array]
    if isinstance(code, SurrogateCodec):
        codec = code
        arrays = code.arrays()
    else:
        arrays = code
    backend = plugins.backend(at)
    mine, every = shard_of(part or "1/1")
    with backend.create(check_name(name), manifest, arrays, part) as writer:

        def lacks(number: int, ids: Callable[[], list[str]]) -> bool:
            return number % every == mine - 1 and not writer.has(ids())

        yield from write_items(writer.add, file, codec, manifest, metadata, lacks)
        writer.commit()


def add_features(
    file: VectorSource,
    at: str,
    name: str,
    metadata: Metadata | None,
) -> Iterator[int]:
    """Add all items of ``file`` to the index ``name``, using its code, and replace items that have
    the same ids.

    Yields the number of items done. Raises EncoderError if the items come from another encoder,
    BocError if the index does not declare their metadata fields, and FeatureFileError if the index
    stores concept sets but ``file`` contains no sets.
    """
    backend = plugins.backend(at)
    with backend.edit(check_name(name)) as editor:
        index = backend.open(name)
        manifest = index.manifest
        codec = SurrogateCodec.restore(index.manifest.codec, index.arrays())
        check_same_encoder(file, manifest)
        check_fields(manifest, metadata)
        _check_items(file, metadata)
        if manifest.concept_dtype is not None:
            _check_concepts(file)
        yield from write_items(editor.put, file, codec, manifest, metadata)
        sets = manifest.concept_dtype is not None or codec.reads_concepts
        editor.commit(
            json_sha256([manifest.source, source_digest(file, metadata, sets=sets)]),
            table_facts=sorted({*manifest.table_facts, *facts_among(metadata)}),
        )


def item_batches(
    file: VectorSource,
    codec: SurrogateCodec | None,
    manifest: Manifest,
) -> Iterator[LazyBatch]:
    """Yield lazy batches of all items of ``file``, with concept sets if the codec or an index with
    this manifest needs them."""
    sets = manifest.concept_dtype is not None or (codec is not None and codec.reads_concepts)
    size = CONCEPT_BATCH if sets else BATCH
    for modality in MODALITIES:
        yield from file.lazy_batches(modality, size, sets=sets)


def write_items(
    put: Callable[[Rows], None],
    file: VectorSource,
    codec: SurrogateCodec | None,
    manifest: Manifest,
    metadata: Metadata | None = None,
    select: Callable[[int, Callable[[], list[str]]], bool] = lambda number, ids: True,
) -> Iterator[int]:
    """Encode all items of ``file`` for this manifest, and call ``put`` with each batch. Yields the
    number of items done.

    ``codec`` computes the terms; if it is None, the stored terms are used. ``select`` receives the
    number of a batch and a function that returns the ids of the batch, and decides whether the
    batch is written. Values in ``metadata`` override values in the file. Fields of the file that
    the index does not declare with the same type are omitted.
    """
    types = file.header.types
    odd = {name for name, kind in types.items() if manifest.fields.get(name) != kind}
    largest = np.finfo(manifest.vector_floats).max
    dtype = manifest.concept_dtype

    def with_fields(item: Item) -> Item:
        fields = {name: value for name, value in item.fields.items() if name not in odd}
        if metadata is not None:
            fields |= metadata.of(item)
        return replace(item, fields=fields)

    def encode(task: tuple[int, Callable[[], Batch] | None]) -> tuple[int, Rows | None]:
        count, read = task
        if read is None:
            return count, None
        batch = read()
        items = batch.items
        embeddings = batch.embeddings
        beyond = (np.abs(embeddings.vectors) > largest).any(axis=1)
        if beyond.any():
            raise FeatureFileError(
                f"the vector of {items[beyond.argmax()].id!r} contains numbers too large "
                f"for {manifest.vector_dtype}, the vector type of this index; "
                "extract the features again with smaller vectors",
            )
        if manifest.fields:
            items = list(map(with_fields, items))
        if codec is None:
            assert batch.stored is not None
            terms = batch.stored.terms
        else:
            # Round the vectors first, so that the terms match the stored vectors.
            if manifest.vector_dtype != file.header.dtype:
                rounded = round_trip(embeddings.vectors, manifest.vector_dtype)
                embeddings = replace(embeddings, vectors=rounded.astype(np.float32, copy=False))
            terms = codec.encode_documents(embeddings)
            items = with_words(items, terms, codec.words)
        sets = None
        if dtype is not None and embeddings.concepts is not None:
            sets = batch.stored and batch.stored.concepts
            if sets is None or sets.values.dtype != np.dtype(dtype):
                sets = store(embeddings.concepts, dtype)
        return count, Rows(items, terms, embeddings.vectors, sets)

    def tasks() -> Iterator[tuple[int, Callable[[], Batch] | None]]:
        for number, (count, ids, read) in enumerate(item_batches(file, codec, manifest)):
            yield count, read if select(number, ids) else None

    done = 0
    for count, rows in ahead(encode, tasks()):
        if rows is not None:
            put(rows)
        done += count
        yield done


def source_digest(
    file: VectorSource,
    metadata: Metadata | None = None,
    *,
    sets: bool = False,
) -> str:
    """Return a digest of the data that an index reads from a file: the items with their vectors,
    the concept sets if ``sets`` is true, and the metadata."""
    parts = [file.header.source, file.contents(sets=sets)]
    if metadata is not None:
        parts.append(metadata.digest)
    return json_sha256(parts)


def _check_concepts(file: VectorSource) -> None:
    for modality in MODALITIES:
        for *_, read in islice(file.lazy_batches(modality, 1, sets=True), 1):
            if read().embeddings.concepts is None:
                raise FeatureFileError(
                    f"{file.path}: contains no concept sets for its {modality} items",
                    "create the file with <boc extract --encoder> and an encoder that has concept "
                    "sets, such as tern, or leave out <--concepts> and <--rerank>",
                )


def check_same_encoder(file: VectorSource, manifest: Manifest) -> None:
    """Raise EncoderError if ``file`` and an index with this manifest have different encoders."""
    ours = file.header.identity
    theirs = manifest.identity
    if ours.digest != theirs.digest:
        raise EncoderError(
            f"{file.path}: encoded by {ours.spec}, but the index by {theirs.spec}; use one encoder",
        )


def facts_among(metadata: Metadata | None) -> list[str]:
    """Return the names of the table fields that replace file facts, sorted."""
    return sorted(_types_of(metadata).keys() & FACTS.keys())


def _types_of(metadata: Metadata | None) -> dict[str, FieldType]:
    return {} if metadata is None else metadata.types


def check_fields(manifest: Manifest, metadata: Metadata | None) -> None:
    """Raise BocError unless the index declares the fields of ``metadata`` with the same types."""
    types = _types_of(metadata)
    odd = [f"{name}:{kind}" for name, kind in types.items() if manifest.fields.get(name) != kind]
    if odd:
        declared = ", ".join(f"{name}:{kind}" for name, kind in manifest.fields.items()) or "none"
        raise BocError(
            f"the index does not declare the metadata fields {', '.join(odd)} (it declares: "
            f"{declared}); rebuild the index, or rename the fields",
        )


def _check_items(file: VectorSource, metadata: Metadata | None) -> None:
    """Raise BocError if no line of ``metadata`` matches an item; warn if only some lines match."""
    if metadata is None:
        return
    items = (item for modality in MODALITIES for item in file.items(modality))
    strange = metadata.strangers(items)
    if len(strange) == len(metadata.rows):
        raise BocError(
            f"no metadata id matches an item (for example {strange[0]!r}); use ids from "
            f"{file.path}",
        )
    if strange:
        note(f"{len(strange)} metadata lines match no item here (for example {strange[0]!r})")
