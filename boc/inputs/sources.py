"""Sources of items: folders and archives of pictures, tables of captions, feature files, and SCAN
arrays."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import mimetypes
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from boc.atomic_files import json_sha256
from boc.errors import BocError, SourceError, advice, leave_out, note
from boc.inputs.archives import is_archive, members, opener, read_head
from boc.inputs.captions import ADVICE, READERS, CaptionTable, read_table
from boc.inputs.features import SUFFIXES, FeatureFile, is_embeddings
from boc.inputs.file_facts import look
from boc.inputs.images import GET_HEIF, HEIF, suffixes
from boc.inputs.scan_arrays import is_scan_array, read_scan
from boc.inputs.text_lines import read_ids
from boc.paths import nfc, path_text, system_path
from boc.types import MODALITIES, FieldType, Item

JPEG = b"\xff\xd8\xff"  # first three bytes of a JPEG file
UNREAD = (
    ".jxl",
    ".cr2",
    ".cr3",
    ".nef",
    ".arw",
    ".dng",
    ".raf",
    ".orf",
    ".rw2",
    ".pef",
    ".srw",
    ".3gp",
    ".3g2",
    ".mkv",
    ".mts",
    ".m2ts",
    ".wmv",
)
"""Suffixes of pictures and videos that boc does not read and that ``mimetypes`` does not recognise
on every system."""

UNWANTED = (
    ".*",
    "@eaDir",
    "@Recycle",
    "@__thumb",
    "#recycle",
    "#snapshot",
    "$RECYCLE.BIN",
    "System Volume Information",
    "__MACOSX",
    "*.lrdata",
    "*.photoslibrary/resources",
    "*.photolibrary/Thumbnails",
)
"""Name patterns of hidden files and folders, thumbnails, and trash folders."""


@dataclass(frozen=True)
class Source:
    """Items of a source in a fixed order: first pictures, then captions.

    ``file`` is the path of the feature file that contains the items, or None if the items are
    picture files and plain text. ``types`` maps the metadata fields of the items to their types.
    ``shard`` is the part of the source, such as "3/16", or empty for a whole source. ``closed``
    contains the id prefixes of pictures in folders that could not be listed.
    """

    items: list[Item]
    types: Mapping[str, FieldType] = field(default_factory=dict)
    file: Path | None = None
    shard: str = ""
    closed: tuple[str, ...] = ()

    def check_captioned(self) -> None:
        """Raise SourceError if there are no captions."""
        if not any(item.modality == "text" for item in self.items):
            raise SourceError(
                "these pictures have no captions to learn from; use a CSV of image,caption",
            )

    @cached_property
    def digest(self) -> str:
        """SHA-256 digest of the items. The same items in the same order and shard have the same
        digest."""
        digest = hashlib.sha256(self.shard.encode())
        for item in self.items:
            entries: list[Any] = [item.id, item.modality, item.content, item.group]
            if self.file is None and item.fields:
                entries.append(item.fields)
            digest.update(json.dumps(entries).encode())
        return digest.hexdigest()

    @cached_property
    def stamp(self) -> str:
        """SHA-256 digest of the states of the picture files. The digest changes if a file changes,
        or if two files swap names."""
        images = (system_path(i.content) for i in self.items if i.modality == "image")
        return json_sha256([look(path) or () for path in ([self.file] if self.file else images)])

    def part(self, shard: str) -> Source:
        """Return shard ``I/N``, with I from 1 to N. A shard contains about one in N pictures with
        its captions, in the order of the source.

        The SHA-256 digest of a picture's id determines its shard, so adding pictures does not move
        other pictures to another shard. Raises SourceError for an invalid shard.
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
    """Return I and N of a shard ``I/N``. Raises SourceError unless I is from 1 to N."""
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", shard)
    if match and 1 <= int(match[1]) <= int(match[2]):
        return int(match[1]), int(match[2])
    raise SourceError(f"{shard!r} is not a shard; write I/N with I from 1 to N, such as 3/16")


def open_source(
    path: Path,
    ids: Path | None = None,
    images: Path | None = None,
    exclude: Sequence[str] = (),
) -> Source:
    """Read the list of items in a folder, an archive, a table, a feature file or a SCAN array.

    ``ids`` is the path of a text file with one picture id per line; only these pictures and their
    captions are kept, in the order of the source. ``images`` is the folder with the pictures of a
    table; default: the folder of the table, or its subfolder ``images``. ``exclude`` lists name
    patterns to exclude in addition to ``UNWANTED``. Raises SourceError if there are no items.
    """
    if not path.exists():
        raise SourceError(f"{path}: no such file or folder; {ADVICE}")
    if path.is_dir() or is_archive(path):
        source = open_folders([path], exclude)
    elif path.suffix.lower() in READERS:
        source = Source(*read_table(path, images))
    elif path.suffix.lower() in SUFFIXES:
        with FeatureFile(path) as file:
            source = Source(file.items("image") + file.items("text"), file.header.types, path)
        if not source.items:
            raise SourceError(f"{path}: contains no items; {ADVICE}")
    elif is_scan_array(path):
        source = Source(read_scan(path))
    else:
        raise SourceError(f"{path}: unknown kind of source {path.suffix!r}; {ADVICE}")
    if ids is None:
        return source
    names = {nfc(name): name for name in read_ids(ids)}
    chosen = [item for item in source.items if nfc(item.group or item.id) in names]
    here = {nfc(item.group or item.id) for item in chosen}
    missing = sorted(name for form, name in names.items() if form not in here)
    if not chosen:
        raise SourceError(
            f"{ids}: none of the {len(names)} ids (such as {missing[0]}) is in the source; list "
            "ids of its pictures",
        )
    leave_out(f"{ids}: ids that are not in the source", missing)
    return replace(source, items=chosen)


