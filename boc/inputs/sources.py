"""Sources of items: a folder of pictures, a CSV of ``image,caption``, a feature file, or an array of SCAN."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from boc.errors import SourceError, check_system, note
from boc.inputs.features import SUFFIXES, FeatureFile
from boc.inputs.images import GET_HEIF, HEIF, suffixes
from boc.inputs.scan_arrays import is_scan_array, read_scan
from boc.inputs.text_lines import csv_fault, read_ids
from boc.types import MODALITIES, Item

OTHERS = frozenset({".jxl", ".jp2", ".psd", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".raf"})
"""Suffixes of picture formats that are not read."""

ADVICE = "give a folder of pictures, a CSV with the columns image,caption, or a feature file (.h5)"


@dataclass(frozen=True)
class Source:
    """The items of a source in a fixed order: pictures first, then captions.

    ``file`` is the path of the feature file with the items, or None if they are pictures and plain text; ``fields`` is
    that of its header. ``shard`` is the part of the source, such as "3/16", or empty for a whole source. ``closed`` are
    the beginnings of the ids of pictures in folders that could not be listed.
    """

    items: list[Item]
    file: Path | None = None
    shard: str = ""
    fields: str = ""
    closed: tuple[str, ...] = ()

    def check_captioned(self) -> None:
        """SourceError unless there are captions."""
        if not any(item.modality == "text" for item in self.items):
            raise SourceError(
                "these pictures have no captions to learn from; give a CSV with the columns image,caption"
            )

    @property
    def digest(self) -> str:
        """SHA-256 over the items: the same items in the same order and shard give the same digest."""
        digest = hashlib.sha256(self.shard.encode())
        for item in self.items:
            digest.update(json.dumps([item.id, item.modality, item.content, item.group]).encode())
        return digest.hexdigest()

    @property
    def stamp(self) -> str:
        """SHA-256 over size and time of the files that the pictures are read from: another one when one has changed."""
        paths = [self.file] if self.file else [Path(item.content) for item in self.items if item.modality == "image"]
        return hashlib.sha256(json.dumps([_size_and_time(path) for path in paths]).encode()).hexdigest()

    def part(self, shard: str) -> Source:
        """Shard ``I/N``, I from 1 to N: about one picture in N with its captions, in the order of the source.

        The SHA-256 of the picture id decides, so machines need not know of each other, and adding or removing pictures
        moves no others. SourceError for an invalid shard.
        """
        number, parts = shard_of(shard)
        if parts == 1:
            return self
        items = []
        for item in self.items:
            digest = hashlib.sha256((item.group or item.id).encode()).digest()
            if int.from_bytes(digest[:8], "big") % parts == number - 1:
                items.append(item)
        return replace(self, items=items, shard=f"{number}/{parts}")


def shard_of(shard: str) -> tuple[int, int]:
    """Return the number and count of a shard ``I/N``. SourceError unless I is from 1 to N."""
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", shard)
    number, count = (int(group) for group in match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise SourceError(f"{shard!r} is no shard; write I/N with I from 1 to N, for example 3/16")
    return number, count


def _size_and_time(path: Path) -> list[int]:
    try:
        status = path.stat()
    except OSError:  # the reader of the picture reports the error
        return []
    return [status.st_size, status.st_mtime_ns]


def open_source(path: Path, ids: Path | None = None, images: Path | None = None) -> Source:
    """Read the list of items behind ``path``, which may be a folder, a CSV, a feature file or an array of SCAN.

    ``ids`` names a text file with one picture id per line: only those pictures and their captions are kept, in the
    order of the source. ``images`` is the folder of the pictures of a CSV (default: the folder of the CSV, or
    ``images`` in it). Raises SourceError if nothing is found.
    """
    if not path.exists():
        raise SourceError(f"{path}: no such file or folder; {ADVICE}")
    if path.is_dir():
        source = _folder(path)
        if not source.items:
            raise no_pictures(path)
    elif path.suffix.lower() == ".csv":
        source = Source(_table(path, images))
    elif path.suffix.lower() in SUFFIXES:
        with FeatureFile(path) as file:
            source = Source(file.items("image") + file.items("text"), path, fields=file.header.fields)
        if not source.items:
            raise SourceError(f"{path}: holds no items; {ADVICE}")
    elif is_scan_array(path):
        source = Source(read_scan(path))
    else:
        raise SourceError(f"{path}: unknown kind of source {path.suffix!r}; {ADVICE}")
    return source if ids is None else replace(source, items=_keep(source.items, ids))


def join_sources(one: Source, other: Source) -> Source:
    """Return the items of two parts of one source, pictures first. SourceError for a picture of both."""
    both = {item.id for item in one.items} & {item.id for item in other.items if item.modality == "image"}
    if both:
        raise SourceError(
            f"{len(both)} pictures (such as {min(both)}) are both to learn from and to validate on; keep them apart"
        )
    items = one.items + other.items
    return replace(one, items=sorted(items, key=lambda item: MODALITIES.index(item.modality)))


def without(whole: Source, part: Source) -> Source:
    """Return the items of ``whole`` that ``part`` does not have."""
    gone = {item.id for item in part.items}
    return replace(whole, items=[item for item in whole.items if item.id not in gone])


def open_folders(folders: Sequence[Path], *, detachable: bool = False) -> Source:
    """Return the pictures of several folders, whose ids begin with the name of their folder.

    SourceError as ``open_source``, and if two folders have one name or one lies in another. A folder that is missing
    or empty is ``closed`` if folders are ``detachable`` and others have pictures, and an error otherwise.
    """
    for folder in folders:
        if not detachable or folder.is_file():
            _check_folder(folder)
    parts: list[Source] = []
    gone: list[SourceError] = []
    for folder, begin in zip(folders, beginnings(folders), strict=True):
        try:
            one = _folder(_check_folder(folder), begin)
            if not one.items:
                raise no_pictures(folder)
        except SourceError as error:
            if not detachable:
                raise
            gone.append(error)
            one = Source([], closed=(begin,))
        parts.append(one)
    if len(gone) == len(folders):
        raise gone[0]
    for missing in gone:
        note(f"{missing}; what the index has of it is kept")
    items = [item for one in parts for item in one.items]
    return Source(items, closed=tuple(c for one in parts for c in one.closed))


def _check_folder(folder: Path) -> Path:
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "no such folder"
        raise SourceError(f"{folder}: {what}; several sources must all be folders of pictures, or feature files")
    return folder


def no_pictures(folder: Path) -> SourceError:
    """Return the error for a folder without pictures."""
    return SourceError(f"{folder}: no pictures in this folder ({', '.join(sorted(suffixes()))}); {ADVICE}")


@dataclass
class Listing:
    """Everything below a folder, as paths relative to it: files, linked folders, and folders that cannot be listed.

    Files are in the order of their paths part by part; those ``linked`` are links.
    """

    files: list[str] = field(default_factory=list)
    linked: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)


def listing(folder: Path) -> Listing:
    """List ``folder``. SourceError if it cannot be listed itself."""
    result, waiting = Listing(), [""]
    while waiting:
        below = waiting.pop()
        try:
            with os.scandir(folder / below) as entries:
                for entry in entries:
                    name = below + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{name}/")
                    elif entry.is_symlink() and Path(entry.path).is_dir():
                        result.links.append(name)
                    else:
                        result.files.append(name)
                        if entry.is_symlink():
                            result.linked.add(name)
        except OSError as error:
            if not below:
                raise SourceError(f"{folder}: cannot be listed ({error.strerror}); check its permissions") from error
            result.closed.append(below)
    result.files.sort(key=lambda name: name.split("/"))
    result.links.sort()
    result.closed.sort()
    return result


def beginnings(folders: Sequence[Path]) -> list[str]:
    """Return the beginning of the ids of the pictures of each folder: nothing for a single folder, else its name and /.

    So files of the same name in two folders stay two. SourceError if two folders have one name, or if one lies in
    another.
    """
    if len(folders) == 1:
        return [""]
    roots = [folder.resolve() for folder in folders]
    names: dict[str, Path] = {}
    for folder, root in zip(folders, roots, strict=True):
        if root.name in names:
            raise SourceError(
                f"{folder} and {names[root.name]} are both called {root.name!r}, with which the ids of their pictures "
                "begin; rename one, or give the folder that holds both"
            )
        names[root.name] = folder
        outer = next((other for other in roots if other in root.parents), None)
        if outer is not None:
            raise SourceError(f"{folder} lies in {outer}, which is given too; leave it out")
    return [f"{root.name}/" for root in roots]


def _folder(folder: Path, begin: str = "") -> Source:
    """Return the pictures below ``folder``; their ids are ``begin`` and the path from there."""
    inside = listing(folder)
    _tell_left_out(folder, inside)
    # A dangling link is listed; reading it raises the error.
    read = suffixes()
    names = [name for name in inside.files if _suffix(name) in read]
    odd = next((name for name in names if name.encode(errors="ignore").decode() != name), None)
    if odd is not None:
        raise SourceError(f"{folder}: the file name {odd!a} is not UTF-8; rename that file")
    root = str(folder.resolve()).rstrip("/")
    paths = {name: os.path.realpath(f"{root}/{name}") for name in inside.linked}  # a link may be led elsewhere later
    items = [Item(begin + name, "image", paths.get(name, f"{root}/{name}"), begin + name) for name in names]
    return Source(items, closed=tuple(begin + name for name in inside.closed))


def _suffix(name: str) -> str:
    """That of ``Path(name)`` in small letters, which takes longer."""
    stem, _, suffix = name.rpartition("/")[2].rpartition(".")
    return f".{suffix.lower()}" if stem else ""


def _tell_left_out(folder: Path, inside: Listing) -> None:
    """Warn about pictures in the folder that are left out: other formats, and folders that are not looked through."""
    suffix_counts = Counter(_suffix(name) for name in inside.files)
    for unread, step in ((HEIF - suffixes(), GET_HEIF), (OTHERS, "convert them to JPEG or PNG")):
        counts = ", ".join(f"{suffix_counts[suffix]} {suffix}" for suffix in sorted(unread & suffix_counts.keys()))
        if counts:
            note(f"{folder}: left out {counts}; {step}")
    if inside.links:
        message = f"{folder}: left out {len(inside.links)} folders that are links (such as {inside.links[0]!a})"
        note(f"{message}; give the folder a link leads to as a source of its own")
    if inside.closed:
        message = (
            f"{folder}: left out {len(inside.closed)} folders that cannot be listed (such as {inside.closed[0]!a})"
        )
        note(f"{message}; check their permissions")


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
    except csv.Error as error:
        raise SourceError(f"{path}: {csv_fault(error)}") from error
    except (UnicodeDecodeError, OSError) as error:
        check_system(path, error, SourceError)
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
    """Yield the lines unchanged; SourceError at a NUL character, which feature files cannot store."""
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
    names = set(read_ids(ids))
    chosen = [item for item in items if (item.group or item.id) in names]
    missing = names - {item.group or item.id for item in chosen}
    if missing:
        some = ", ".join(sorted(missing)[:3])
        raise SourceError(
            f"{ids}: {len(missing)} of {len(names)} ids are not in the source (such as {some}); list ids of it"
        )
    return chosen
