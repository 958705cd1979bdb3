"""Vectors of others as a feature file, which everything else reads; sparse ones as that of a copied
index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.atomic_files import json_sha256
from boc.codecs import SurrogateCodec
from boc.codecs.given import GivenTerms, with_terms
from boc.errors import SourceError
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import Header
from boc.inputs.vector_files import VectorRows, read_vectors
from boc.manage.stored import header_of
from boc.manifest import Manifest
from boc.types import Batch, Embeddings, Identity, Item, StoredRows
from boc.vectors import unit_rows

BATCH = 4096
SCALE = 100  # of weights that are no whole numbers, as is usual for SPLADE


def write_features(sources: Sequence[Path], out: Path) -> None:
    """Write the vectors of files of ``boc.inputs.vector_files`` to the feature file ``out``.

    Dense vectors get unit length, unless it counts. SourceError if the files do not belong
    together.
    """
    parts = list(map(read_vectors, sources))
    widths = {None if part.names is not None else int(part.rows.shape[1]) for part in parts}
    if len(widths) > 1:
        raise SourceError(
            f"{sources[0]} and the others hold vectors of different kinds or widths; index them "
            "apart",
        )
    items = _items(parts)
    spec = f"vectors:{sources[0].stem}"
    codec = None
    (width,) = widths
    source = json_sha256([[item.id, item.content, item.group] for part in items for item in part])
    header = Header("embeddings", spec, json_sha256(width), width or 1, "float32", source)
    if width is None:
        names = sorted({name for part in parts for name in part.names or ()})
        whole = all((part.rows.data == np.rint(part.rows.data)).all() for part in parts)
        step = GivenTerms.of(names, 1 if whole else SCALE)
        codec = SurrogateCodec([step]).fit(with_terms("image", step.rows([{}])))
        identity = Identity(spec, json_sha256(names), 1)
        manifest = Manifest.new(
            identity,
            codec.config(),
            codec.arrays(),
            rm=1,
            dtype="float16",
            source=source,
        )
        # The same files give the same header, so that a run that was killed continues.
        header = header_of(replace(manifest, created="1970-01-01T00:00:00+00:00"), "float16")
    with FeatureWriter(out, header, arrays=None if codec is None else codec.arrays()) as writer:
        done = 0
        for part, of in zip(parts, items, strict=True):
            for start in range(0, len(of), BATCH):
                some = of[start : start + BATCH]
                rows = part.rows[start : start + BATCH]
                done += len(some)
                if done > writer.done and codec is not None:
                    writer.append(len(some), [_sparse(part, step, rows, some)])
                elif done > writer.done:
                    writer.append(len(some), *_dense(part, start, rows, some))
        writer.finish()


def _items(parts: Sequence[VectorRows]) -> list[list[Item]]:
    ids = [part.ids or list(map(str, range(part.rows.shape[0]))) for part in parts]
    known = [
        key for part, own in zip(parts, ids, strict=True) if part.sentences is None for key in own
    ]
    items = []
    for part, own in zip(parts, ids, strict=True):
        if part.sentences is None:
            items.append([Item(key, "image", key, key) for key in own])
            continue
        owners = part.owners
        each = len(own) // max(1, len(known))
        if owners is None and known and len(own) != each * len(known):
            raise SourceError(
                f"{part.path}: {len(own)} sentences of {len(known)} pictures, and nobody says of "
                "which; write the id "
                "of its picture and a tab before each sentence",
            )
        owners = owners or ([known[row // each] for row in range(len(own))] if known else own)
        keys = part.ids or [f"{owner}#{row % max(1, each)}" for row, owner in enumerate(owners)]
        triples = zip(keys, part.sentences, owners, strict=True)
        items.append([Item(key, "text", sentence, owner) for key, sentence, owner in triples])
    key, count = Counter(item.id for each in items for item in each).most_common(1)[0]
    if count > 1:
        raise SourceError(
            f"{count} vectors have the id {key!r}; write ids beside each file: X.ids.txt for X.npy",
        )
    return items


def _dense(
    part: VectorRows,
    start: int,
    rows: NDArray[Any],
    items: list[Item],
) -> tuple[list[Batch], list[tuple[str, str]]]:
    """Return the batch of the rows that can be used, and ids and reasons of the others."""
    vectors = np.asarray(rows, np.float32)
    usable = np.isfinite(vectors).all(axis=1) & (vectors != 0).any(axis=1)
    reason = f"of {part.path} is zero or not finite"
    failed = [(items[row].id, f"row {start + row} {reason}") for row in np.flatnonzero(~usable)]
    vectors = vectors[usable] if part.exact else unit_rows(vectors[usable])
    chosen = [items[row] for row in np.flatnonzero(usable)]
    return [Batch(chosen, Embeddings(items[0].modality, vectors))], failed


def _sparse(part: VectorRows, step: GivenTerms, rows: Any, items: list[Item]) -> Batch:
    columns = np.array([step.columns[name] for name in part.names or ()], np.int32)
    terms = step.terms(rows.data, columns[rows.indices], rows.indptr)
    return Batch(items, with_terms(items[0].modality, terms), StoredRows(terms))