def open_sources(
    paths: Sequence[Path],
    images: Path | None,
    exclude: Sequence[str] = (),
    *,
    detachable: bool = False,
) -> Source:
    """Open one source or several folders. For several feature files, only ``file`` is set, to the
    first file.

    ``exclude`` and ``detachable`` are as in ``open_folders``.
    """
    if len(paths) == 1:
        return open_source(paths[0], None, images, exclude)
    if any(path.is_dir() or is_archive(path) for path in paths) or not any(
        path.exists() for path in paths
    ):
        return open_folders(paths, exclude, detachable=detachable)
    for path in paths:
        if path.is_dir() or not is_embeddings(path):
            raise BocError(
                f"{path} contains no vectors; multiple sources must either all be folders or tar "
                "archives, or all be feature files",
            )
    return Source([], file=paths[0])


def join_sources(one: Source, other: Source) -> Source:
    """Join two parts of a source, with pictures first. Raises SourceError if both parts contain the
    same picture."""
    both = {item.id for item in one.items} & {
        item.id for item in other.items if item.modality == "image"
    }
    if both:
        raise SourceError(
            f"{len(both)} pictures (such as {min(both)}) are in both the training and the "
            "validation set; remove them from one of the sets",
        )
    return replace(
        one,
        items=sorted(one.items + other.items, key=lambda item: MODALITIES.index(item.modality)),
    )


def without(whole: Source, part: Source) -> Source:
    """Return the items of ``whole`` that are not in ``part``."""
    gone = {item.id for item in part.items}
    return replace(whole, items=[item for item in whole.items if item.id not in gone])


def open_folders(
    folders: Sequence[Path],
    exclude: Sequence[str] = (),
    *,
    detachable: bool = False,
) -> Source:
    """Return the pictures in several folders or archives. The id of a picture begins with the name
    of its folder.

    Raises the same errors as ``open_source``. Also raises SourceError if two folders have the same
    name, or if a folder is inside another. If a folder or archive is missing, empty or unreadable,
    it is treated as ``closed`` if it is ``detachable`` and other folders are available; otherwise,
    SourceError is raised.
    """
    for folder in folders:
        if not detachable or folder.is_file():
            _check_folder(folder)
    table = CaptionTable()
    parts = []
    gone = []
    for folder, begin in zip(folders, beginnings(folders), strict=True):
        try:
            _check_folder(folder)
            one = _folder(folder, table, begin, exclude)
            if not one.items:
                raise SourceError(
                    f"{folder}: no pictures in this folder ({', '.join(sorted(suffixes()))}); "
                    f"{ADVICE}",
                )
        except SourceError as error:
            if not (detachable or is_archive(folder)):
                raise
            gone.append(error)
            one = Source([], closed=(begin,))
        parts.append(one)
    if len(gone) == len(folders):
        raise gone[0]
    for missing in gone:
        note(f"{missing}; its entries in the index are kept")
    items = [item for one in parts for item in one.items]
    closed = tuple(begin for one in parts for begin in one.closed)
    return Source(*table.join(folders[0], items), closed=closed)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir() and not (is_archive(folder) and folder.exists()):
        what = "not a folder" if folder.exists() else "no such folder"
        raise SourceError(
            f"{folder}: {what}; multiple sources must either all be folders or tar archives, or "
            "all be feature files",
        )


@dataclass
class Listing:
    """Contents of a folder as relative paths: files, links to folders, names that were skipped
    (``unwanted``), and folders that this user cannot list (``closed``).

    Files are sorted by the components of their paths. ``linked`` contains the files that are links.
    """

    files: list[str] = field(default_factory=list)
    linked: set[str] = field(default_factory=set)
    unwanted: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)


