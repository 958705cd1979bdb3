"""The file of a picture, opened for a route: the checked file is the decoded or sent one."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from boc.errors import ImageError
from boc.inputs.archives import FileState, identity, is_archive, open_member, place
from boc.inputs.images import check_file, check_pixels, decoding, open_image
from boc.paths import path_of
from boc.types import Item

LARGEST = 1_000_000_000  # bytes of a file
FOLDERS = 1 << 14  # that were indexed, whose places are kept
CHUNK = 1 << 18  # bytes read at a time
FOLDER = os.O_DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Content:
    """An open picture; ``kind`` is its format, such as "JPEG". ``path`` leads to this very file,
    of which ``state`` is the identity."""

    file: BinaryIO
    name: str
    status: os.stat_result
    state: FileState
    kind: str

    def read(self) -> Iterator[bytes]:
        """Yield the bytes of the file, as many as it had when it was opened."""
        self.file.seek(0)
        for position in range(0, self.status.st_size, CHUNK):
            yield self.file.read(min(CHUNK, self.status.st_size - position))

    @property
    def path(self) -> Path:
        return Path(f"/dev/fd/{self.file.fileno()}")


@contextmanager
def open_content(item: Item) -> Iterator[Content]:
    """Open the file of a picture. Every route that reads one does so here.

    An index says how its pictures are called, may be from a stranger, and files change. So this
    raises ImageError, which names no folder, for a file that is missing, no regular file, no
    picture of a known format, or too large, and for a link that leads out of the folder that was
    indexed. What is refused is logged, without its name.
    """
    name = Path(item.content).name
    with ExitStack() as stack:
        try:
            with decoding(name):
                descriptor, state = _open(item)
                file = stack.enter_context(os.fdopen(descriptor, "rb"))
                status = check_file(file, name, LARGEST)
                with open_image(file, name) as image:
                    check_pixels(image, name)
                    kind = str(image.format)
        except ImageError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                _log.warning("a picture was refused%s", str(error).removeprefix(name))
            raise
        yield Content(file, name, status, state, kind)


@lru_cache(FOLDERS)
def _first_seen(folder: Path) -> Path:
    """Return where a folder leads, as when it was looked at first: it may be swapped for a link to
    another."""
    return Path(os.path.realpath(folder))


def _open(item: Item) -> tuple[int, FileState]:
    """Return a descriptor of the file of a picture, which is in the folder that was indexed, and
    its state.

    That is the path before the id, or the folder of the file if it does not end with the id. Each
    folder on the way is opened in the one before, so that no folder can become a link meanwhile.
    """
    path = item.path
    root = item.content.removesuffix(f"/{item.id}")
    folder = path.parent if root == item.content else path_of(root or "/")
    real = Path(os.path.realpath(path))
    if ".." in path.parts or _first_seen(folder) not in real.parents:
        raise ImageError(
            f"{path.name}: its path leads out of the folder that was indexed; index it again, or "
            "restart",
        )
    at = os.open(real.anchor, FOLDER)
    for step, part in enumerate(real.parts[1:], 2):
        is_last = step == len(real.parts) or is_archive(Path(*real.parts[:step]))
        flags = os.O_NONBLOCK if is_last else FOLDER
        try:
            inner = os.open(part, flags | os.O_NOFOLLOW, dir_fd=at)
            if is_last and step < len(real.parts):
                with os.fdopen(inner, "rb") as outer:
                    member = "/".join(real.parts[step:])
                    state = identity(os.fstat(inner), place(outer, member)[1])
                    return open_member(outer, member), state
        finally:
            os.close(at)
        at = inner
    return at, identity(os.fstat(at))
