"""Add single pictures to an index, from files or from memory. Pictures from memory have no path in
the index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from boc.errors import BocError, SourceError
from boc.inputs.captions import value_texts
from boc.inputs.features import FeatureFile
from boc.inputs.images import Picture
from boc.inputs.metadata import Metadata, keep_values, no_value
from boc.inputs.sources import Source
from boc.inputs.text_lines import check_text
from boc.manage.build import LoadReport, add_items
from boc.manage.index_sources import encoded
from boc.manage.load import check_fields
from boc.paths import path_text
from boc.progress import Progress
from boc.search.searcher import Searcher
from boc.types import Item


def add_pictures(
    searcher: Searcher,
    name: str,
    at: str,
    pictures: Sequence[Picture],
    *,
    ids: Sequence[str] | None,
    fields: Mapping[str, Any] | None,
    metadata: Metadata | Path | str | None,
    ocr: bool,
    progress: Progress,
) -> LoadReport:
    """Add pictures to the index ``name``, which ``searcher`` has open, using its encoder.

    ``ids`` are the ids of the pictures; the default ids are the file names. The content of a
    picture in memory is its id. Each picture gets the metadata ``fields``. Pictures that cannot be
    read are listed in the report. Raises SourceError if no picture can be read, and BocError for
    invalid ids or fields.
    """
    if ids is None:
        keys = [path_text(Path(each).name) for each in pictures if isinstance(each, (str, Path))]
    else:
        keys = list(ids)
    if len(keys) != len(pictures) or not all(isinstance(key, str) and key for key in keys):
        raise BocError(
            f"{len(pictures)} pictures need the same number of ids, got {ids!r}; give id= for one "
            "picture, or ids= for several; only files have default ids",
        )
    twice, count = Counter(keys).most_common(1)[0]
    if count > 1:
        raise BocError(f"{count} pictures have the id {twice!r}; give unique ids in ids=")
    if fault := check_text("".join(keys)):
        raise BocError(f"ids: {fault}")
    manifest = searcher.index.manifest
    fields = fields or {}
    types = {field: manifest.fields.get(field, "keyword") for field in fields}
    check_fields(manifest, Metadata(types, {}))
    row: dict[str, Any] = {}
    for field, value in fields.items():
        try:
            keep_values(field, value_texts(value), types[field], row)
        except ValueError:
            raise no_value(field, types[field], value) from None
    items = []
    in_memory = {}
    for key, picture in zip(keys, pictures, strict=True):
        content = key
        if isinstance(picture, (str, Path)):
            content = path_text(str(Path(picture).expanduser().resolve()))
        else:
            in_memory[key] = picture
        items.append(Item(key, "image", content, key))
    with encoded(
        name,
        at,
        Source(items),
        searcher.encoder,
        progress,
        concepts=searcher.codec.reads_concepts or manifest.concept_dtype is not None,
        ocr=ocr,
        pictures=in_memory,
    ) as path:
        with FeatureFile(path) as file:
            usable = file.ids("image")
            reasons = [reason for _, reason in file.failures]
        if not usable:
            raise SourceError(f"no picture can be used ({'; '.join(reasons[:3])})")
        if row:
            metadata = Metadata(types, dict.fromkeys(usable, row))
        return add_items(name, path, at=at, metadata=metadata, progress=progress)
