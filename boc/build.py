"""From feature files to indexes: learn a code, load, append, delete."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boc import plugins
from boc.codecs import SurrogateCodec
from boc.errors import BocError, BocWarning, EncoderError, FeatureFileError
from boc.garbage import collected_rarely
from boc.inputs.features import FeatureFile, FeatureFiles, embeddings
from boc.inputs.metadata import Metadata
from boc.manifest import Manifest
from boc.prefetch import ahead
from boc.rerank.dot import check_metric
from boc.rerank.storage import store
from boc.types import (
    MODALITIES,
    Embeddings,
    Item,
    Modality,
    Rows,
    StoredConcepts,
    TermMatrix,
)

if TYPE_CHECKING:
    from boc.plugins import Index
from boc.plugins import check_name

BATCH = 4096  # items encoded and added at a time


CONCEPT_BATCH = 256  # the same where they come with their concept sets, each some dozen times a vector


FIT_SAMPLE = 100_000


DEFAULT_RM = 10.0


FOUND = 1000  # ids looked up at a time


_Encoded: TypeAlias = tuple[list[Item], TermMatrix, NDArray[np.float32], StoredConcepts | None]
"""What an index takes of some rows: items, term frequencies, vectors and concept sets."""


def fit_code(file: FeatureFile | FeatureFiles, codec: SurrogateCodec) -> SurrogateCodec:
    """Fit ``codec`` on vectors of an embeddings file: 100,000 of each modality, or as many as its steps want of all,
    evenly spread."""
    counts = {modality: file.count(modality) for modality in MODALITIES}
    total = sum(counts.values())
    wanted = max((step.prepare(total) for step in codec.steps if not step.frozen), default=0)
    samples = []
    for modality, count in counts.items():
        if count:
            step = math.ceil(count / max(FIT_SAMPLE, math.ceil(wanted * count / total)))
            samples.append(Embeddings(modality, file.sample(modality, step)))
    if not samples:
        raise FeatureFileError(f"{file.path}: holds no items; there is nothing to index")
    try:
        return codec.fit(*samples)
    except ValueError as error:
        raise BocError(f"this code cannot be made: {error}") from error


def new_manifest(
    file: FeatureFile | FeatureFiles,
    codec: SurrogateCodec,
    rm: float = DEFAULT_RM,
    *,
    rerank: str = "dot",
    concepts: str | None = None,
    metadata: Metadata | None = None,
) -> Manifest:
    """The manifest of an index of all items of ``file`` under a fitted ``codec``, with their ``metadata``.

    ``concepts`` is the type that concept sets are stored as, float16 or int8; None stores none, unless the ``rerank``
    metric needs them. FeatureFileError if ``file`` has none to store.
    """
    head = file.header
    if check_metric(rerank) != "dot":
        concepts = concepts or "float16"
    if concepts is not None:
        _check_concepts(file)
    return Manifest.new(
        head.identity,
        codec.config(),
        codec.arrays(),
        rm=rm,
        dtype=head.dtype,
        source=_source(head.source, metadata),
        rerank=rerank,
        concept_dtype=concepts,
        fields=None if metadata is None else metadata.types,
    )


def build_index(
    file: FeatureFile | FeatureFiles,
    at: str,
    name: str,
    codec: SurrogateCodec,
    manifest: Manifest,
    metadata: Metadata | None = None,
) -> Iterator[int]:
    """Make index ``name`` at back end ``at`` from embeddings and a fitted codec, in place of an older one.

    Yields the number of items added, or left there by an earlier load that was killed. Nobody sees the index before
    the iterator is exhausted. ``metadata`` must be what ``manifest`` was made with.
    """
    _check_items(file, metadata)
    with collected_rarely(), plugins.backend(at).create(check_name(name), manifest, codec.arrays()) as writer:
        done = 0
        for count, batch in _encoding(file, codec, manifest, metadata, known=writer.has):
            if batch is not None:
                writer.add(*batch)
            done += count
            yield done
        writer.commit()


def append(file: FeatureFile | FeatureFiles, at: str, name: str, metadata: Metadata | None = None) -> Iterator[int]:
    """Put all items of ``file`` into index ``name``, under its own code, in place of items of the same ids.

    Yields the number of items put. EncoderError if another encoder made them; BocError if the index declares no such
    metadata; FeatureFileError if it holds concept sets and ``file`` has none.
    """
    backend = plugins.backend(at)
    with collected_rarely(), backend.edit(check_name(name)) as editor:
        index = backend.open(name)
        manifest, codec = index.manifest, SurrogateCodec.restore(index.manifest.codec, index.arrays())
        _check_same_encoder(file, manifest)
        _check_fields(manifest, metadata)
        _check_items(file, metadata)
        if manifest.concept_dtype is not None:
            _check_concepts(file)
        done = 0
        for count, batch in _encoding(file, codec, manifest, metadata):
            if batch is not None:
                editor.put(*batch)
            done += count
            yield done
        editor.commit(_digest(manifest.source, _source(file.header.source, metadata)))


def delete(at: str, name: str, ids: Sequence[str]) -> tuple[int, list[str]]:
    """Remove items from index ``name``: how many there were, and the ids that it does not know.

    BackendError if none would be left.
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


