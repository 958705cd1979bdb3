"""Pictures with their captions and metadata, as tables, other programs and archives have them.

=================== =============================================================================================
``.csv``            columns ``image,caption``; others are left out
``.jsonl``          an object a line; ``.ndjson`` too
``.parquet``        the same as columns
``.json``           COCO's ``captions_*.json``, Karpathy's ``dataset_*.json``, or a list of objects
``.tar``            shards of WebDataset and img2dataset: of a picture ``KEY.jpg`` the captions in ``KEY.txt``, or in
                    ``KEY.json`` with its metadata, and the class in ``KEY.cls``
=================== =============================================================================================

An object has the picture as ``image``, ``path`` or ``file_name``, its captions, if any, as ``caption``, ``captions`` or
``text``, and metadata, whose names may declare a type, such as ``taken:date``. What cannot be used is left out, with a
reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, cast

from boc.errors import SourceError, check_system
from boc.foreign import parse_json
from boc.inputs.archives import members, opener
from boc.inputs.file_facts import FACTS
from boc.inputs.metadata import TYPES, parse_value
from boc.inputs.text_lines import BOM, check_text, table_rows, text_lines
from boc.paths import nfc
from boc.types import FieldType

IMAGE, CAPTION = ("image", "path", "file_name"), ("caption", "captions", "text")
LONGEST = 1 << 20  # bytes of a caption, or an object, in an archive
BATCH = 4096  # rows of a Parquet file read at a time
# The type of a field by those of its values, the first that fits.
KINDS: tuple[tuple[set[type], FieldType], ...] = (
    ({bool}, "boolean"), ({int}, "integer"), ({int, float}, "float"), ({date, datetime}, "date"),
)  # fmt: skip


@dataclass
class Captions:
    """The ``captions`` and metadata ``fields`` of pictures by their names, in order, and what was left out."""

    captions: dict[str, list[str]] = field(default_factory=dict)
    fields: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, where: str, image: object, captions: object, fields: Mapping[str, Any]) -> None:
        """Add captions to a picture; the first value of a field stays."""
        texts = [captions] if isinstance(captions, str) else captions or []
        if not isinstance(image, str) or not image:
            self.faults.append(f"{where}: no picture, which must be text under {', '.join(IMAGE)}")
        elif not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            self.faults.append(f"{where}: the caption is no text ({texts!r:.60})")
        elif fault := check_text([image, *texts]):
            self.faults.append(f"{where}: {fault}")
        else:
            self.captions.setdefault(image, []).extend(map(nfc, texts))
            self.fields[image] = {**fields, **self.fields.get(image, {})}

    def add_object(self, where: str, value: object, image: str | None = None) -> None:
        """Add the picture, captions and metadata in an object; the picture is ``image`` if that is given."""
        if not isinstance(value, dict):
            self.faults.append(f"{where}: no object ({value!r:.60})")
            return
        captions = next((value[key] for key in CAPTION if value.get(key)), None)
        rest = {key: each for key, each in value.items() if key not in (*CAPTION, *(() if image else IMAGE))}
        self.add(where, image or next(filter(None, map(value.get, IMAGE)), None), captions, rest)

    def typed(self) -> tuple[dict[str, FieldType], dict[str, dict[str, Any]]]:
        """Return the types of the metadata, and the values of each picture with them.

        Names are written as those of fields. The facts of files are read from these.
        """
        found: dict[str, set[type]] = {}
        for name, value in chain.from_iterable(row.items() for row in self.fields.values()):
            found.setdefault(name, set()).update(map(type, _values(value)))
        types: dict[str, FieldType] = {}
        columns: dict[str, str] = {}
        for column, kinds in found.items():
            name, _, kind = column.partition(":")
            name = re.sub(r"[^a-z0-9]+", "_", name.lower()).lstrip("_0123456789")
            if kinds and name and name not in types and name not in FACTS:
                known = next((of for each, of in KINDS if kinds <= each), "keyword")
                types[name], columns[column] = cast(FieldType, kind if kind in TYPES else known), name
        rows: dict[str, dict[str, Any]] = {}
        for image, row in self.fields.items():
            fields = rows[image] = {}
            for column, name in columns.items():
                try:
                    values = [parse_value(_text(value), types[name]) for value in _values(row.get(column))]
                except ValueError:
                    self.faults.append(f"{image}: {name} is of type {types[name]}, {row[column]!r:.60} is not")
                    continue
                if values:
                    fields[name] = values if len(values) > 1 else values[0]
        return types, rows


def _values(value: object) -> list[Any]:
    """Return one value or several without those that are empty, or no values."""
    several = value if isinstance(value, list) else [value]
    return [one for one in several if one not in (None, "") and not isinstance(one, (dict, list, bytes))]


def _text(value: object) -> str:
    return nfc(value) if isinstance(value, str) else str(value).lower()


def read_captions(path: Path) -> Captions:
    """Read a file of one of ``READERS``. SourceError if it cannot be read."""
    captions = Captions()
    try:
        READERS[path.suffix.lower()](path, captions)
    except OSError as error:
        check_system(path, error, SourceError)
        raise SourceError(f"{path}: cannot be read ({error.strerror or error}); give another file") from error
    return captions


def _csv(path: Path, into: Captions) -> None:
    rows = table_rows(path, into.faults)
    header = next(rows, ("", []))[1]
    if not {"image", "caption"} <= set(header):
        raise SourceError(
            f"{path}: the first line must name the columns image,caption; found {header or into.faults[:1]}"
        )
    image, caption = header.index("image"), header.index("caption")
    for where, cells in rows:
        if len(cells) > len(header):
            into.faults.append(f"{where}: more cells than columns; put a caption with commas in quotes")
        elif len(cells) <= max(image, caption) or not cells[image]:
            into.faults.append(f"{where}: image and caption must both be there")
        else:
            into.add(where, cells[image], cells[caption], {})


def _lines(path: Path, into: Captions) -> None:
    for number, line in enumerate(text_lines(path.read_bytes(), str(path), into.faults), 1):
        if line.strip():
            try:
                into.add_object(f"line {number}", parse_json(line))
            except ValueError as error:
                into.faults.append(f"line {number}: no JSON ({error})")


def _parquet(path: Path, into: Captions) -> None:
    try:
        import pyarrow.parquet as parquet
        from pyarrow import ArrowException
    except ModuleNotFoundError as error:
        raise SourceError(f"{path}: needs what reads Parquet; pip install 'boc[parquet]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            rows = chain.from_iterable(batch.to_pylist() for batch in file.iter_batches(BATCH))
            for number, row in enumerate(rows, 1):
                into.add_object(f"row {number}", row)
    except (ArrowException, ValueError) as error:
        if not into.captions:
            raise SourceError(f"{path}: no Parquet file that can be read ({error}); fetch it again") from error
        into.faults.append(f"the rows from there on are damaged ({error})")


def _json(path: Path, into: Captions) -> None:
    try:
        content = parse_json(path.read_bytes().removeprefix(BOM))
    except ValueError as error:
        raise SourceError(f"{path}: no JSON ({error}); fetch it again") from error
    whole = content if isinstance(content, dict) else {"images": content}
    images, sentences = whole.get("images"), whole.get("annotations")
    if not isinstance(images, list):
        raise SourceError(f"{path}: no list of images; give captions of COCO or Karpathy, or a list of objects")
    names: dict[str, Any] = {}
    for place, each in enumerate(images):
        if isinstance(each, dict) and "filename" in each:
            raw = [text.get("raw") if isinstance(text, dict) else text for text in each.get("sentences") or []]
            name = "/".join(filter(None, (str(each.get("filepath") or ""), str(each["filename"]))))
            into.add(f"image {place}", name, raw, {"split": each.get("split")})
        elif isinstance(each, dict) and isinstance(sentences, list):
            names[str(each.get("id"))] = each.get("file_name")
            into.add(f"image {place}", each.get("file_name"), [], {})
        else:
            into.add_object(f"image {place}", each)
    for place, each in enumerate(sentences if names and isinstance(sentences, list) else []):
        of = each if isinstance(each, dict) else {}
        into.add(f"annotation {place}", names.get(str(of.get("image_id"))), of.get("caption"), {})


def add_captions(archive: Path, ids: Mapping[str, str], into: Captions) -> None:
    """Add the captions and metadata that an archive has of its pictures, whose ``ids`` are given by their names.

    Of several pictures of one key, as WebDataset has them, they are of the first.
    """
    owners: dict[str, str] = {}
    for name, id in ids.items():
        owners.setdefault(_key(name), id)
    with open(archive, "rb", opener=opener) as file:
        places, faults = members(file)
        into.faults += [f"{archive.name}: {fault}" for fault in faults]
        for name, (offset, size) in places.items():
            suffix, owner, where = PurePosixPath(name).suffix.lower(), owners.get(_key(name)), f"{archive.name}/{name}"
            if suffix not in (".txt", ".json", ".cls"):
                continue
            if owner is None or size > LONGEST:
                into.faults.append(f"{where}: {'of no picture here' if owner is None else 'too long'}")
                continue
            try:
                data = os.pread(file.fileno(), size, offset)
                if suffix == ".json":
                    into.add_object(where, parse_json(data), owner)
                elif suffix == ".txt":
                    into.add(where, owner, data.decode().strip(), {})
                else:
                    into.add(where, owner, [], {"cls": data.decode().strip()})
            except ValueError as error:
                into.faults.append(f"{where}: cannot be read ({error})")
    for id in ids.values():
        into.captions[id] = list(dict.fromkeys(into.captions.get(id, ())))  # img2dataset writes each twice


def _key(name: str) -> str:
    """Return the path up to the first dot of the name."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(".")[0]


READERS: dict[str, Callable[[Path, Captions], None]] = {
    ".csv": _csv,
    ".jsonl": _lines,
    ".ndjson": _lines,
    ".parquet": _parquet,
    ".json": _json,
}
