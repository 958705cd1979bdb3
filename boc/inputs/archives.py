"""Open members of tar archives as files, by paths through the archive such as
``shards/0.tar/cat.jpg``."""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias

from boc.errors import SourceError

SUFFIX = ".tar"
FileState: TypeAlias = tuple[int, ...]
"""Size, modification time and change time (ns), inode and device of a file; empty if there is no
file."""

PACKED = (b"\x1f\x8b", b"BZ", b"\xfd7", b"(\xb5")  # first bytes of compressed files
KEPT = 16  # number of archives whose member lists are kept in memory
BLOCK = 512  # size of a header in bytes
# Limits for times, because a damaged file system may report times in another millennium.
LEAST = -(2**63)
MOST = 2**63 - 1
LONGEST = 1 << 20  # maximum size of a name or another header, in bytes


class _Headers(io.FileIO):
    """Read the headers of an archive up to a maximum size. tarfile itself would read as many bytes
    as a header declares."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= LONGEST:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size)


class Members(NamedTuple):
    """Files in an archive. ``places`` maps names to offset and size, and ``faults`` describes the
    entries that were skipped."""

    places: dict[str, tuple[int, int]]
    faults: list[str]


_known: dict[FileState, Members] = {}


def identity(status: os.stat_result, size: int | None = None) -> FileState:
    """Return a state that identifies the contents of a file, or of a member of ``size`` bytes in
    it.

    Equal states mean equal bytes, even if pictures with the same size and time have swapped names.
    Equal bytes can have different states, for example in a copy, in a restored backup, or on a disk
    that was mounted again. If the state has changed, callers compare the bytes (as sync does) or
    repeat their work (as resumed commands and thumbnails do). Repeated work costs time but never
    leads to wrong results.
    """
    times = (min(max(time, LEAST), MOST) for time in (status.st_mtime_ns, status.st_ctime_ns))
    length = status.st_size if size is None else size
    return length, *times, status.st_ino & MOST, status.st_dev & MOST


def is_archive(path: Path) -> bool:
    """Return whether ``path`` has the suffix of a tar archive and is not a folder."""
    return path.suffix.lower() == SUFFIX and not path.is_dir()


def members(file: BinaryIO) -> Members:
    """Return the members of an open archive in its current state. Raises SourceError if the file is
    not an archive."""
    status = os.fstat(file.fileno())
    key = identity(status)
    known = _known.get(key)
    if known is None:
        if len(_known) >= KEPT:
            _known.clear()
        known = _known[key] = _members(file, status)
    return known


def _members(file: BinaryIO, status: os.stat_result) -> Members:
    """Read the headers of an archive. Damage between members or at the end does not affect other
    members."""
    if not stat.S_ISREG(status.st_mode) or file.read(2) in PACKED:
        raise SourceError(
            f"{file.name}: compressed, or not a regular file, so members cannot be read; "
            "decompress it to a .tar",
        )
    found = Members({}, [])
    end = 0
    size = status.st_size
    try:
        headers = _Headers(file.fileno(), closefd=False)  # the caller closes the file
        headers.seek(0)
        tar = tarfile.open(fileobj=headers, mode="r:", ignore_zeros=True)  # noqa: SIM115
    except (tarfile.TarError, ValueError) as error:
        raise SourceError(f"{file.name}: not a tar archive ({error}); recreate it") from error
    while tar.offset <= size:
        try:
            info = tar.next()
        except (tarfile.TarError, ValueError, OverflowError):
            # Intact headers may follow a damaged header.
            tar.offset += BLOCK
            continue
        if info is None:
            break
        tar.members.clear()  # type: ignore[attr-defined]  # otherwise it keeps all members
        name = os.path.normpath(info.name).lstrip("/")
        gap = os.pread(file.fileno(), min(max(0, info.offset - end), BLOCK), end)
        if gap.strip(b"\0") and gap[156:157] != tarfile.XGLTYPE:
            found.faults.append(f"bytes {end:,} to {info.offset:,} are damaged")
        end = info.offset_data + -(-info.size // BLOCK) * BLOCK
        if info.isdir():
            continue
        # A member may be at most 1 GB in size, and its name at most 4096 characters long.
        odd = info.issparse() or info.size > 10**9 or len(name) > 4096
        odd |= name.startswith("..") or "\0" in name
        if info.offset_data + info.size > size:
            found.faults.append(f"{name!a}: cut off at the end of the archive")
        elif odd or not info.isreg() or name in found.places:
            found.faults.append(f"{name!a}: a link, too large, or a repeated or invalid name")
        else:
            found.places[name] = (info.offset_data, info.size)
    return found


def opener(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """Open a file, or a member of an archive, and return its descriptor. This function is an
    ``opener`` for ``open``. A pipe is opened without waiting for a writer, and a member of an
    archive is copied to an unnamed file. Raises OSError like ``os.open``."""
    try:
        return os.open(path, flags | os.O_NONBLOCK)
    except NotADirectoryError:
        with _through(Path(path)) as (archive, name):
            return open_member(archive, name)


def read_head(path: Path | str, size: int) -> bytes:
    """Return the first ``size`` bytes of a file or a member of an archive, or no bytes if it cannot
    be read."""
    with suppress(OSError), open(path, "rb", opener=opener) as file:
        return file.read(size)
    return b""


def open_member(archive: BinaryIO, name: str) -> int:
    """Copy a member of an open archive, and return a file descriptor for the copy. Raises
    FileNotFoundError for an unknown member."""
    offset, size = place(archive, name)
    with tempfile.TemporaryFile() as copy:
        copy.write(os.pread(archive.fileno(), size, offset))
        copy.seek(0)
        moment = os.fstat(archive.fileno()).st_mtime_ns
        os.utime(copy.fileno(), ns=(moment, moment))
        return os.dup(copy.fileno())


def status_of_member(path: Path) -> tuple[int, os.stat_result]:
    """Return the size of a member of an archive, and the status of the archive. Raises OSError if
    the member does not exist."""
    with _through(path) as (archive, name):
        return place(archive, name)[1], os.fstat(archive.fileno())


def place(archive: BinaryIO, name: str) -> tuple[int, int]:
    """Return the offset and size of a member in an open archive. Raises FileNotFoundError for an
    unknown member."""
    try:
        return members(archive).places[name]
    except (KeyError, SourceError):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None


@contextmanager
def _through(path: Path) -> Iterator[tuple[BinaryIO, str]]:
    """Open the archive that contains ``path``, and yield the archive and the rest of the path.
    Raises OSError if the path does not lead through an archive."""
    outer = next(
        (outer for outer in path.parents if outer.suffix.lower() == SUFFIX and outer.is_file()),
        None,
    )
    if outer is None:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    with open(outer, "rb", opener=opener) as archive:
        yield archive, path.relative_to(outer).as_posix()
