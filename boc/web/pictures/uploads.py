"""Check uploaded pictures before they are decoded."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from boc.errors import ImageError
from boc.inputs.images import formats, open_image, picture_file
from boc.web.http.responses import ProblemError


@dataclass(frozen=True)
class Upload:
    """Uploaded picture in a temporary file; ``key`` is the digest of its bytes."""

    path: Path
    name: str
    key: str


@contextmanager
def keep_upload(data: bytes, name: str | None, most: int, pixels: int) -> Iterator[Upload]:
    """Store an uploaded picture in a temporary file for the duration of the block.

    Raises ProblemError 400 for an empty or damaged picture, 415 for a file that is not a picture,
    and 413 for more than ``most`` bytes or more than ``pixels`` pixels. The number of pixels is
    read from the header before the picture is decoded.
    """
    if len(data) > most:
        raise ProblemError(
            413,
            f"the picture has {len(data):,} bytes, but the limit is {most:,}; send a smaller "
            "picture",
        )
    if not data:
        raise ProblemError(400, "the picture is empty (0 bytes); send a JPEG or PNG")
    try:
        with open_image(io.BytesIO(data), "the picture") as image:
            width, height = image.size
    except ImageError as error:
        from PIL import UnidentifiedImageError

        if isinstance(error.__context__, UnidentifiedImageError):
            raise ProblemError(
                415,
                f"the file is not a picture in a supported format; send one of "
                f"{', '.join(formats())}",
            ) from None
        raise ProblemError(400, str(error)) from None
    if width * height > pixels:
        raise ProblemError(
            413,
            f"{width} x {height} pixels, but the limit is {pixels:,}; use a smaller picture",
        )
    with picture_file(data) as path:
        shown = Path(name or "").name[:100] or "the picture"
        try:
            yield Upload(path, shown, hashlib.sha256(data).hexdigest())
        except ImageError as error:
            raise ProblemError(400, str(error)) from error
