"""A small disk for the data of a node, in memory, so that it can be filled. Mounting it needs the rights of root."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from boc.errors import BackendError

ROOM = 400_000_000  # bytes of the disk
PATIENCE_S = 120


class NoDiskError(BackendError):
    """No small disk can be mounted here."""


def until(holds: Callable[[], bool], otherwise: str) -> None:
    """Wait until ``holds``; BackendError with the words ``otherwise`` after two minutes."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise BackendError(otherwise)
        time.sleep(1)


def fill(path: Path) -> None:
    """Write a file that leaves less than a fiftieth of the disk free."""
    with path.open("wb") as file:
        while shutil.disk_usage(path.parent).free > ROOM // 50:
            file.write(bytes(ROOM // 100))
            file.flush()


@contextmanager
def small_disk(node: Any, green: Callable[[], None]) -> Iterator[None]:
    """The data of ``node`` are on a disk of ROOM bytes; ``green`` waits for the cluster. NoDiskError if none can be
    mounted."""
    data, kept = node.folder / "data", node.folder / "kept"

    def moved(source: Path, target: Path) -> None:
        for part in source.iterdir():
            shutil.move(part, target)

    node.stop()
    kept.mkdir()
    moved(data, kept)
    disk = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "boc", str(data)]
    mounted = subprocess.run(disk, capture_output=True, check=False)
    moved(kept, data)
    node.start()
    green()
    try:
        if mounted.returncode != 0:
            raise NoDiskError(f"no small disk can be mounted: {mounted.stderr.decode().strip()}")
        yield
    finally:
        node.stop()
        moved(data, kept)
        if mounted.returncode == 0:
            subprocess.run(["umount", str(data)], check=True)
        moved(kept, data)
        kept.rmdir()
        node.start()
        green()
