"""Facts of the file of a picture, as metadata: its size, time and hash, by which a later sync recognises it, the values
that its camera wrote into it, and the words inside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from boc.atomic_files import sha256
from boc.errors import SourceError
from boc.inputs import camera, ocr
from boc.types import FieldType, ImageRef

T = TypeVar("T")
State: TypeAlias = tuple[int, ...]
"""Size, modification time and change time (ns) of a file; empty if there is none."""

FIELDS: dict[str, FieldType] = {
    "size": "integer",
    "modified": "date",
    "modified_ns": "integer",
    "content_hash": "keyword",
}
"""Types of the facts. ``size`` is in bytes; ``modified_ns`` is ``modified`` in nanoseconds since 1970, to the last
digit, and ``content_hash`` the begin of the SHA-256 of the file: these tell a changed file from an unchanged one."""

STATE = ("size", "modified_ns", "content_hash")
"""The facts that an index must hold to be compared with its files."""

FACTS: dict[str, FieldType] = {**FIELDS, **camera.FIELDS, **ocr.FIELDS}
"""Types of all facts of ``facts_of``, and of the words inside a picture, which are read on request only."""

HIDDEN = frozenset({"modified_ns", "content_hash"})
"""Facts for programs, which pages leave out."""

HASH = 32  # hexadecimal digits


def facts_of(image: ImageRef, known_hash: str | None = None) -> dict[str, Any]:
    """Return all facts of a picture and its file, to be read before the picture is; see ``file_facts`` for
    ``known_hash``."""
    return {**file_facts(image.path, known_hash), **camera.camera_facts(image)}


def file_facts(path: Path, known_hash: str | None = None) -> dict[str, Any]:
    """Return the facts of the file at ``path``, in the order of ``FIELDS``; none if it cannot be read.

    To be read before the picture is: if the file changes between the two, the next comparison sees it. ``known_hash``
    is its ``content_hash`` if that is known, which saves reading the file.
    """
    try:
        status = path.stat()
        digest = content_hash(path) if known_hash is None else known_hash
    except OSError:  # the reader of the picture reports the error
        return {}
    return {
        "size": status.st_size,
        **_date(status),
        "modified_ns": status.st_mtime_ns,
        "content_hash": digest,
    }


def state_of(path: str) -> State:
    """Return the state of a file. SourceError if it cannot be read, for example from a failing disk."""
    try:
        status = os.stat(path)  # noqa: PTH116 - making a Path for each of many files takes longer than the call
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return ()
    except OSError as error:
        raise SourceError(f"{path}: cannot be looked at ({error.strerror}); check disk and permissions") from error
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def content_hash(path: Path) -> str:
    """Return the ``content_hash`` of the file at ``path``; OSError if it cannot be read."""
    return sha256(path)[:HASH]


def visible_fields(fields: Mapping[str, T]) -> dict[str, T]:
    """Return the ``fields`` that a page shows."""
    return {name: value for name, value in fields.items() if name not in HIDDEN}


def _date(status: os.stat_result) -> dict[str, str]:
    try:
        moment = datetime.fromtimestamp(status.st_mtime_ns // 10**9, timezone.utc)
    except (OverflowError, ValueError, OSError):  # beyond the years 1 to 9999
        return {}
    return {"modified": moment.replace(tzinfo=None).isoformat()}
