"""Members of tar archives as files: a path leads through the archive, as ``shards/0.tar/cat.jpg``."""

from __future__ import annotations

import errno
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from boc.errors import SourceError

SUFFIX = ".tar"
PACKED = (b"\x1f\x8b", b"BZ", b"\xfd7", b"(\xb5")  # the first bytes of packed files
KEPT = 16  # lists of members of the archives read last
BLOCK = 512  # bytes of a header
LARGEST = 1_000_000_000  # bytes of a member


class Members(NamedTuple):
    """The files of an archive: ``places`` are offset and size by name, ``faults`` what is left out."""

    places: dict[str, tuple[int, int]]
    faults: list[str]


_read_last: dict[tuple[int, ...], Members] = {}


def is_archive(path: Path) -> bool:
    """Return whether the name of ``path`` is that of a tar archive, and it is no folder."""
    return path.suffix.lower() == SUFFIX and not path.is_dir()


@contextmanager
def descriptor_of(archive: Path) -> Iterator[int]:
    """Open an archive to be read within the block. SourceErrors there name it."""
    descriptor = os.open(archive, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield descriptor
    except SourceError as error:
        raise SourceError(f"{archive}: {error}") from error.__cause__
    finally:
        os.close(descriptor)


def members(archive: int) -> Members:
    """Return the members of the archive that is open as ``archive``, a descriptor. SourceError if it is none."""
    status = os.fstat(archive)
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    known = _read_last.get(key)
    if known is None:
        known = _members(archive, status.st_size)
        for oldest in list(_read_last)[: len(_read_last) - KEPT + 1]:
            _read_last.pop(oldest, None)
        _read_last[key] = known
    return known


def _members(archive: int, size: int) -> Members:
    """Read the headers. What is damaged between members, or at the end, costs itself."""
    if not stat.S_ISREG(os.fstat(archive).st_mode) or os.pread(archive, 2, 0) in PACKED:
        raise SourceError("packed, or no regular file, so its members cannot be read one by one; unpack it to a .tar")
    places: dict[str, tuple[int, int]] = {}
    faults: list[str] = []
    end = 0
    with open(archive, "rb", closefd=False) as file:
        try:
            tar = tarfile.open(fileobj=file, mode="r:", ignore_zeros=True)  # noqa: SIM115 - closing it closes nothing
        except tarfile.TarError as error:
            raise SourceError(f"no tar archive ({error}); make it again") from error
        while tar.offset <= size:
            try:
                info = tar.next()
            except (tarfile.TarError, ValueError, OverflowError):  # of a damaged header, after which others may follow
                tar.offset += BLOCK
                continue
            if info is None:
                break
            tar.members.clear()  # type: ignore[attr-defined]  # which would all be kept
            name = os.path.normpath(info.name).lstrip("/")
            gap = os.pread(archive, min(info.offset - end, BLOCK), end) if info.offset > end else b""
            if gap.strip(b"\0") and gap[156:157] != tarfile.XGLTYPE:
                faults.append(f"bytes {end:,} to {info.offset:,} are damaged")
            end = info.offset_data + -(-info.size // BLOCK) * BLOCK
            if not info.isreg():
                if not info.isdir():
                    faults.append(f"{name!a}: no regular file")
            elif info.offset_data + info.size > size:
                faults.append(f"{name!a}: cut off at the end of the archive")
            elif info.issparse() or info.size > LARGEST or name.startswith("..") or name in places:
                faults.append(f"{name!a}: occurs again, leads out of the archive, or is larger than {LARGEST:,} bytes")
            else:
                places[name] = (info.offset_data, info.size)
    return Members(places, faults)


def opener(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a file, as the ``opener`` of ``open``: of a pipe without waiting for its writer, of a
    member of an archive as a file without a name. OSError as ``os.open``."""
    try:
        return os.open(path, flags | os.O_NONBLOCK)
    except NotADirectoryError:
        archive, name = _split(Path(path))
        if archive is None:
            raise
    with descriptor_of(archive) as descriptor:
        return open_member(descriptor, name)


def open_member(archive: int, name: str) -> int:
    """Return a descriptor of a copy of a member of an open archive. FileNotFoundError if there is none."""
    offset, size = _place(archive, name)
    with tempfile.TemporaryFile() as copy:
        copy.write(os.pread(archive, size, offset))
        copy.flush()
        copy.seek(0)
        moment = os.fstat(archive).st_mtime_ns
        os.utime(copy.fileno(), ns=(moment, moment))
        return os.dup(copy.fileno())


def status_of_member(path: Path) -> tuple[int, os.stat_result] | None:
    """Return the size of the member of an archive at ``path``, and the status of the archive; None if there is none."""
    archive, name = _split(path)
    if archive is None:
        return None
    try:
        with descriptor_of(archive) as descriptor:
            return _place(descriptor, name)[1], os.fstat(descriptor)
    except FileNotFoundError:
        return None


def _place(archive: int, name: str) -> tuple[int, int]:
    try:
        return members(archive).places[name]
    except (KeyError, SourceError):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None


def _split(path: Path) -> tuple[Path | None, str]:
    """Return the archive on the way to ``path``, if there is one, and the rest of the path."""
    archive = next((outer for outer in path.parents if outer.suffix.lower() == SUFFIX and outer.is_file()), None)
    return archive, "" if archive is None else path.relative_to(archive).as_posix()
