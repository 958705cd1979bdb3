"""Limit the total memory for pictures that are decoded at the same time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boc.errors import ImageError
from boc.inputs.images import image_size


class PixelBudget:
    """Allow threads to decode pictures with at most ``pixels`` pixels in total. A larger picture is
    decoded on its own. Thread-safe."""

    def __init__(self, pixels: int) -> None:
        self._pixels = pixels
        self._used = 0
        self._changed = threading.Condition()

    @contextmanager
    def of(self, path: Path, name: str) -> Iterator[None]:
        """Wait until the block may decode the picture. If the picture cannot be decoded, raises an
        ImageError that contains ``name`` instead of the path, because responses must not reveal
        local paths."""
        try:
            width, height = image_size(path)
            share = min(width * height, self._pixels)
            with self._changed:
                self._changed.wait_for(lambda: self._used + share <= self._pixels)
                self._used += share
            try:
                yield
            finally:
                with self._changed:
                    self._used -= share
                    self._changed.notify_all()
        except ImageError as error:
            raise ImageError(str(error).replace(str(path), name)) from error
