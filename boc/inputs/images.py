"""Pictures from files: whatever the mode or orientation, an upright RGB image, or an error that names the file."""

from __future__ import annotations

import base64
import errno
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from boc.errors import ADVICE, BocError, ImageError, advice

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
"""What Pillow may open. Others stay shut whatever a file is called: PostScript runs a program."""

SUFFIXES = frozenset({".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
MAX_PIXELS = 100_000_000
STRIP = 256  # rows that are laid on white at a time
WIDTH, HEIGHT, ORIENTATION = 0x0100, 0x0101, 0x0112  # tags of TIFF and EXIF
# Number of Pillow's Transpose that holds a picture of each orientation upright. Pillow's own exif_transpose writes the
# EXIF again, at which damaged EXIF fails.
TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What the system lacks for every picture, and not what is wrong with one."""


def read_image(path: Path, max_pixels: int = MAX_PIXELS) -> Image:
    """Upright RGB picture: EXIF orientation applied, transparency laid on white, 16-bit grey scaled to 8 bits.

    Grey of floating-point numbers up to 1 is stretched from its smallest to its largest value; of greater numbers it
    is taken as 16-bit.

    Raises ImageError for a missing, empty, truncated or foreign file, and for more than ``max_pixels`` pixels
    (checked before decoding); BocError where the system has no more files or memory to give.
    """
    from PIL.Image import Transpose

    with opened(path) as image:
        _check_size(image, path, max_pixels)
        image.load()
        turn = TURNS.get(_orientation(image))
        return _to_rgb(image if turn is None else image.transpose(Transpose(turn)))


def image_size(path: Path) -> tuple[int, int]:
    """Width and height of a picture held upright; it is not decoded. Raises as ``read_image``."""
    with opened(path) as image:
        width, height = image.size
        if image.format == "TIFF":  # newer versions of Pillow have turned the size already
            tags = cast(Any, image).tag_v2
            width, height = tags[WIDTH], tags[HEIGHT]
        lies = _orientation(image) >= 5
    return (height, width) if lies else (width, height)


@contextmanager
def opened(source: Path | BinaryIO, name: str = "") -> Iterator[ImageFile]:
    """A picture file of one of ``FORMATS``, to be decoded within the block. Raises as ``decoding``."""
    from PIL import Image

    with decoding(name or str(source)), warnings.catch_warnings():
        if isinstance(source, Path) and source.stat().st_size == 0:
            raise ImageError(f"{source}: empty file (0 bytes); delete it or fetch it again")
        warnings.simplefilter("ignore")  # the limit of pixels here is ``max_pixels``; odd EXIF is no news
        with Image.open(source, formats=FORMATS) as image:
            yield image


@contextmanager
def decoding(name: str) -> Iterator[None]:
    """ImageError, in place of whatever a decoder raises about the picture ``name``.

    Which classes those are depends on the format, on Pillow's version and on the bytes (struct.error, TypeError,
    RuntimeError, MemoryError, ...). One damaged picture must not end the work on all others, hence the broad except.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except BocError:
        raise
    except UnidentifiedImageError:
        raise ImageError(f"{name}: not a picture in a known format; convert it to JPEG or PNG") from None
    except Image.DecompressionBombError:
        raise ImageError(f"{name}: too many pixels, the limit is {MAX_PIXELS:,}; reduce the picture") from None
    except Exception as error:
        raise _told(name, error) from error


def _told(name: str, error: Exception) -> BocError:
    """What to tell of an error that was raised while a picture was opened or decoded."""
    if isinstance(error, OSError) and error.errno in ADVICE:
        kind = BocError if error.errno in SHORT else ImageError
        return kind(f"{name}: cannot be read ({error.strerror}); {advice(error)}")
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return ImageError(f"{name}: cannot be read ({reason}); fetch it again or delete it")


def _orientation(image: Image) -> int:
    """The EXIF orientation, 1 to 8. EXIF that cannot be read says nothing: the picture counts."""
    with suppress(ImageError), decoding("EXIF"):
        found = image.getexif().get(ORIENTATION, 1)
        return found if found in range(1, 9) else 1
    return 1


def _check_size(image: Image, path: Path, max_pixels: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise ImageError(f"{path}: {width} x {height} pixels, the limit is {max_pixels:,}; reduce the picture")


def _to_rgb(image: Image) -> Image:
    if image.mode == "F":
        low, high = cast("tuple[float, float]", image.getextrema())
        if high <= 1:
            factor = 255 / (high - low) if high > low else 0
            return image.point(lambda value: value * factor - low * factor).convert("L").convert("RGB")
        if high <= 255:
            return image.convert("L").convert("RGB")
    if image.mode.startswith("I;16") or image.mode in {"I", "F"}:
        return image.convert("I").point(lambda value: value / 256).convert("L").convert("RGB")
    if image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info:
        return _on_white(image)
    return image.convert("RGB")


def _on_white(image: Image) -> Image:
    """A picture with transparency laid on white, strip by strip: whole, it would be in memory five times."""
    from PIL import Image as Pillow

    width, height = image.size
    flat = Pillow.new("RGB", image.size)
    for top in range(0, height, STRIP):
        strip = image.crop((0, top, width, min(top + STRIP, height))).convert("RGBA")
        laid = Pillow.alpha_composite(Pillow.new("RGBA", strip.size, "white"), strip)
        flat.paste(laid.convert("RGB"), (0, top))
    return flat


def thumbnail_uri(path: Path, side: int = 320) -> str:
    """The picture as a ``data:`` address of a JPEG at most ``side`` pixels wide and high, for self-contained pages."""
    image = read_image(path)
    image.thumbnail((side, side))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