def _batches(
    file: FeatureFile | FeatureFiles, codec: SurrogateCodec, manifest: Manifest
) -> Iterator[tuple[Rows, Modality]]:
    sets = manifest.concept_dtype is not None or codec.reads_concepts
    for modality in MODALITIES:
        for rows in file.batches(modality, CONCEPT_BATCH if sets else BATCH, sets=sets):
            yield rows, modality


def _encoding(
    file: FeatureFile | FeatureFiles,
    codec: SurrogateCodec,
    manifest: Manifest,
    metadata: Metadata | None,
    known: Callable[[list[str]], bool] = lambda ids: False,
) -> Iterator[tuple[int, _Encoded | None]]:
    """Of each batch of items how many they are, and what an index takes of them; None of those that are ``known``."""

    def encoded(batch: tuple[Rows, Modality, bool]) -> tuple[int, _Encoded | None]:
        rows, modality, there = batch
        return len(rows.items), None if there else _encoded(rows, modality, codec, manifest, metadata)

    batches = _batches(file, codec, manifest)
    yield from ahead(encoded, ((rows, modality, known([item.id for item in rows.items])) for rows, modality in batches))


def _encoded(
    rows: Rows, modality: Modality, codec: SurrogateCodec, manifest: Manifest, metadata: Metadata | None
) -> _Encoded:
    encoded = embeddings(rows, modality)
    dtype = manifest.concept_dtype
    sets = None if dtype is None or encoded.concepts is None else store(encoded.concepts, dtype)
    items = rows.items if metadata is None else [replace(item, fields=metadata.of(item)) for item in rows.items]
    return items, codec.encode_documents(encoded), encoded.vectors, sets


def _source(items: str, metadata: Metadata | None) -> str:
    """Digest of a list of items with its metadata, from that of the list."""
    return items if metadata is None else _digest(items, metadata.digest)


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _check_concepts(file: FeatureFile | FeatureFiles) -> None:
    for modality in MODALITIES:
        rows = next(file.batches(modality, 1), None)
        if rows is not None and "concepts" not in rows.ragged:
            raise FeatureFileError(
                f"{file.path}: holds no concept sets of its {modality} items; make it with boc extract --encoder "
                "(an encoder that has them, such as tern), or leave out --concepts and --rerank"
            )


def _check_same_encoder(file: FeatureFile | FeatureFiles, manifest: Manifest) -> None:
    found, wanted = file.header.identity, manifest.identity
    if found.digest != wanted.digest:
        raise EncoderError(f"{file.path}: made by {found.spec}, the index by {wanted.spec}; use the same encoder")


def _check_fields(manifest: Manifest, metadata: Metadata | None) -> None:
    given = {} if metadata is None else metadata.types
    odd = [f"{name}:{kind}" for name, kind in given.items() if manifest.fields.get(name) != kind]
    if odd:
        there = ", ".join(f"{name}:{kind}" for name, kind in manifest.fields.items()) or "none"
        raise BocError(
            f"the index has no metadata fields {', '.join(odd)} (it has: {there}); make it anew, or rename them"
        )


def _check_items(file: FeatureFile | FeatureFiles, metadata: Metadata | None) -> None:
    """BocError if no line of ``metadata`` is of an item, a notice if some are of none."""
    if metadata is None:
        return
    files = file.files if isinstance(file, FeatureFiles) else [file]
    items = (
        item
        for part in files
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
    """Those of some ids that are of no item."""
    for start in range(0, len(ids), FOUND):
        asked = list(ids[start : start + FOUND])
        while asked:
            try:
                index.find(asked)
                break
            except KeyError as error:
                asked.remove(error.args[0])
                yield error.args[0]
