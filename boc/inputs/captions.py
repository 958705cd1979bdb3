"""Read pictures with captions and metadata from tables and archives, including files that other
programs wrote.

A ``.csv`` or ``.tsv`` file contains the columns ``image`` and ``caption``. A line of a ``.jsonl``
file, or a row of a ``.parquet`` file, contains the picture as ``image``, ``path`` or ``file_name``
and optional captions as ``caption``, ``captions`` or ``text``. All other entries are metadata, and
their names may declare a type, as in ``taken:date``. In a ``.tar`` archive (WebDataset,
img2dataset), the captions of ``KEY.jpg`` are in ``KEY.txt``, or in ``KEY.json`` together with the
metadata, and its class is in ``KEY.cls``. Entries that cannot be used are skipped, and the reasons
are reported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, cast

from boc.errors import SourceError, check_system, leave_out, needing
from boc.foreign import parse_json
from boc.inputs.archives import members, opener
from boc.inputs.file_facts import FACTS
from boc.inputs.metadata import TYPES, keep_values
from boc.inputs.spreadsheets import open_table
from boc.inputs.text_lines import check_text, json_lines
from boc.paths import nfc, path_on_disk, path_text
from boc.types import FieldType, Item

Objects: TypeAlias = Iterator[tuple[str, Any]]
"""Pairs of a place in the file, such as "line 3", and a JSON value."""

ADVICE = (
    "give a folder of pictures, shards (.tar), a table of captions (.csv .jsonl "
    ".parquet), or features (.h5)"
)
IMAGE = ("image", "path", "file_name")
CAPTION = ("caption", "captions", "text")
LONGEST = 1 << 20  # maximum size of a caption or object in an archive, in bytes
BATCH = 4096  # rows of a Parquet file read at a time
# The types of a field's values determine the type of the field. The first match is used.
KINDS: tuple[tuple[set[type], FieldType], ...] = (
    ({bool}, "boolean"),
    ({int}, "integer"),
    ({int, float}, "float"),
    ({date, datetime}, "date"),
)


@dataclass
class CaptionTable:
    """``captions`` and metadata ``fields``, keyed by picture name, in their original
    order. ``faults`` contains the reasons why entries were skipped."""

    captions: dict[str, list[str]] = field(default_factory=dict)
    fields: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, where: str, value: object, image: str | None = None) -> None:
        """Add the captions and metadata in a JSON object to the picture that the object names, or
        to ``image``. If a field has several values, the first value is kept."""
        if not isinstance(value, dict):
            self.faults.append(f"{where}: not a JSON object ({value!r:.60})")
            return
        name = image or next(filter(None, map(value.get, IMAGE)), None)
        texts: Any = next((value[key] for key in CAPTION if value.get(key)), [])
        if not isinstance(name, str):
            self.faults.append(f"{where}: no picture named as text under {', '.join(IMAGE)}")
        elif fault := check_text(name):
            self.faults.append(f"{where}: {fault}")
        else:
            # An invalid caption is skipped, but its picture is kept.
            for text in texts if isinstance(texts, list) else [texts]:
                if not isinstance(text, str):
                    self.faults.append(f"{where}: the caption is not text ({text!r:.60})")
                elif fault := check_text(text):
                    self.faults.append(f"{where}: {fault}")
                else:
                    self.captions.setdefault(name, []).append(nfc(text))
            self.captions.setdefault(name, [])
            own = CAPTION if image else (*CAPTION, *IMAGE)
            rest = {key: each for key, each in value.items() if key not in own}
            self.fields[name] = {**rest, **self.fields.get(name, {})}

    def add_archive(self, archive: Path, ids: Mapping[str, str]) -> None:
        """Add the captions and metadata of the pictures in an archive. ``ids`` maps the names of
        the pictures to ids.

        If several pictures have the same key, as is possible in WebDataset, the captions and
        metadata are assigned to the first picture.
        """

        def key(name: str) -> str:
            """Return the path up to the first dot in the file name."""
            folder, slash, last = name.rpartition("/")
            return folder + slash + last.partition(".")[0]

        owners: dict[str, str] = {}
        for name, id in ids.items():
            owners.setdefault(key(name), id)
        with open(archive, "rb", opener=opener) as file:
            places, faults = members(file)
            self.faults += [f"{archive.name}: {fault}" for fault in faults]
            for name, (offset, size) in places.items():
                suffix = PurePosixPath(name).suffix.lower()
                if suffix not in (".txt", ".json", ".cls"):
                    continue
                owner = owners.get(key(name))
                where = f"{archive.name}/{name}"
                if owner is None or size > LONGEST:
                    reason = "no picture belongs to it" if owner is None else "too long"
                    self.faults.append(f"{where}: {reason}")
                    continue
                try:
                    data = os.pread(file.fileno(), size, offset)
                    if suffix == ".json":
                        self.add(where, parse_json(data), owner)
                    else:
                        entry = {".txt": "caption", ".cls": "cls"}[suffix]
                        self.add(where, {entry: data.decode().strip()}, owner)
                except ValueError as error:
                    self.faults.append(f"{where}: cannot be read ({error})")
        # img2dataset writes each caption twice.
        for id in ids.values():
            self.captions[id] = list(dict.fromkeys(self.captions.get(id, ())))

    def join(
        self,
        path: Path,
        pictures: list[Item],
    ) -> tuple[list[Item], dict[str, FieldType]]:
        """Return ``pictures`` with their captions and metadata, and the types of the metadata. Warn
        about entries of ``path`` that were skipped."""
        types, rows = self._typed_fields()
        leave_out(str(path), self.faults)
        items = list(pictures)
        if types:
            items = [replace(item, fields=rows.get(item.id, {})) for item in pictures]
        if self.captions:
            items += [
                Item(f"{item.id}#{number}", "text", caption, item.id, item.fields)
                for item in items
                for number, caption in enumerate(self.captions.get(item.id, ()))
            ]
        return items, types

    def _typed_fields(self) -> tuple[dict[str, FieldType], dict[str, dict[str, Any]]]:
        """Return the types of the metadata, and the typed values of each picture.

        Names are converted to valid field names. Fields that are file facts are skipped, because
        boc reads file facts from the files.
        """
        found: dict[str, set[type]] = {}
        for name, value in chain.from_iterable(row.items() for row in self.fields.values()):
            found.setdefault(name, set()).update(map(type, _values(value)))
        types = {}
        columns = {}
        for column, kinds in found.items():
            name, _, kind = column.partition(":")
            name = re.sub(r"[^a-z0-9]+", "_", name.lower()).lstrip("_0123456789")
            if kinds and name and name not in types and name not in FACTS:
                known = next((of for each, of in KINDS if kinds <= each), "keyword")
                types[name] = cast(FieldType, kind if kind in TYPES else known)
                columns[column] = name
        rows: dict[str, dict[str, Any]] = {}
        for image, row in self.fields.items():
            fields = rows[image] = {}
            for column, name in columns.items():
                try:
                    keep_values(name, value_texts(row.get(column)), types[name], fields)
                except ValueError:
                    self.faults.append(
                        f"{image}: {name} is of type {types[name]}, {row[column]!r:.60} is not",
                    )
        return types, rows


def _values(value: object) -> list[Any]:
    """Return one or more values as a list, without empty values and objects."""
    several = value if isinstance(value, (list, tuple)) else [value]
    return [
        one for one in several if one not in (None, "") and not isinstance(one, (dict, list, bytes))
    ]


def value_texts(value: object) -> Iterator[str]:
    """Yield one or more values in the form of table cells. Raises ValueError for text that cannot
    be stored."""
    for one in _values(value):
        yield nfc(one.encode().decode()) if isinstance(one, str) else str(one).lower()


def read_table(path: Path, images: Path | None) -> tuple[list[Item], dict[str, FieldType]]:
    """Return the pictures and captions in a file with a format of ``READERS``, and the types of
    their metadata.

    ``images`` is the folder with the pictures; default: the folder of the file, or its subfolder
    ``images``. Raises SourceError if the file cannot be read.
    """
    table = CaptionTable()
    for where, value in READERS[path.suffix.lower()](path, table.faults):
        table.add(where, value)
    names = list(table.captions)
    some_use = any(table.captions.values()) or any(table.fields.values())
    if not names or (table.faults and not some_use):
        reason = f" that can be read ({table.faults[0]})" if table.faults else ""
        raise SourceError(f"{path}: no rows{reason}; {ADVICE}")
    # The first folder that contains any of the pictures is used for all of them.
    folders = [images] if images else [path.parent, path.parent / "images"]
    pairs = ((folder, name) for name in names for folder in folders)
    root = next((folder for folder, name in pairs if path_on_disk(folder, name).exists()), None)
    if root is None:
        tried = " or ".join(map(str, folders))
        raise SourceError(
            f"{path}: its {len(names)} pictures ({names[0]}, ...) are not in {tried}",
            "name the folder with <--images>",
        )
    paths = (path_text(str(path_on_disk(root, name).resolve())) for name in names)
    pictures = [Item(name, "image", place, name) for name, place in zip(names, paths, strict=True)]
    return table.join(path, pictures)


def _csv(path: Path, faults: list[str]) -> Objects:
    table = open_table(path, faults, {"image", "caption"}.issubset)
    header = table.header
    if header.count("image") != 1 or "caption" not in header:
        raise SourceError(
            f"{path}: the first line must name the columns image,caption; found "
            f"{header or faults[:1]}",
        )
    place = header.index("image")
    captions = [number for number, name in enumerate(header) if name == "caption"]
    for where, cells in table.rows:
        image = "".join(cells[place : place + 1])
        some = []
        if any(cells[len(header) :]):
            faults.append(f"{where}: more cells than columns; put a caption with commas in quotes")
            if place:
                continue
        elif not image or captions[-1] >= len(cells):
            faults.append(f"{where}: both image and caption are required")
            if not image:
                continue
        else:
            some = [cells[number] for number in captions if cells[number]]
        yield where, {"image": image, "captions": some}


def _parquet(path: Path, faults: list[str]) -> Objects:
    with needing(str(path), "parquet", SourceError):
        import pyarrow.parquet as parquet
        from pyarrow import ArrowException
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for row in chain.from_iterable(batch.to_pylist() for batch in file.iter_batches(BATCH)):
                number += 1
                yield f"row {number}", row
    except (ArrowException, ValueError, OSError) as error:
        check_system(path, error, SourceError)
        reason = " ".join(str(error).split())
        if not number:
            raise SourceError(
                f"{path}: not a readable Parquet file ({reason}); download it again",
            ) from error
        faults.append(f"the rows after {number} are damaged ({reason})")


READERS: dict[str, Callable[[Path, list[str]], Objects]] = {
    ".csv": _csv,
    ".tsv": _csv,
    ".jsonl": json_lines,
    ".parquet": _parquet,
}
