"""Open picture files for the routes. The open file that was checked is the same file that is
decoded or sent."""

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

LARGEST = 1_000_000_000  # maximum size of a picture file in bytes
FOLDERS = 1 << 14  # maximum number of indexed folders whose locations are cached
CHUNK = 1 << 18  # bytes per read
FOLDER = os.O_DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Content:
    """Open picture file. ``kind`` is the format, such as "JPEG", ``path`` always refers to this
    open file, and ``state`` identifies its contents."""

    file: BinaryIO
    name: str
    status: os.stat_result
    state: FileState
    kind: str

    def read(self) -> Iterator[bytes]:
        """Yield the bytes of the file, up to its size at the time of opening."""
        self.file.seek(0)
        for position in range(0, self.status.st_size, CHUNK):
            yield self.file.read(min(CHUNK, self.status.st_size - position))

    @property
    def path(self) -> Path:
        return Path(f"/dev/fd/{self.file.fileno()}")


@contextmanager
def open_content(item: Item) -> Iterator[Content]:
    """Open the file of a picture. All routes that read pictures call this function.

    The paths in an index may come from an untrusted source, and files may change. Raises
    ImageError, with a message that does not reveal the folder, if the file is missing, not a
    regular file, in an unsupported format or too large, or if a link leads out of the indexed
    folder. Rejected files are logged without their names.
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
                _log.warning("a picture was rejected%s", str(error).removeprefix(name))
            raise
        yield Content(file, name, status, state, kind)


@lru_cache(FOLDERS)
def _first_seen(folder: Path) -> Path:
    """Return the real location of the folder at the time of the first call. Later, the folder might
    be replaced by a link to another folder."""
    return Path(os.path.realpath(folder))


def _open(item: Item) -> tuple[int, FileState]:
    """Return an open descriptor and the state of a picture file, which must be in the indexed
    folder.

    The indexed folder is the part of the path before the id, or the folder of the file if the path
    does not end with the id. Each folder in the path is opened relative to its parent, so that no
    folder can be replaced by a link in the meantime.
    """
    path = item.path
    root = item.content.removesuffix(f"/{item.id}")
    folder = path.parent if root == item.content else path_of(root or "/")
    real = Path(os.path.realpath(path))
    if ".." in path.parts or _first_seen(folder) not in real.parents:
        raise ImageError(
            f"{path.name}: its path leads out of the indexed folder; index it again, or restart",
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
