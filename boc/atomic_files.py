"""Write files atomically. A file is either complete or missing, because it is written under a
temporary name, synced, and renamed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from boc.errors import BocError, advice


def sync(path: Path) -> None:
    """Flush the bytes of a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network disks can sync files but not folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file, or a folder with its contents, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; if the block succeeds, rename the file to ``path``
    and sync it.

    Raises BocError if the folder is not writable.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    check_writable(path)
    try:
        with file_lock(temporary, f"{path} is"):
            temporary.open("w").close()  # discard what a killed process left behind
            mode = stat.S_IMODE(temporary.stat().st_mode)
            yield temporary
            temporary.chmod(mode)  # some libraries create private files
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    except OSError as error:
        raise BocError(
            f"{path}: cannot be written ({error.strerror or error}); {advice(error)}",
        ) from error


def write_text(path: Path, text: str) -> None:
    """Atomically replace the contents of the file ``path`` with ``text`` (UTF-8)."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_writable(path: Path) -> None:
    """Raise BocError unless ``path`` can be created or replaced. Missing parent folders are
    created."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BocError(
            f"{path.parent}: cannot be created ({error.strerror or error}); {advice(error)}",
        ) from error
    if path.is_dir():
        raise BocError(f"{path} is a folder, but the output is a file; choose another name")
    if not os.access(path.parent, os.W_OK):
        raise BocError(
            f"{path.parent}: not writable; change the permissions, or choose another place",
        )


@contextmanager
def file_lock(path: Path, what: str, *, keep: bool = False) -> Iterator[None]:
    """Create and lock the file ``path``, and delete it at the end unless ``keep`` is true.

    The lock is released when the process ends, even if the process is killed. Raises BocError if
    another process holds the lock; ``what`` is the subject of the message and includes "is". Also
    raises BocError if the disk does not support file locks, as is the case for some network disks.
    Readers do not need the lock.
    """
    while True:
        with path.open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BocError(
                    f"{what} being written by another process; wait for that process, or stop it",
                ) from None
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                    raise
                path.unlink()
                raise BocError(
                    f"{path.parent}: this disk does not support file locks ({error.strerror}), "
                    "which keep two processes from writing at once; use a folder on a local disk",
                ) from error
            if not _is(path, handle.fileno()):
                continue  # another process removed the file after this process opened it
            try:
                yield
            finally:
                if not keep and _is(path, handle.fileno()):
                    path.unlink()
            return


def _is(path: Path, descriptor: int) -> bool:
    """Return whether the open file ``descriptor`` is still the file at ``path``."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Lock ``folder`` so that no other process writes to it, as ``file_lock`` does."""
    new = not folder.exists()
    check_writable(folder / ".lock")
    with ExitStack() as held:
        try:
            held.enter_context(file_lock(folder / ".lock", f"{folder} is", keep=True))
        except (OSError, BocError):
            if new:
                with suppress(OSError):
                    folder.rmdir()
            raise
        yield


@contextmanager
def open_whole(path: Path, opener: Callable[[str, int], int] | None = None) -> Iterator[BinaryIO]:
    """Open a regular file for reading. Raises OSError for pipes and devices, because reading from
    them may never end."""
    with open(
        path,
        "rb",
        opener=opener or (lambda name, flags: os.open(name, flags | os.O_NONBLOCK)),
    ) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield file


def sha256(*paths: Path, opener: Callable[[str, int], int] | None = None) -> str:
    """Return the SHA-256 digest, in hex, of the concatenated files."""
    digest = hashlib.sha256()
    for path in paths:
        feed(digest, path, opener)
    return digest.hexdigest()


def text_sha256(text: str) -> str:
    """Return the SHA-256 digest, in hex, of a text encoded as UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def json_sha256(value: object) -> str:
    """Return the SHA-256 digest, in hex, of a value serialized as JSON."""
    return text_sha256(json.dumps(value))


def feed(
    digest: hashlib._Hash,
    path: Path,
    opener: Callable[[str, int], int] | None = None,
) -> None:
    """Add the bytes of a file to a digest, block by block. ``hashlib.file_digest`` needs Python
    3.11."""
    with open_whole(path, opener) as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
