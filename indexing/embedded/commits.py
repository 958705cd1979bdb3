"""What an index consists of: commits, each a file that lists segments, and CURRENT, which names the commit that counts.

    NAME/CURRENT            the name of a commit; replaced at once by renaming
    NAME/commit-*.json      manifest, codec, segments with their deleted rows, size and SHA-256 of every file
    NAME/loading.json       the same of a load that is not finished
    NAME/codec-*/*.npy      learned arrays of the codec
    NAME/segment-*/         see ``_segment``
    NAME/dead-*.npy         int32 rows of a segment that are deleted or replaced
    NAME/.checked           stamps of files that were found to be whole

Files never change once a commit names them; folders, commits and lists of dead rows are named by their contents. What
neither CURRENT nor loading.json needs is swept away by whoever writes next.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.atomic_files import sha256
from boc.errors import ManifestError
from boc.manifest import Manifest

from . import fs
from .npy_files import DAMAGED, Files, load_array, name_of

_COMMIT = re.compile(r"commit-[0-9a-f]{16}\.json")
LOADING = "loading.json"
CHECKED = ".checked"


@dataclass(frozen=True)
class Entry:
    """A segment of a commit: the name of its folder, and of the file of its dead rows, if any are."""

    name: str
    rows: int
    dead: str | None = None


@dataclass(frozen=True)
class Commit:
    """A whole index. ``files`` are relative to its folder."""

    manifest: Manifest
    codec: str
    segments: list[Entry] = field(default_factory=list)
    files: Files = field(default_factory=dict)

    def to_json(self) -> str:
        raw = {
            "manifest": json.loads(self.manifest.to_json()),
            "codec": self.codec,
            "segments": [asdict(entry) for entry in self.segments],
            "files": self.files,
        }
        return json.dumps(raw, indent=1, sort_keys=True)


def read(path: Path) -> Commit:
    """ManifestError if the commit is damaged, or of a newer format."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        manifest = Manifest.from_json(json.dumps(raw["manifest"]), where=str(path))
        files = {name: (int(size), str(digest)) for name, (size, digest) in raw["files"].items()}
        return Commit(manifest, raw["codec"], [Entry(**entry) for entry in raw["segments"]], files)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ManifestError(f"{path}: damaged ({error}); {DAMAGED}") from error


def current(home: Path) -> str:
    """The name of what is the index in ``home`` now; OSError if there is none."""
    return (home / "CURRENT").read_text(encoding="utf-8", errors="replace").strip()


def read_current(home: Path) -> tuple[str, Commit]:
    """The name of the commit that counts, and the commit. ManifestError if either is damaged."""
    name = current(home)
    path = home / name
    if not _COMMIT.fullmatch(name):
        raise ManifestError(f"{home / 'CURRENT'}: damaged ({name[:40]!r} names no commit); {DAMAGED}")
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read ({error}), which CURRENT names; {DAMAGED}") from error
    if name != f"commit-{found[:16]}.json":
        raise ManifestError(f"{path}: its bytes have changed, or CURRENT is damaged; {DAMAGED}")
    return name, read(path)


def publish(home: Path, commit: Commit) -> None:
    """Make ``commit`` what the index in ``home`` is. All its files must be on the disk.

    Those that nobody has a stamp of were just written, and are known to be whole.
    """
    data = commit.to_json().encode()
    name = f"commit-{hashlib.sha256(data).hexdigest()[:16]}.json"
    _put(home / name, data)
    fs.sync(home)
    _put(home / "CURRENT", name.encode())
    for folder in (home, home.parent, home.parent.parent):  # the engine may have made those, too
        fs.sync(folder)
    known = _checked(home)
    _remember(home, {name: known.get(name) or stamp(home / name) for name in commit.files})


def note_load(home: Path, commit: Commit) -> None:
    """Remember how far a load has come."""
    _put(home / LOADING, commit.to_json().encode())
    fs.sync(home)


def broken_load(home: Path) -> Commit | None:
    """A load that was killed, if one was and all that it left is whole."""
    try:
        found = read(home / LOADING)
        check(home, found)
    except ManifestError:
        return None
    return found


def forget_done_load(home: Path, manifest: Manifest) -> None:
    """Remove what is noted of a load that was killed right after its end, of which ``manifest`` came."""
    with suppress(ManifestError):
        if read(home / LOADING).manifest.same_contents(manifest):
            fs.remove(home / LOADING)


