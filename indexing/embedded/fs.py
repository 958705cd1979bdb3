"""All that the embedded engine does to files, in one place: what is named is whole, and on the disk.

``create`` and ``adopt`` leave bytes that outlast a power cut, but not yet the name of the file: that needs ``sync`` of
its folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from boc.atomic_files import sync as _sync
from boc.errors import BackendError


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """BackendError in place of what the system says of a file that cannot be written."""
    try:
        yield
    except OSError as error:
        raise BackendError(f"{path}: cannot be written ({error.strerror or error}); check space, and repeat") from error


@contextmanager
def create(path: Path) -> Iterator[BinaryIO]:
    """A new file to write; its bytes are on the disk when the block ends well. BackendError if they cannot be."""
    with _told(path), path.open("wb") as handle:
        yield handle
        handle.flush()
        os.fsync(handle.fileno())


def adopt(path: Path) -> None:
    """Bring the bytes of a file that something else wrote to the disk. BackendError if they cannot be."""
    with _told(path):
        _sync(path)


def sync(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    _sync(folder)


def make(folder: Path) -> None:
    """A new folder."""
    folder.mkdir()


def rename(old: Path, new: Path) -> None:
    """Give a file or folder another name, in place of a file of that name."""
    old.replace(new)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all in it; nothing if it is not there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
