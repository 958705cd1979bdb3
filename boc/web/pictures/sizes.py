"""Widths and heights of pictures, for which no search waits long."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeAlias

from boc.errors import BocError, ImageError
from boc.inputs.images import image_size
from boc.types import Item

KNOWN = 200_000  # pictures whose size is cached
READERS = 4  # threads: a slow disk answers several requests in the time of one
PATIENCE = 0.02  # seconds that a search waits for sizes

Size: TypeAlias = tuple[int, int]


class Sizes:
    """Widths and heights of pictures as displayed. Thread-safe.

    They come from the fields ``width`` and ``height`` of an item, else from the header of its file, which is read once.
    """

    def __init__(self) -> None:
        self._readers = ThreadPoolExecutor(READERS, "sizes")
        self._known: dict[tuple[str, int, int], Size | None] = {}

    def of(self, items: Sequence[Item], patience: float | None = PATIENCE) -> list[Size | None]:
        """The size of each picture; None for a sentence, for an unreadable picture, and for one that was not read when
        ``patience`` seconds had passed for all. Reading continues, for the next answer."""
        declared = [_declared(item) for item in items]
        pictures = zip(items, declared, strict=True)
        paths = [item.content for item, size in pictures if size is None and item.modality == "image"]
        read: dict[str, Size | None] = {}
        jobs = [self._readers.submit(self._read, paths[i::READERS], read) for i in range(min(READERS, len(paths)))]
        for job in wait(jobs, patience).done:
            job.result()
        return [size or read.get(item.content) for item, size in zip(items, declared, strict=True)]

    def warm(self) -> None:
        """Load the decoders now, not while the first search waits."""
        from PIL import Image

        Image.init()

    def _read(self, paths: Sequence[str], into: dict[str, Size | None]) -> None:
        for path in paths:
            into[path] = self._size(Path(path))

    def _size(self, path: Path) -> Size | None:
        """The size of a picture; its header is read if it is not known, or has changed."""
        try:
            found = path.stat()
        except OSError:
            return None
        key = (str(path), found.st_size, found.st_mtime_ns)
        if key not in self._known:
            if len(self._known) > KNOWN:
                self._known.clear()
            try:
                self._known[key] = image_size(path)
            except ImageError:
                self._known[key] = None
            except BocError:  # the system has no more files or memory: no fault of the picture
                return None
        return self._known.get(key)


def _declared(item: Item) -> Size | None:
    """The size that the fields of a picture tell."""
    width, height = item.fields.get("width"), item.fields.get("height")
    if item.modality == "image" and isinstance(width, int) and isinstance(height, int) and width > 0 and height > 0:
        return width, height
    return None
