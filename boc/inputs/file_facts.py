"""Read facts about a picture file as metadata: size, times and hash, facts that the camera wrote,
and the text inside the picture."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from boc.atomic_files import sha256
from boc.inputs import camera, ocr, written
from boc.inputs.archives import MOST, FileState, identity, opener, status_of_member
from boc.types import FOR_PROGRAMS, FieldType, ImageRef

T = TypeVar("T")
FIELDS: dict[str, FieldType] = {
    "size": "integer",
    "modified": "date",
    "modified_ns": "integer",
    "changed_ns": "integer",
    "inode": "integer",
    "device_number": "integer",
    "content_hash": "keyword",
}
"""Types of the facts.

``size`` is in bytes. ``modified_ns`` is the exact value of ``modified`` in nanoseconds since 1970.
``changed_ns`` is the time of the last change to the file or its directory entry; programs cannot
set this time. ``inode`` is the number of the file on its disk. Both also cover XMP files beside the
picture, see ``state_of``. ``content_hash`` is the first part of the SHA-256 digest of the file.
These facts distinguish a changed file from an unchanged file. ``device_number`` is the number of
the disk, which does not indicate a change, because each mount may assign a different number."""

STATE = ("size", "modified_ns", "content_hash")
"""Facts that an index needs for a comparison with its files."""

DECODED: dict[str, FieldType] = {**ocr.FIELDS, "cut": "boolean"}
"""Types of the facts for which the pixels are read: the text inside a picture, and whether its file
is truncated."""

FACTS: dict[str, FieldType] = {**FIELDS, **camera.FIELDS, **DECODED}
"""Types of all facts about a picture."""

GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
HASH = 32  # number of hexadecimal digits of a content hash
# Time in ns within which two changes may result in the same file time, on most disks and on FAT.
GRAIN = 20 * 10**6
COARSE = 2 * 10**9


def facts_of(image: ImageRef, state: FileState, digest: str) -> dict[str, Any]:
    """Return all facts about a picture and its file, whose ``state`` and ``digest`` are already
    known."""
    return {**file_facts(state, digest), **camera.camera_facts(image)}


def file_facts(state: FileState, digest: str) -> dict[str, Any]:
    """Return the facts about a file with the given ``state`` and the content hash ``digest``, in
    the order of ``FIELDS``."""
    size, modified, changed, inode, device = state
    facts: dict[str, Any] = {"size": size}
    # A time may be outside the years 1 to 9999.
    with suppress(OverflowError, ValueError, OSError):
        moment = datetime.fromtimestamp(modified // 10**9, timezone.utc)
        facts["modified"] = moment.replace(tzinfo=None).isoformat()
    return facts | {
        "modified_ns": modified,
        "changed_ns": changed,
        "inode": inode,
        "device_number": device,
        "content_hash": digest,
    }


def is_unchanged(state: FileState, fields: Mapping[str, Any]) -> bool:
    """Return whether the ``state`` of a file matches the state recorded in ``fields``. Older
    indexes record no change time or no inode."""
    pairs = zip(("size", "modified_ns", "changed_ns", "inode"), state, strict=False)
    return all(fields.get(name, None if name in STATE else now) == now for name, now in pairs)


def state_of(path: Path | str) -> FileState:
    """Return the combined state of a file and the XMP files beside it; the state is empty if the
    file does not exist. Raises OSError if the state cannot be read, for example on a failing disk.

    The change time is the latest change time of these files, and the inode is the sum of their
    inodes, so that changing or removing an XMP file changes the state.
    """
    try:
        try:
            # Creating a Path object takes longer than the call itself, which matters for large
            # folders.
            status = os.stat(path)  # noqa: PTH116
            size = None
        except NotADirectoryError:
            size, status = status_of_member(Path(path))
    except ValueError:
        return ()
    except OSError as error:
        if error.errno in GONE:
            return ()
        raise
    if not stat.S_ISREG(status.st_mode):  # a pipe or device, whose data may never end
        return ()
    state = identity(status, size)
    for sidecar in written.sidecars(path):
        with suppress(OSError):
            beside = identity(os.stat(sidecar))  # noqa: PTH116
            changed = max(state[2], beside[2])
            state = (*state[:2], changed, (state[3] + beside[3]) & MOST, state[4])
    return state


def settled_state(path: Path | str) -> FileState:
    """Return the state of a file, such that every later change to the file also changes the state.
    Raises the same errors as ``state_of``.

    File times come from a coarse clock, so if a file has just changed, its state is read again
    after a short wait.
    """
    state = state_of(path)
    if state:
        grain = GRAIN if state[2] % 10**9 else COARSE
        young = state[2] + grain - time.time_ns()
        if 0 < young <= grain:
            time.sleep(young / 10**9)
            state = state_of(path)
    return state


def look(path: Path | str, state: Callable[[Path | str], FileState] = state_of) -> FileState | None:
    """Return the ``state`` of a file, or None if the state cannot be read."""
    try:
        return state(path)
    except OSError:
        return None


def content_hash(path: Path) -> str:
    """Return the content hash of the file at ``path``. Raises OSError if the file cannot be
    read."""
    return sha256(path, opener=opener)[:HASH]


def visible_fields(fields: Mapping[str, T]) -> dict[str, T]:
    """Return the ``fields`` that are shown to users."""
    return {name: value for name, value in fields.items() if name not in FOR_PROGRAMS}
