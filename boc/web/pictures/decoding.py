"""Limit the memory of all pictures that are decoded at the same time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boc.errors import ImageError
from boc.inputs.images import image_size


class PixelBudget:
    """Let threads decode pictures of at most ``pixels`` in total; a larger picture is decoded
    alone. Thread-safe."""

    def __init__(self, pixels: int) -> None:
        self._pixels = pixels
        self._used = 0
        self._changed = threading.Condition()

    @contextmanager
    def of(self, path: Path, name: str) -> Iterator[None]:
        """Wait until the picture may be decoded inside the block. Raises ImageError with the
        picture's ``name`` if it cannot be decoded, since a response must not reveal paths of this
        disk."""
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
