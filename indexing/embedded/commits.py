"""Read and publish commits. A commit file lists the segments of an index; CURRENT names the current
commit.

The folder of an index has::

    CURRENT          the name of the current commit; replaced atomically by renaming
    commit-*.json    manifest, codec, segments, and size and SHA-256 of every file
    loading.json     the commit of an unfinished load
    codec-*/*.npy    learned arrays of the codec
    segment-*/       see ``segment.py``
    dead-*.npy       tombstones: int32 rows of a segment that are deleted or replaced
    .checked         stamps of verified files

Files never change once a commit lists them. The names of folders, commits and tombstone files are
derived from their contents. The next writer removes files that neither CURRENT nor loading.json
needs.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
from msgspec import Meta, Struct

from boc.atomic_files import sha256
from boc.errors import BackendError, ManifestError, check_system
from boc.foreign import Count, read_json, typed
from boc.manifest import Manifest
from boc.vectors import Array

from . import fs
from .npy_files import DAMAGED, Files, Output, name_of, reading

_COMMIT = re.compile(r"commit-[0-9a-f]{16}\.json")
_File: TypeAlias = Annotated[str, Meta(pattern=r"(?a)^[A-Za-z][\w.-]*(/\w[\w.-]*)?\Z")]
"""Relative path of a file or folder in an index. The pattern prevents paths outside the index."""
LOADING = "loading.json"
CHECKED = ".checked"


@dataclass(frozen=True)
class SegmentEntry:
    """Segment in a commit, with the name of its folder and the name of its tombstone file if there
    is one."""

    name: _File
    rows: Count
    dead: _File | None = None


@dataclass(frozen=True)
class Commit:
    """Contents of an index. Paths in ``files`` are relative to the index folder."""

    manifest: Manifest
    codec: str
    segments: list[SegmentEntry] = field(default_factory=list)
    files: Files = field(default_factory=dict)

    def inside(self, folder: str) -> Files:
        """Return the files inside a folder."""
        return {name: entry for name, entry in self.files.items() if name.startswith(f"{folder}/")}

    def to_json(self) -> str:
        raw = {
            "manifest": self.manifest.entries(),
            "codec": self.codec,
            "segments": [asdict(entry) for entry in self.segments],
            "files": self.files,
        }
        return json.dumps(raw, indent=1, sort_keys=True)


class _Entries(Struct):
    manifest: Any
    codec: _File
    segments: list[SegmentEntry]
    files: dict[_File, tuple[int, str]]


def read(path: Path) -> Commit:
    """Read a commit. Raises ManifestError if the commit is damaged or has a newer format."""
    with reading(path):
        entries = typed(read_json(path), _Entries)
        manifest = Manifest.from_dict(entries.manifest, where=str(path))
        if not manifest.items:
            raise ValueError("item counts are missing")
    return Commit(
        manifest,
        entries.codec,
        entries.segments,
        entries.files,
    )


def current(home: Path) -> str:
    """Return the name of the current commit in ``home``. Raises OSError if there is no current
    commit."""
    return (home / "CURRENT").read_text(encoding="utf-8", errors="replace").strip()


def read_current(home: Path) -> tuple[str, Commit]:
    """Return the name of the current commit and the commit. Raises ManifestError if one of them is
    damaged."""
    name = current(home)
    path = home / name
    if not _COMMIT.fullmatch(name):
        raise ManifestError(
            f"{home / 'CURRENT'}: damaged ({name[:40]!r} is not the name of a commit)",
            DAMAGED,
        )
    try:
        digest = sha256(path)
    except OSError as error:
        check_system(path, error, BackendError)
        raise ManifestError(
            f"{path}: cannot be read ({error}), which CURRENT names",
            DAMAGED,
        ) from error
    if name != f"commit-{digest[:16]}.json":
        raise ManifestError(f"{path}: its bytes have changed, or CURRENT is damaged", DAMAGED)
    return name, read(path)


def publish(home: Path, commit: Commit) -> None:
    """Make ``commit`` the current commit in ``home``. All files of the commit must already be
    synced.

    Files without a stamp have just been written, so they are recorded as verified.
    """
    data = commit.to_json().encode()
    name = f"commit-{hashlib.sha256(data).hexdigest()[:16]}.json"
    _replace_file(home / name, data)
    fs.sync(home)
    _replace_file(home / "CURRENT", name.encode())
    # The engine may have created the parent folders as well.
    for folder in (home, *home.parents[:2]):
        fs.sync(folder)
    known = _read_checks(home)
    _remember(home, {name: known.get(name) or stamp(home / name) for name in commit.files})


def note_load(home: Path, commit: Commit) -> None:
    """Record the progress of a load, so that it can be resumed."""
    _replace_file(home / LOADING, commit.to_json().encode())
    fs.sync(home)


def broken_load(home: Path) -> Commit | None:
    """Return the commit of a killed load, if it exists and all its files are undamaged."""
    try:
        load = read(home / LOADING)
        check(home, load)
    except ManifestError:
        return None
    return load


def forget_done_load(home: Path, manifest: Manifest) -> None:
    """Remove the record of a load of ``manifest`` that was killed right after it had been
    published."""
    with suppress(ManifestError):
        if read(home / LOADING).manifest.same_contents(manifest):
            fs.remove(home / LOADING)


def keep_dead(home: Path, rows: Array) -> tuple[str, Files]:
    """Write the deleted rows of a segment to a file whose name is derived from its contents."""
    path = home / ".dead.tmp"
    with fs.create(path) as handle:
        np.save(handle, rows, allow_pickle=False)
    digest = sha256(path)
    size = path.stat().st_size
    name = f"dead-{digest[:12]}.npy"
    fs.rename(path, home / name)
    return name, {name: (size, digest)}


def keep_codec(home: Path, arrays: Mapping[str, Array]) -> tuple[str, Files]:
    """Write the learned arrays of a codec to a folder whose name is derived from its contents."""
    stage = home / "building-codec"
    fs.remove(stage)
    fs.make(stage)
    output = Output(stage)
    for name, array in arrays.items():
        with output.file(f"{name}.npy") as handle:
            np.lib.format.write_array(handle, np.ascontiguousarray(array), allow_pickle=False)
    fs.sync(stage)
    return keep_folder(stage, "codec", output.files)


def keep_folder(stage: Path, kind: str, files: Files) -> tuple[str, Files]:
    """Rename a finished folder to a name derived from its contents. Return the name, and the files
    with paths relative to the parent folder."""
    name = f"{kind}-{name_of(files)}"
    home = stage.parent
    if (home / name).exists():
        names = {path.name for path in (home / name).iterdir()}
        whole = names == set(files) and not damage(home / name, files)
        fs.remove(stage if whole else home / name)
    if stage.exists():
        fs.rename(stage, home / name)
    return name, {f"{name}/{file}": entry for file, entry in files.items()}


def sweep(home: Path, commits: Iterable[Commit], names: Iterable[str]) -> None:
    """Remove everything that is neither part of ``commits`` nor listed in ``names``."""
    kept = {".lock", CHECKED, *names}
    for commit in commits:
        kept |= {commit.codec, *(name.partition("/")[0] for name in commit.files)}
    for path in home.iterdir():
        if path.name not in kept:
            fs.remove(path)


def check(home: Path, commit: Commit) -> None:
    """Raise ManifestError with the name of the file if a file is missing, truncated, or changed
    since it was written.

    Files that still have the stamp of their last verification are not read; all other files are
    read and compared. ``damage`` reads all files.
    """
    known = _read_checks(home)
    stamps = {}
    for name, entry in commit.files.items():
        path = home / name
        stamps[name] = stamp(path)
        if stamps[name][0] != entry[0]:
            raise ManifestError(f"{path}: missing or cut short", DAMAGED)
        if known.get(name) != stamps[name] and sha256(path) != entry[1]:
            raise ManifestError(f"{path}: its bytes have changed since they were written", DAMAGED)
    if any(known.get(name) != mark for name, mark in stamps.items()):
        _remember(home, stamps)


def damage(folder: Path, files: Files) -> list[str]:
    """Return the names of ``files`` in a folder that have changed or are missing. All files are
    read."""
    return [
        str(folder / name)
        for name, (size, digest) in files.items()
        if stamp(folder / name)[0] != size or sha256(folder / name) != digest
    ]


def stamp(path: Path) -> list[int]:
    """Return the size, times and inode of a file, which change when the file is written, or [-1] if
    the file is missing."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return [-1]
    except OSError as error:
        check_system(path, error, BackendError)
        raise
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _read_checks(home: Path) -> dict[str, list[int]]:
    try:
        known = read_json(home / CHECKED)
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _remember(home: Path, stamps: Mapping[str, list[int]]) -> None:
    # If stamps are lost or the folder is read-only, files are simply compared again.
    note = home / f"{CHECKED}.{os.getpid()}.tmp"
    with suppress(OSError):
        try:
            note.write_text(json.dumps(stamps), encoding="utf-8")
            note.replace(home / CHECKED)
        finally:
            note.unlink(missing_ok=True)


def _replace_file(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with fs.create(temporary) as handle:
        handle.write(data)
    fs.rename(temporary, path)