def keep_array(home: Path, kind: str, array: NDArray[Any]) -> tuple[str, Files]:
    """An array in a file named by its contents."""
    path = home / f".{kind}.tmp"
    with fs.create(path) as handle:
        np.save(handle, array, allow_pickle=False)
    digest, size = sha256(path), path.stat().st_size
    name = f"{kind}-{digest[:12]}.npy"
    fs.rename(path, home / name)
    return name, {name: (size, digest)}


def keep_codec(home: Path, arrays: Mapping[str, NDArray[Any]]) -> tuple[str, Files]:
    """The learned arrays of a codec in a folder named by their contents."""
    stage = home / "building-codec"
    fs.remove(stage)
    fs.make(stage)
    files = {}
    for name, array in arrays.items():
        path = stage / f"{name}.npy"
        with fs.create(path) as handle:
            np.save(handle, np.ascontiguousarray(array), allow_pickle=False)
        files[path.name] = (path.stat().st_size, sha256(path))
    fs.sync(stage)
    return keep_folder(stage, "codec", files)


def keep_folder(stage: Path, kind: str, files: Files) -> tuple[str, Files]:
    """Name a folder of whole files by its contents."""
    name = f"{kind}-{name_of(files)}"
    home = stage.parent
    if (home / name).exists():
        fs.remove(stage if _whole(home / name, files) else home / name)
    if stage.exists():
        fs.rename(stage, home / name)
    return name, {f"{name}/{file}": told for file, told in files.items()}


def load_codec(home: Path, commit: Commit) -> dict[str, NDArray[Any]]:
    """The learned arrays of a commit."""
    inside = sorted(Path(name) for name in commit.files if name.startswith(f"{commit.codec}/"))
    return {path.stem: load_array(home / path) for path in inside}


def sweep(home: Path, commits: Iterable[Commit], names: Iterable[str]) -> None:
    """Remove what none of some commits, and none of some ``names``, needs."""
    kept = {".lock", CHECKED, *names}
    for commit in commits:
        kept |= {commit.codec, *(name.partition("/")[0] for name in commit.files)}
    for path in home.iterdir():
        if path.name not in kept:
            fs.remove(path)


def check(home: Path, commit: Commit) -> None:
    """ManifestError naming a file that is missing, cut short, or has changed since it was written.

    A file whose stamp is that of a file found whole is taken to be so; all others are read and compared. ``damage``
    reads all.
    """
    known, found = _checked(home), {}
    for name, told in commit.files.items():
        path = home / name
        found[name] = stamp(path)
        if found[name][0] != told[0]:
            raise ManifestError(f"{path}: missing or cut short; {DAMAGED}")
        if known.get(name) != found[name] and sha256(path) != told[1]:
            raise ManifestError(f"{path}: its bytes have changed since they were written; {DAMAGED}")
    if any(known.get(name) != mark for name, mark in found.items()):
        _remember(home, found)


def damage(home: Path, commit: Commit) -> list[str]:
    """The files whose bytes are not those that were written, or that are missing."""
    files = [(home / name, told) for name, told in commit.files.items()]
    return [str(path) for path, told in files if stamp(path)[0] != told[0] or sha256(path) != told[1]]


def stamp(path: Path) -> list[int]:
    """Size of a file, and what changes whenever it is written to; a missing one has no size."""
    try:
        found = path.stat()
    except OSError:
        return [-1]
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _checked(home: Path) -> dict[str, list[int]]:
    try:
        known = json.loads((home / CHECKED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _remember(home: Path, stamps: Mapping[str, list[int]]) -> None:
    # Lost, or unwritable where a folder may only be read, files are compared again.
    note = home / f"{CHECKED}.{os.getpid()}.tmp"
    with suppress(OSError):
        note.write_text(json.dumps(stamps), encoding="utf-8")
        note.replace(home / CHECKED)


def _whole(folder: Path, files: Files) -> bool:
    """Whether a folder holds these files and no others."""
    return {path.name for path in folder.iterdir()} == set(files) and all(
        (folder / name).stat().st_size == size and sha256(folder / name) == digest
        for name, (size, digest) in files.items()
    )


def _put(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with fs.create(temporary) as handle:
        handle.write(data)
    fs.rename(temporary, path)
