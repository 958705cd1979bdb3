"""Pictures that somebody sends: looked at before they are decoded."""

from __future__ import annotations

import hashlib
import io
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from boc.errors import ImageError
from boc.web.errors import ProblemError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


@dataclass(frozen=True)
class Upload:
    """A picture in a file of its own while it is asked about. ``key`` is the digest of its bytes."""

    path: Path
    name: str
    key: str


@contextmanager
def kept(data: bytes, name: str | None, most: int, pixels: int) -> Iterator[Upload]:
    """The picture in a temporary file.

    ProblemError 400 for no bytes, or a picture that is damaged; 415 for what is no picture; 413 for more than
    ``most`` bytes, or ``pixels``, which its header tells before anything is decoded.
    """
    if len(data) > most:
        raise ProblemError(413, f"the picture has {len(data):,} bytes, the limit is {most:,}; reduce it")
    suffix = _suffix(data, pixels)
    with tempfile.NamedTemporaryFile(prefix="boc-", suffix=suffix) as handle:
        handle.write(data)
        handle.flush()
        path = Path(handle.name)
        shown = Path(name or "").name[:100] or "the picture"
        try:
            yield Upload(path, shown, hashlib.sha256(data).hexdigest())
        except ImageError as error:
            raise ProblemError(400, str(error)) from error


def _suffix(data: bytes, pixels: int) -> str:
    from PIL import Image, UnidentifiedImageError

    if not data:
        raise ProblemError(400, "the picture is empty (0 bytes); send a JPEG or PNG")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit here is ``pixels``
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                (width, height), kind = image.size, str(image.format).lower()
    except UnidentifiedImageError:
        raise ProblemError(415, f"this is no picture in a known format; send one of {', '.join(FORMATS)}") from None
    except Image.DecompressionBombError:
        raise ProblemError(413, f"too many pixels, the limit is {pixels:,}; reduce the picture") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise ProblemError(400, f"the picture cannot be read ({error}); send another copy of it") from None
    if width * height > pixels:
        raise ProblemError(413, f"{width} x {height} pixels, the limit is {pixels:,}; reduce the picture")
    return f".{kind}"
