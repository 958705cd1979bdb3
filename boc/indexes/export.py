"""Export an index to a feature file, from which ``boc index`` makes the same index, without encoder and pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_in
from itertools import islice
from pathlib import Path

import numpy as np

from boc import plugins
from boc.errors import BocError
from boc.indexes.build import PLACE, Progress
from boc.indexes.copy import Rows, manifest_of, own_codec, sample, stored_rows
from boc.indexes.load import BATCH, CONCEPT_BATCH
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import SUFFIXES, FeatureFile, Header, is_feature_file
from boc.inputs.stored_terms import concepts_of
from boc.manifest import Manifest
from boc.outputs import check_output
from boc.plugins import Index, check_name
from boc.types import MODALITIES, Batch, Embeddings, Item, Modality, Ragged, StoredRows

COMPARED = 200  # items whose rows are compared after an export


@dataclass(frozen=True)
class ExportReport:
    """The result of an export: numbers of pictures and captions, and of the items that were ``compared`` with the index
    row by row."""

    images: int
    texts: int
    compared: int


def export_index(
    name: str,
    path: Path | str,
    *,
    at: str = PLACE,
    replace: bool = False,
    progress: Progress = lambda label, done, total: None,
) -> ExportReport:
    """Write the index ``name`` at ``at`` to the feature file ``path``: items with metadata, vectors, concept sets and
    terms, and the code. After a kill the same call continues where it stopped.

    ``boc index`` makes the same index of the file, with the same hits and scores, or another one with ``--code``. The
    file appears when it is complete; then a sample of its rows is compared with the index. ``replace`` replaces a
    feature file. BocError if anything else is there, or if the index changes meanwhile.
    """
    path, backend = Path(path), plugins.backend(at)
    if path.suffix.lower() not in SUFFIXES:
        raise BocError(f"{path}: feature files end in .h5; choose a name that does")
    if path.exists() and not replace and is_feature_file(path):
        raise BocError(f"{path} is there already; add --replace, or choose another name")
    check_output(path, is_feature_file)
    index = backend.open(check_name(name))
    codec = own_codec(index)
    manifest, arrays = manifest_of(index, codec)
    header = _header(replace_in(manifest, created=index.manifest.created))
    total = sum(index.manifest.items.values())
    with FeatureWriter(path, header, arrays=arrays) as writer:
        for items in _batches(index, writer.done):
            rows = stored_rows(index, items, codec)
            writer.append(len(items), [_batch(rows.items, rows, modality) for modality in MODALITIES])
            progress("exporting", writer.done, total)
        if backend.open(name).manifest != index.manifest or writer.done != total:
            raise BocError(f"{name} changed while it was exported; delete {writer.folder} and export it again")
        writer.finish()
    return _compared(index, path, name)


def _header(manifest: Manifest) -> Header:
    """The header of the file, which differs for indexes of different contents, so that two exports never mix."""
    identity = manifest.identity
    wide = "float32" in (manifest.vector_floats, {"int8": "float32"}.get(str(manifest.concept_dtype)))
    return Header(
        "embeddings",
        identity.spec,
        identity.digest,
        identity.dim,
        "float32" if wide else "float16",
        manifest.source,
        fields=json.dumps(manifest.fields, sort_keys=True) if manifest.fields else "",
        index=manifest.to_json(),
    )


def _batches(index: Index, done: int) -> Iterator[list[Item]]:
    """All items behind the first ``done`` by id, in batches."""
    items = islice(index.items(), done, None)
    while batch := list(islice(items, BATCH if index.manifest.concept_dtype is None else CONCEPT_BATCH)):
        yield batch


def _batch(items: Sequence[Item], rows: Rows, modality: Modality) -> Batch:
    """The items of one modality with all that is stored of them."""
    of = [row for row, item in enumerate(items) if item.modality == modality]
    sets, scales = None, None
    if rows.concepts is not None:
        sets = rows.concepts.ragged().take(of)
        if rows.concepts.scales is not None:
            scales = Ragged(rows.concepts.scales[:, None], rows.concepts.offsets).take(of).values[:, 0]
    embeddings = Embeddings(modality, rows.vectors[of], sets)
    return Batch([items[row] for row in of], embeddings, StoredRows(rows.terms[of], scales))


def _compared(index: Index, path: Path, name: str) -> ExportReport:
    """Compare numbers of items and a sample of rows of a finished file with the index. BocError names what differs."""
    with FeatureFile(path) as file:
        counts = {modality: file.count(modality) for modality in MODALITIES}
        places = {key: (modality, row) for modality in MODALITIES for row, key in enumerate(file.ids(modality))}
        chosen = sample(index, COMPARED)
        wrong = [] if counts == index.manifest.items else [f"{counts} items, not {index.manifest.items}"]
        wrong += [f"other rows of {item.id!r}" for item in chosen if not _same(index, file, item, places)][:1]
    if wrong:
        raise BocError(f"{path} differs from {name}: {wrong[0]}; export it again with --replace")
    return ExportReport(counts["image"], counts["text"], len(chosen))


def _same(index: Index, file: FeatureFile, item: Item, places: Mapping[str, tuple[Modality, int]]) -> bool:
    """Whether the row of an item is that of the index. Terms of rounded vectors were encoded again, and may differ."""
    modality, row = places.get(item.id, (item.modality, file.count(item.modality)))
    batch = file.batch(modality, row, row + 1)
    if batch.items != [item] or batch.stored is None:
        return False
    rows = stored_rows(index, [item])
    same = np.array_equal(batch.embeddings.vectors, rows.vectors)
    if index.exact_vectors:
        same = same and (batch.stored.terms != rows.terms).nnz == 0
    if rows.concepts is not None and same:
        assert batch.embeddings.concepts is not None
        sets = concepts_of(batch.embeddings.concepts, batch.stored)
        same = np.array_equal(sets.values, rows.concepts.values) and np.array_equal(sets.offsets, rows.concepts.offsets)
    return same
