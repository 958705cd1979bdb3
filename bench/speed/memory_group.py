"""Hold processes to an amount of memory, page cache included, and see what they read from the disk.

It takes root, and a memory controller of control groups, version 1 or 2; a limit on address space or on resident memory
(``ulimit``) would not count cached pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOM = 1 << 50  # bytes: no limit
SECTOR = 512


class Group:
    """A control group of processes that take at most ``limit`` bytes, page cache included.

    OSError where none can be made.
    """

    def __init__(self, limit: int) -> None:
        first = Path("/sys/fs/cgroup/memory")
        self.first = first.is_dir()
        self.folder = (first if self.first else first.parent) / f"boc-bench-{os.getpid()}"
        self.folder.mkdir()
        self.limit(limit)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.folder.rmdir()

    def limit(self, size: int) -> None:
        """Hold the group to ``size`` bytes from now on; what is cached beyond is dropped."""
        name = "memory.limit_in_bytes" if self.first else "memory.max"
        (self.folder / name).write_text(str(size))

    def join(self) -> None:
        """Charge what this process takes from now on to the group."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    @property
    def inside(self) -> tuple[str, ...]:
        """What a command line begins with that is to run in the group."""
        return ("sh", "-c", f'echo $$ > {self.folder}/cgroup.procs; exec "$@"', "inside")

    @property
    def used(self) -> int:
        """The most that was used, in bytes."""
        return int((self.folder / ("memory.max_usage_in_bytes" if self.first else "memory.peak")).read_text())

    def parts(self) -> tuple[int, int]:
        """Bytes of the processes' own, those that the kernel keeps for them among these, and of cached files."""
        told = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        cached = int(told["total_cache" if self.first else "file"])
        whole = (self.folder / ("memory.usage_in_bytes" if self.first else "memory.current")).read_text()
        return int(whole) - cached, cached

    def forget(self) -> None:
        """Have the system drop all that is cached for the group, mapped or not."""
        if self.first:
            (self.folder / "memory.force_empty").write_text("0")
            return
        with suppress(BlockingIOError):  # it could not drop as much as was asked for, which was more than there is
            (self.folder / "memory.reclaim").write_text(str(self.parts()[1]))


def drop_cache(root: Path) -> None:
    """Have the system forget its copies of a file, or of all in a folder: cached pages are charged to who read them
    first, and would cost a limited process nothing."""
    for path in [root] if root.is_file() else root.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@dataclass(frozen=True)
class Reads:
    """Requests that a disk has answered, and bytes that they read."""

    requests: int
    size: int

    def __sub__(self, before: Reads) -> Reads:
        return Reads(self.requests - before.requests, self.size - before.size)


def reads_of(folder: Path) -> Reads | None:
    """What was read since the start of the machine from the disk that holds ``folder``, by any program; None if its
    file system is on no single disk."""
    device = folder.stat().st_dev
    for line in Path("/proc/diskstats").read_text().splitlines():
        major, minor, _, requests, _, sectors, *_ = line.split()
        if (int(major), int(minor)) == (os.major(device), os.minor(device)):
            return Reads(int(requests), SECTOR * int(sectors))
    return None


@contextmanager
def read_ahead(folder: Path, kilobytes: int | None) -> Iterator[int | None]:
    """Kilobytes that the system reads ahead of the disk that holds ``folder``: as they are, or others for a while."""
    device = folder.stat().st_dev
    place = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    if not place.exists():
        yield None
        return
    before = place.read_text().strip()
    try:
        if kilobytes is not None:
            place.write_text(str(kilobytes))
        yield int(place.read_text())
    finally:
        if kilobytes is not None:
            place.write_text(before)
