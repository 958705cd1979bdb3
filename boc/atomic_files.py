"""Files that are whole or not there: write beside, flush to the disk, rename."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boc.errors import BocError


def sync(path: Path) -> None:
    """Make the bytes of a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``; when the block ends well it becomes ``path`` at once, durably.

    BocError if the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    check_writable(path)
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        raise BocError(f"{path}: cannot be written ({error.strerror or error}); check space and permissions") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` (UTF-8) at once."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_writable(path: Path) -> None:
    """Raise BocError unless ``path`` can be created or replaced. Creates missing parent folders."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BocError(f"{path.parent}: cannot be created ({error.strerror or error}); choose another place") from error
    if path.is_dir():
        raise BocError(f"{path} is a folder, a file is to be written there; choose another name")
    if not os.access(path.parent, os.W_OK):
        raise BocError(f"{path.parent}: not writable; choose another place or change its permissions")


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold ``folder`` against other writing processes; the lock goes with the process, however it ends."""
    check_writable(folder / ".lock")
    with (folder / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BocError(f"{folder} is being written by another process; wait for it or stop it") from None
        yield


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
