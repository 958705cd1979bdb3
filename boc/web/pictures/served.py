"""Opens the picture of an item for every route that sends or decodes one.

Whoever may write an index or a folder of pictures chooses the paths in it. So a path is not trusted: what is sent is
the file that was checked, from the descriptor that was checked.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from boc.errors import ImageError
from boc.inputs.images import check_size, open_image
from boc.types import Item

FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK"))


@contextmanager
def open_picture(item: Item) -> Iterator[BinaryIO]:
    """Open the picture of an item: a regular file with the header of a picture that boc reads, in the folder that was
    indexed.

    ImageError, which names the file without its folder, for a link that leads elsewhere, a device, a pipe, a file of
    another kind, a picture of too many pixels, or a missing one.
    """
    path = item.content
    name = os.path.basename(path).encode(errors="replace").decode() or "the picture"  # noqa: PTH119 - of any text
    root = path.removesuffix(item.id) if path.endswith(f"/{item.id}") else os.path.dirname(path)  # noqa: PTH120
    try:
        file = _open(path, root)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no file has such a name"
        raise ImageError(f"{name}: cannot be read ({reason}); put it back, or index again") from error
    if file is None:
        raise ImageError(f"{name}: not a picture file in the folder that was indexed; index again")
    with file:
        with open_image(file, name) as image:
            check_size(image, name)
        file.seek(0)
        yield file


def _open(path: str, root: str) -> BinaryIO | None:
    """Open a regular file below ``root``; None if ``path`` is, or leads to, something else."""
    real = Path(os.path.realpath(path, strict=True))
    if not real.is_relative_to(Path(root).resolve()) or not stat.S_ISREG(real.lstat().st_mode):
        return None
    file = os.fdopen(os.open(real, FLAGS), "rb")
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and real.resolve() == real and os.path.samestat(real.lstat(), status):
        return file
    file.close()  # replaced meanwhile
    return None
