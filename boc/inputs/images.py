"""Pictures from files: whatever the mode or orientation, an upright RGB image, or an error that names the file."""

from __future__ import annotations

import base64
import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, cast

from boc.errors import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
MAX_PIXELS = 100_000_000


def read_image(path: Path, max_pixels: int = MAX_PIXELS) -> Image:
    """Upright RGB picture: EXIF orientation applied, transparency laid on white, 16-bit grey scaled to 8 bits.

    Grey of floating-point numbers up to 1 is stretched from its smallest to its largest value; of greater numbers it
    is taken as 16-bit.

    Raises ImageError for a missing, empty, truncated or foreign file, and for more than ``max_pixels`` pixels
    (checked before decoding).
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        if path.stat().st_size == 0:
            raise ImageError(f"{path}: empty file (0 bytes); delete it or fetch it again")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit here is ``max_pixels``
            with Image.open(path) as image:
                _check_size(image, path, max_pixels)
                return _to_rgb(ImageOps.exif_transpose(image))
    except UnidentifiedImageError:
        raise ImageError(f"{path}: not a picture in a known format; convert it to JPEG or PNG") from None
    except Image.DecompressionBombError:
        raise ImageError(f"{path}: too many pixels, the limit is {max_pixels:,}; reduce the picture") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        # Pillow's decoders raise SyntaxError and ValueError for damaged PNG and TIFF data.
        reason = getattr(error, "strerror", None) or error
        raise ImageError(f"{path}: cannot be read ({reason}); fetch it again or delete it") from error


def _check_size(image: Image, path: Path, max_pixels: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise ImageError(f"{path}: {width} x {height} pixels, the limit is {max_pixels:,}; reduce the picture")


def _to_rgb(image: Image) -> Image:
    from PIL import Image as Pillow

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
        rgba = image.convert("RGBA")
        return Pillow.alpha_composite(Pillow.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")


def thumbnail_uri(path: Path, side: int = 320) -> str:
    """The picture as a ``data:`` address of a JPEG at most ``side`` pixels wide and high, for self-contained pages."""
    image = read_image(path)
    image.thumbnail((side, side))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