def listing(folder: Path, exclude: Sequence[str] = UNWANTED) -> Listing:
    """List ``folder``, or an archive, except names that match a pattern in ``exclude``, ignoring
    case. A pattern is compared with the name of a file or folder, and with the end of its path.
    Raises SourceError if the folder itself cannot be listed."""
    result = Listing()
    waiting = [""]
    patterns = []
    for pattern in filter(None, exclude):
        below = "" if pattern[0] == "*" else "(?:.*/)?"
        patterns.append(below + fnmatch.translate(pattern.strip("/")))
    # Without patterns, there is no match.
    is_unwanted = re.compile("|".join(patterns) or "(?!)", re.IGNORECASE | re.DOTALL).match
    while waiting:
        below = waiting.pop()
        try:
            if is_archive(folder):
                with open(folder, "rb", opener=opener) as archive:
                    for name in members(archive).places:
                        # Test the paths of the enclosing folders, then the path itself.
                        paths = accumulate(name.split("/"), "{}/{}".format)
                        if any(map(is_unwanted, paths)):
                            result.unwanted.append(name)
                        else:
                            result.files.append(name)
                continue
            with os.scandir(folder / below) as entries:
                for entry in entries:
                    name = below + entry.name
                    if is_unwanted(name):
                        result.unwanted.append(name)
                    elif entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{name}/")
                    elif entry.is_symlink() and Path(entry.path).is_dir():
                        result.links.append(name)
                    else:
                        result.files.append(name)
                        if entry.is_symlink() and Path(entry.path).is_file():
                            result.linked.add(name)
        except OSError as error:
            if not below:
                raise SourceError(
                    f"{folder}: cannot be listed ({error.strerror}); {advice(error)}",
                ) from error
            result.closed.append(below)
    result.files.sort(key=lambda name: name.split("/"))
    return result


def beginnings(folders: Sequence[Path]) -> list[str]:
    """Return the id prefix for each folder: the folder name and a slash, or an empty prefix if
    there is only one folder.

    The prefix distinguishes files with the same name in two folders. Raises SourceError if two
    folders have the same name, or if a folder is inside another.
    """
    if len(folders) == 1:
        return [""]
    roots = [folder.resolve() for folder in folders]
    names: dict[str, Path] = {}
    for folder, root in zip(folders, roots, strict=True):
        if root.name in names:
            raise SourceError(
                f"{folder} and {names[root.name]} have the same name {root.name!r}, but the ids "
                "of pictures begin with this name; rename one of them, or use their parent folder",
            )
        names[root.name] = folder
        for outer in roots:
            if outer in root.parents:
                raise SourceError(f"{folder} is inside {outer}, which is also a source; omit it")
    return [f"{path_text(root.name)}/" for root in roots]


def _may_be_picture(suffix: str) -> bool:
    """Return whether ``suffix`` is empty or a suffix of pictures or videos."""
    kind = mimetypes.guess_type(f"a{suffix}")[0] or ""
    return suffix in {"", *UNREAD} or kind.startswith(("image/", "video/"))


def _folder(
    folder: Path,
    table: CaptionTable,
    begin: str = "",
    exclude: Sequence[str] = (),
) -> Source:
    """Return the pictures below ``folder``, with ids that begin with ``begin``. Captions and
    metadata in an archive are added to ``table``. Warn about files that are skipped."""
    inside = listing(folder, (*UNWANTED, *exclude))

    def suffix(name: str) -> str:
        """Return ``Path(name).suffix`` in lower case, without creating a Path."""
        stem, _, last = name.rpartition("/")[2].rpartition(".")
        return f".{last.lower()}" if stem else ""

    read = suffixes()
    counts = Counter(suffix(name) for name in inside.files)
    plain = [folder / name for name in inside.files if not suffix(name)]
    counts[""] = sum(read_head(path, 3) == JPEG for path in plain)
    others = set(filter(_may_be_picture, counts.keys() - read - HEIF))
    for unread, step in ((HEIF - read, GET_HEIF), (others, "convert pictures to JPEG or PNG")):
        left_out = [
            f"{counts[each]} {each or 'JPEG without suffix'}"
            for each in sorted(unread & counts.keys())
            if counts[each]
        ]
        if left_out:
            note(f"{folder}: left out {', '.join(left_out)}; {step}")
    for names, what, step in (
        (inside.unwanted, "hidden or unwanted names", "pass such a folder as a separate source"),
        (
            inside.links,
            "folders that are links",
            "pass the target of a link as a separate source",
        ),
        (inside.closed, "folders that cannot be listed", "check their permissions"),
    ):
        if names:
            note(f"{folder}: left out {len(names)} {what} (such as {min(names)!a}); {step}")
    root = str(folder.resolve()).rstrip("/")
    ids = {}
    items = []
    for name in inside.files:
        if suffix(name) in read:
            # A dangling link is included, because reading the link will raise an error.
            path = f"{root}/{name}"
            if name in inside.linked:
                path = os.path.realpath(path)
            ids[name] = begin + path_text(name)
            items.append(Item(ids[name], "image", path_text(path), ids[name]))
    if is_archive(folder):
        table.add_archive(folder, ids)
    return Source(items, closed=tuple(begin + path_text(name) for name in inside.closed))
