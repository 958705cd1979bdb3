"""Create thumbnails of pictures, and cache them in a folder."""

import hashlib
import math
import os
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from boc.inputs.archives import FileState
from boc.inputs.images import thumbnail
from boc.web.pictures.content import Content
from boc.web.pictures.decoding import PixelBudget

SIDES = (240, 480, 960, 1920)


class Thumbnails:
    """Create JPEG thumbnails, at most ``side`` pixels wide and high, and cache them in ``folder``.
    Thread-safe.

    The name of a thumbnail is a digest of the picture's path and state, so a changed picture gets a
    new thumbnail. When the cache exceeds ``most`` bytes, the oldest thumbnails are removed. If the
    folder is not writable, thumbnails are created on every request.
    """

    def __init__(self, folder: Path, most: int, budget: PixelBudget) -> None:
        self._folder = folder
        self._most = most
        self._budget = budget
        self._lock = threading.Lock()
        self._total = math.inf
        self._making = threading.BoundedSemaphore(max(1, min(4, (os.cpu_count() or 2) - 1)))

    def name(self, path: str, state: FileState, side: int) -> str:
        """Return the file name of a picture's thumbnail. The name changes whenever the picture
        changes."""
        facts = f"{path}\0{state}\0{side}"
        return hashlib.sha256(facts.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def get(self, picture: Content, name: str, side: int) -> bytes:
        """Return the thumbnail of a picture, which is the JPEG file ``name`` in the cache. Raises
        ImageError if the picture cannot be decoded."""
        file = self._folder / name[:2] / f"{name}.jpg"
        with suppress(OSError):
            return file.read_bytes()
        with self._making:
            with suppress(OSError):  # another thread may have created the file in the meantime
                return file.read_bytes()
            with self._budget.of(picture.path, picture.name):
                data = thumbnail(picture.path, side)
        with suppress(OSError):
            self._keep(file, data)
        return data

    def _keep(self, file: Path, data: bytes) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".tmp", delete=False) as handle:
            handle.write(data)
        Path(handle.name).replace(file)
        with self._lock:
            self._total += len(data)
            if self._total > self._most:
                self._recount()

    def _recount(self) -> None:
        """Add up the sizes of all files. If the total exceeds the limit, remove the oldest files
        until it is at most four fifths of the limit."""
        files = []
        for path in self._folder.glob("*/*"):
            with suppress(OSError):
                status = path.stat()
                files.append((status.st_mtime_ns, status.st_size, path))
        self._total = sum(size for _, size, _ in files)
        if self._total > self._most:
            for _, size, path in sorted(files):
                if self._total > 0.8 * self._most:
                    self._total -= size
                    path.unlink(missing_ok=True)
