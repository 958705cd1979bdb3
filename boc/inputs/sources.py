"""SOURCE of the command line: a folder of pictures, a table of ``image,caption``, or a feature file."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from boc.errors import SourceError
from boc.inputs.features import FeatureFile
from boc.inputs.images import SUFFIXES
from boc.types import Item

ADVICE = "give a folder of pictures, a CSV with the columns image,caption, or a feature file (.h5)"


@dataclass(frozen=True)
class Source:
    """What is to be extracted, in a fixed order: pictures first, then captions.

    ``file`` is the path of the feature file the items stand in, or None where they are pictures and plain text.
    ``shard`` says which part of a source these are, as "3/16", or nothing for a whole one.
    """

    items: list[Item]
    file: Path | None = None
    shard: str = ""

    def check_captioned(self) -> None:
        """SourceError unless there are captions."""
        if not any(item.modality == "text" for item in self.items):
            raise SourceError(
                "these pictures have no captions to learn from; give a CSV with the columns image,caption"
            )

    @property
    def digest(self) -> str:
        """SHA-256 over the items: the same list in the same order gives the same digest, another shard another one."""
        digest = hashlib.sha256(self.shard.encode())
        for item in self.items:
            digest.update(json.dumps([item.id, item.modality, item.content, item.group]).encode())
        return digest.hexdigest()

    def part(self, shard: str) -> Source:
        """Shard ``I/N``, I from 1 to N: about one picture in N with its captions, in the order of the source.

        SHA-256 of a picture's id decides, so that no machine needs to know what the others do, and pictures that are
        added or lost move no others. SourceError for anything but two such numbers.
        """
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", shard)
        number, parts = (int(group) for group in match.groups()) if match else (0, 0)
        if not 1 <= number <= parts:
            raise SourceError(f"{shard!r} is no shard; write I/N with I from 1 to N, for example 3/16")
        if parts == 1:
            return self
        kept = [item for item in self.items if _hashed(item.group or item.id) % parts == number - 1]
        return Source(kept, self.file, f"{number}/{parts}")


def _hashed(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def open_source(path: Path, ids: Path | None = None, images: Path | None = None) -> Source:
    """Read the list of items behind ``path``, which may be a folder, a CSV or a feature file.

    ``ids`` names a text file with one picture id a line: only those pictures and their captions are kept, in the
    order of the source. ``images`` is the folder of a CSV's pictures (default: the CSV's own, or ``images`` in it).
    Raises SourceError if nothing is found.
    """
    if not path.exists():
        raise SourceError(f"{path}: no such file or folder; {ADVICE}")
    if path.is_dir():
        source = Source(_folder(path))
    elif path.suffix.lower() == ".csv":
        source = Source(_table(path, images))
    elif path.suffix.lower() in {".h5", ".hdf5"}:
        with FeatureFile(path) as file:
            source = Source(file.items("image") + file.items("text"), path)
        if not source.items:
            raise SourceError(f"{path}: holds no items; {ADVICE}")
    else:
        raise SourceError(f"{path}: unknown kind of source {path.suffix!r}; {ADVICE}")
    return source if ids is None else Source(_keep(source.items, ids), source.file)


def _folder(folder: Path) -> list[Item]:
    # A dangling link is listed: whoever reads it says what it lacks.
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and not p.is_dir())
    if not paths:
        raise SourceError(f"{folder}: no pictures in this folder ({', '.join(sorted(SUFFIXES))}); {ADVICE}")
    names = [path.relative_to(folder).as_posix() for path in paths]
    odd = next((name for name in names if name.encode(errors="ignore").decode() != name), None)
    if odd is not None:
        raise SourceError(f"{folder}: the file name {odd!a} is not UTF-8; rename that file")
    root = folder.resolve()
    return [Item(name, "image", str(root / name), name) for name in names]


def _table(path: Path, images: Path | None) -> list[Item]:
    captions: dict[str, list[str]] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as handle:
            reader = csv.DictReader(_without_nul(path, handle), strict=True)
            if not {"image", "caption"} <= set(reader.fieldnames or ()):
                raise SourceError(
                    f"{path}: the first line must name the columns image,caption; found {reader.fieldnames}"
                )
            for row in reader:
                if not row["image"] or row["caption"] is None:
                    raise SourceError(f"{path}, line {reader.line_num}: image and caption must both be there")
                if None in row:
                    raise SourceError(
                        f"{path}, line {reader.line_num}: more cells than columns; put a caption with commas in quotes"
                    )
                captions.setdefault(row["image"], []).append(row["caption"])
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise SourceError(f"{path}: not a UTF-8 CSV file ({error}); {ADVICE}") from error
    if not captions:
        raise SourceError(f"{path}: no rows; {ADVICE}")
    root = _picture_root(path, next(iter(captions)), images)
    pictures = [Item(name, "image", str((root / name).resolve()), name) for name in captions]
    sentences = [
        Item(f"{name}#{number}", "text", caption, name)
        for name, texts in captions.items()
        for number, caption in enumerate(texts)
    ]
    return pictures + sentences


def _without_nul(path: Path, lines: Iterable[str]) -> Iterator[str]:
    """The lines as they are; SourceError at a NUL character, which feature files cannot hold."""
    for number, line in enumerate(lines, 1):
        if "\0" in line:
            raise SourceError(f"{path}, line {number}: a NUL character, which cannot be stored; remove it")
        yield line


def _picture_root(table: Path, first: str, images: Path | None) -> Path:
    candidates = [images] if images else [table.parent, table.parent / "images"]
    for folder in candidates:
        if (folder / first).exists():
            return folder
    tried = " or ".join(str(folder) for folder in candidates)
    raise SourceError(f"{table}: its first picture {first} is not in {tried}; name the folder with --images")


def _keep(items: Iterable[Item], ids: Path) -> list[Item]:
    try:
        wanted = {line.strip() for line in ids.read_text(encoding="utf-8-sig").splitlines() if line.strip()}
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{ids}: not a readable list of picture ids ({error}); give one id a line") from error
    if not wanted:
        raise SourceError(f"{ids}: lists no picture ids; give one id a line")
    kept = [item for item in items if (item.group or item.id) in wanted]
    missing = wanted - {item.group or item.id for item in kept}
    if missing:
        some = ", ".join(sorted(missing)[:3])
        raise SourceError(f"{ids}: {len(missing)} of {len(wanted)} ids are not in the source (such as {some})")
    return kept
