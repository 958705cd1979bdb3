"""Checks of a backend: whether it can be read and written, and what it holds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from boc import plugins
from boc.errors import BocError
from boc.plugins import Backend

from ._finding import Finding
from ._machine import available_memory, shown
from ._server import server
from ._software import install

LITTLE = 1 << 30  # bytes free on a disk


def place(at: str) -> Iterator[Finding]:
    """Findings on the backend at an address."""
    try:
        backend = plugins.backend(at)
    except BocError as error:
        todo = install(at.partition("+")[0]) or "correct the address: file:DIR, elastic+URL or opensearch+URL"
        yield Finding("problem", "address", str(error), todo)
        return
    if at.startswith("file:"):
        yield from _folder(at, backend)
    else:
        yield from server(at)


def _folder(at: str, backend: Backend) -> Iterator[Finding]:
    folder = Path(at.removeprefix("file:")).expanduser()
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        yield Finding("problem", at, f"{there} is a file, must be a folder", "name another folder with --at")
        return
    if not os.access(there, os.R_OK | os.X_OK):
        yield Finding("problem", at, f"{there} may not be read by this user", f"chmod u+rx {there}, or ask its owner")
        return
    if not os.access(there, os.W_OK):
        todo = "to make indexes, choose another place with --at, or change its permissions"
        yield Finding("note", at, f"{there} can be read and not be written", todo)
    free = shutil.disk_usage(there).free
    if free < LITTLE:
        yield Finding("note", at, f"{shown(free)} free on its disk", "free some before making an index")
    if there != folder:
        yield Finding("note", at, f"not there yet, {shown(free)} free on its disk", "boc index NAME SOURCE makes it")
        return
    yield from _indexes(at, backend, free)


def _indexes(at: str, backend: Backend, free: int) -> Iterator[Finding]:
    names, size = backend.names(), 0
    for name in names:
        try:
            index = backend.open(name)
        except (BocError, OSError) as error:
            yield Finding("problem", f"index {name}", str(error), f"boc delete {name} --all, and make it again")
            continue
        items, here = index.manifest.items, sum(index.sizes().values())
        size += here
        contents = f"{items.get('image', 0):,} pictures, {items.get('text', 0):,} captions, {shown(here)}"
        yield Finding("ok", f"index {name}", f"{contents}; encoder {index.manifest.identity.spec}")
    if not names:
        yield Finding("note", at, f"holds no index yet, {shown(free)} free on its disk", "boc index NAME SOURCE")
        return
    memory = available_memory()
    if memory is not None and size > memory:
        what = f"its indexes have {shown(size)}, of memory there is {shown(memory)}: searches wait for the disk"
        yield Finding("note", at, what, "more memory, or a smaller code: boc tune NAME --by bytes")
    yield Finding("ok", at, f"{len(names)} indexes of {shown(size)}, {shown(free)} free on its disk")
