"""Perform all file operations of the embedded engine in one place, so that crash tests can replace
them.

After ``create`` and ``adopt``, the content of a file survives a power failure; its name survives
only after ``sync`` of its folder.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from boc.atomic_files import remove as remove, sync as _sync
from boc.errors import BackendError, advice


@contextmanager
def _report_errors(path: Path) -> Iterator[None]:
    """Convert system errors to BackendError if a file cannot be written."""
    try:
        yield
    except OSError as error:
        raise BackendError(
            f"{path}: cannot be written ({error.strerror or error}); {advice(error)}, and repeat",
        ) from error


@contextmanager
def create(path: Path) -> Iterator[BinaryIO]:
    """Open a new file for writing, and sync its content when the ``with`` block ends without an
    error. Raises BackendError if the file cannot be written."""
    with _report_errors(path), path.open("wb") as handle:
        yield handle
        handle.flush()
        os.fsync(handle.fileno())


def adopt(path: Path) -> None:
    """Sync the content of a file that other code has written. Raises BackendError if the file
    cannot be written."""
    with _report_errors(path):
        _sync(path)


def sync(folder: Path) -> None:
    """Sync the file names in a folder."""
    _sync(folder)


def make(folder: Path) -> None:
    """Create a new folder."""
    folder.mkdir()


def rename(old: Path, new: Path) -> None:
    """Rename a file or folder. An existing file with the new name is replaced."""
    old.replace(new)
