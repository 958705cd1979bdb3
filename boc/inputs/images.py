"""Read pictures in all colour modes and orientations as upright RGB images. Errors name the
file."""

from __future__ import annotations

import base64
import errno
import io
import math
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, lru_cache
from importlib.util import find_spec
from inspect import iscoroutinefunction
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, cast

import numpy as np

from boc.errors import ADVICE, BocError, CutShort, ImageError, advice
from boc.inputs.archives import opener

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Exif, Image
    from PIL.ImageFile import ImageFile

Picture: TypeAlias = "Path | str | Image | NDArray[np.uint8] | bytes | BinaryIO"
"""A picture: a path, a PIL image, an array (height, width, 3), bytes, or a binary file object."""

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF")
"""Formats that Pillow may open. All other formats are rejected, whatever the suffix of the file,
because for some of them, such as PostScript, Pillow runs another program."""

SUFFIXES = frozenset(
    [
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".mpo",
        ".png",
        ".webp",
        ".bmp",
        ".gif",
        ".tif",
        ".tiff",
        ".avif",
    ],
)
HEIF = frozenset({".heic", ".heif", ".hif"})
"""Suffixes of a format that many phones use. Reading these files requires the extra heic."""

GET_HEIF = "install their decoder: pip install 'boc[heic]'"
MAX_PIXELS = 100_000_000
"""Maximum number of pixels in a decoded picture. A JPEG with more pixels is decoded at an eighth of
its width and height."""
REDUCED = 8  # factor by which the sides of a large JPEG are reduced in decoding
QUALITY = 82  # JPEG quality of thumbnails
# Tag numbers of TIFF and EXIF
WIDTH = 0x0100
HEIGHT = 0x0101
ORIENTATION = 0x0112
XMP = ("xmp", "XML:com.adobe.xmp")  # keys of XMP in the ``info`` of a picture
# Pillow's Transpose operation for each orientation. Pillow's own exif_transpose also rewrites the
# EXIF, which fails if the EXIF is damaged.
TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}


@cache
def formats() -> tuple[str, ...]:
    """Return ``FORMATS``, with HEIF if the extra heic is installed."""
    try:
        import pillow_heif
    except ImportError:
        return FORMATS
    # Each decoder uses a single thread, because pictures are decoded in parallel.
    pillow_heif.register_heif_opener(thumbnails=False, decode_threads=1)
    return (*FORMATS, "HEIF")


def suffixes() -> frozenset[str]:
    """Return the suffixes of pictures that this installation can read, in lower case."""
    return SUFFIXES if find_spec("pillow_heif") is None else SUFFIXES | HEIF


def read_image(path: Path, max_pixels: int = MAX_PIXELS, least: int | None = None) -> Image:
    """Read a picture as an upright RGB image. The EXIF orientation is applied, colours are
    converted to sRGB, and transparent areas are blended with white.

    Greyscale images with more than 8 bits are scaled by the lowest common bit depth that fits their
    maximum value; floating-point images with values up to 1 are stretched from their minimum to
    their maximum. Of an animation, the first frame with more than one colour is read. For
    thumbnails, a JPEG may be decoded at a smaller size, but with at least ``least`` pixels on each
    side.

    Of a truncated file, the readable part is read, with a ``CutShort`` warning. Raises ImageError
    for a file that is missing, empty or not a picture, and for more than ``max_pixels`` pixels
    (checked before decoding). Raises BocError if the system runs out of file handles or memory.
    """
    from PIL.Image import Transpose

    with open_image(path) as image:
        check_pixels(image, str(path), max_pixels)
        width, height = image.size
        if least is not None:
            image.draft(None, (least, least))
        elif width * height > max_pixels:
            image.draft(None, (width // REDUCED, height // REDUCED))
        _load(image, path)
        picture = _to_rgb(image)
        if image.format != "TIFF" and getattr(image, "is_animated", False):
            # Search the first frames for a frame with more than one colour.
            with suppress(EOFError):
                for number in range(32):
                    image.seek(number)
                    frame = _to_rgb(image)
                    if _shows_something(frame):
                        picture = frame
                        break
        turn = TURNS.get(orientation(image))
        if turn is not None:
            picture = picture.transpose(Transpose(turn))
        return picture


def _load(image: ImageFile, path: Path) -> None:
    """Decode a picture, or the part of it that a truncated file contains."""
    from PIL import ImageFile as Files

    try:
        image.load()
    except OSError as error:
        if "truncated" not in str(error):
            raise
        # The setting is global, so meanwhile other threads may read truncated files without a
        # warning.
        Files.LOAD_TRUNCATED_IMAGES = True
        try:
            image.load()
        finally:
            Files.LOAD_TRUNCATED_IMAGES = False
        if not _shows_something(image):
            raise
        warnings.warn(CutShort(f"{path}: truncated; only the readable part was read"), stacklevel=3)


def _shows_something(image: Image) -> bool:
    """Return whether a picture has more than one colour."""
    ranges = np.array(image.getextrema()).reshape(-1, 2)
    return bool((ranges[:, 0] < ranges[:, 1]).any())


def image_size(path: Path) -> tuple[int, int]:
    """Return the width and height of the upright picture without decoding the picture. Raises the
    same errors as ``read_image``."""
    with open_image(path) as image:
        return upright_size(image)


def upright_size(image: Image) -> tuple[int, int]:
    """Return the upright width and height of an open picture."""
    width, height = image.size
    # For TIFF, newer versions of Pillow already return the upright size.
    if image.format == "TIFF":
        tags = cast(Any, image).tag_v2
        width = tags[WIDTH]
        height = tags[HEIGHT]
    if orientation(image) >= 5:
        return height, width
    return width, height


@contextmanager
def picture_file(picture: Picture) -> Iterator[Path]:
    """Yield the path of a picture. A picture in memory is first written to a temporary file. Raises
    BocError for other types."""
    if isinstance(picture, (str, Path)):
        yield Path(picture)
        return
    from PIL.Image import Exif, Image, fromarray

    if isinstance(picture, np.ndarray):
        if picture.dtype != np.uint8 or picture.shape[2:] != (3,):
            raise BocError(
                f"an array of shape {picture.shape} and type {picture.dtype} is not a picture; "
                "pass a uint8 array of shape (height, width, 3)",
            )
        picture = fromarray(picture)
    data: Any = picture
    if isinstance(picture, Image):
        turned = Exif()
        file = io.BytesIO()
        turned[ORIENTATION] = orientation(picture)
        with decoding("image"):
            if picture.mode not in {"1", "L", "LA", "P", "RGB", "RGBA", "I;16"}:
                picture = _to_rgb(picture)
            picture.save(file, "PNG", exif=turned)
        data = file.getvalue()
    elif callable(read := getattr(picture, "read", None)) and not iscoroutinefunction(read):
        data = "" if isinstance(picture, io.TextIOBase) else read()
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise BocError(
            "image must be a path, a PIL image, an array, bytes, or a file opened with 'rb', "
            f"got {type(picture).__name__}; for an upload, pass upload.file",
        )
    with NamedTemporaryFile(prefix="boc-") as handle:
        handle.write(data)
        handle.flush()
        try:
            yield Path(handle.name)
        except ImageError as error:
            raise ImageError(str(error).replace(handle.name, "the picture")) from error


def is_picture(value: object) -> bool:
    """Return whether ``value`` is a picture in memory, or a path with the suffix of a picture."""
    if isinstance(value, (str, Path)):
        return Path(value).suffix.lower() in suffixes() and not Path(value).is_dir()
    # PIL images and NumPy arrays have ``__array_interface__``.
    return (
        isinstance(value, (bytes, bytearray, memoryview))
        or hasattr(value, "read")
        or hasattr(value, "__array_interface__")
    )


@contextmanager
def open_image(source: Path | BinaryIO, name: str = "") -> Iterator[ImageFile]:
    """Open a picture file in one of the ``formats()``, and decode it within the block. Raises the
    same errors as ``decoding``."""
    from PIL import Image

    name = name or str(source)
    with decoding(name), warnings.catch_warnings(), ExitStack() as stack:
        if isinstance(source, Path):
            source = stack.enter_context(open(source, "rb", opener=opener))
            check_file(source, name)
        # Ignore warnings about EXIF.
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", CutShort)
        # ``check_pixels`` limits the number of pixels, so Pillow's own limit is lifted until the
        # file is open.
        most = Image.MAX_IMAGE_PIXELS
        Image.MAX_IMAGE_PIXELS = None
        try:
            image = Image.open(source, formats=formats())
        finally:
            Image.MAX_IMAGE_PIXELS = most
        yield stack.enter_context(image)


def check_file(file: BinaryIO, name: str, largest: int | None = None) -> os.stat_result:
    """Return the status of an open file. Raises ImageError unless the file is a regular file, not
    empty, and at most ``largest`` bytes long."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise ImageError(f"{name}: not a regular file; replace it by the picture itself")
    if status.st_size == 0:
        raise ImageError(f"{name}: empty file (0 bytes); replace or delete it")
    if largest is not None and status.st_size > largest:
        raise ImageError(
            f"{name}: {status.st_size:,} bytes, but the limit is {largest:,}; use a smaller "
            "picture",
        )
    return status


@contextmanager
def decoding(name: str) -> Iterator[None]:
    """Turn any exception that a decoder raises for the picture ``name`` into ImageError.

    Which exception is raised depends on the format, the version of Pillow and the data
    (struct.error, TypeError, RuntimeError, MemoryError, ...). The except clause is broad because a
    single damaged picture must not stop the processing of all others.
    """
    from PIL import UnidentifiedImageError

    try:
        yield
    except BocError:
        raise
    except UnidentifiedImageError:
        step = "convert it to JPEG or PNG"
        if Path(name).suffix.lower() in HEIF - suffixes():
            step = GET_HEIF
        raise ImageError(f"{name}: not a picture in a supported format; {step}") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno in ADVICE:
            # The picture itself does not cause these system errors.
            short = error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
            raise (BocError if short else ImageError)(
                f"{name}: cannot be read ({error.strerror}); {advice(error)}",
            ) from error
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        step = "replace or delete it"
        if isinstance(error, (FileNotFoundError, IsADirectoryError)):
            step = "check its name and folder"
        raise ImageError(f"{name}: cannot be read ({reason}); {step}") from error


@contextmanager
def passing_over(name: str) -> Iterator[None]:
    """Skip the parts of a picture that a decoder cannot read."""
    with suppress(ImageError), decoding(name):
        yield


def orientation(image: Image) -> int:
    """Return the EXIF orientation of an open picture, from 1 to 8, or 1 if there is no valid
    orientation."""
    with passing_over("EXIF"):
        value = exif_of(image).get(ORIENTATION, 1)
        return value if value in range(1, 9) else 1
    return 1


def exif_of(image: Image) -> Exif:
    """Return the EXIF of an open picture, without the XMP orientation that Pillow adds. Browsers
    ignore the XMP orientation as well, because programs that rotate the pixels do not always update
    it."""
    xmp = {name: image.info.pop(name) for name in XMP if name in image.info}
    try:
        return image.getexif()
    finally:
        image.info.update(xmp)


def check_pixels(image: Image, name: object, max_pixels: int = MAX_PIXELS) -> None:
    """Raise ImageError for a picture that has more than ``max_pixels`` pixels when decoded."""
    width, height = image.size
    most = max_pixels
    if image.format in ("JPEG", "MPO"):
        most *= REDUCED**2
    if width * height > most:
        raise ImageError(
            f"{name}: {width} x {height} pixels, but the limit is {most:,}; use a smaller picture",
        )


def _to_rgb(image: Image) -> Image:
    from PIL import Image as Pillow

    if image.mode == "F" and (extrema := cast("tuple[float, float]", image.getextrema()))[1] <= 1:
        low, high = extrema
        factor = 255 / (high - low or math.inf)
        grey = image.point(lambda value: value * factor - low * factor)
        return _in_srgb(grey.convert("L"), "RGB")
    if image.mode.startswith("I;16") or image.mode in {"I", "F"}:
        whole = image.convert("I")
        bits = int(cast("tuple[int, int]", whole.getextrema())[1]).bit_length()
        depth = next((depth for depth in (8, 10, 12, 14, 16) if depth >= bits), bits)
        factor = 255 / (2**depth - 1)
        return _in_srgb(whole.point(lambda value: value * factor + 0.5).convert("L"), "RGB")
    if image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info:
        # Blend the picture in strips, because blending it as a whole would need five copies in
        # memory.
        image = _in_srgb(image, "RGBA")
        width, height = image.size
        flat = Pillow.new("RGB", image.size)
        for top in range(0, height, 256):
            strip = image.crop((0, top, width, min(top + 256, height)))
            laid = Pillow.alpha_composite(Pillow.new("RGBA", strip.size, "white"), strip)
            flat.paste(laid.convert("RGB"), (0, top))
        return flat
    return _in_srgb(image, "RGB")


def _in_srgb(image: Image, mode: str) -> Image:
    """Convert a picture to ``mode`` (RGB or RGBA), and its colours from its profile to sRGB."""
    from PIL import ImageCms

    if image.mode in {"P", "PA"} or (image.mode in {"L", "LA"} and mode == "RGBA"):
        image = image.convert(mode)
    profile = image.info.get("icc_profile")
    if profile and image.mode in {"RGB", "RGBA", "CMYK", "L"}:
        # A profile may be damaged, or intended for another kind of picture.
        with suppress(ImageCms.PyCMSError, OSError, ValueError):
            transform = _transform(profile, image.mode, mode)
            if transform is not None:
                return ImageCms.applyTransform(image, transform) or image
    return image.convert(mode)


@lru_cache(16)
def _transform(profile: bytes, mode: str, wanted: str) -> Any:
    """Return the transform from a colour profile to sRGB, or None if the profile is sRGB itself."""
    from PIL import ImageCms

    source = ImageCms.getOpenProfile(io.BytesIO(profile))
    if mode != "CMYK" and ImageCms.getProfileDescription(source).startswith("sRGB"):
        return None
    return ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, wanted)


def thumbnail_uri(path: Path, side: int = 320) -> str:
    """Return a thumbnail as a ``data:`` URL of a JPEG, at most ``side`` pixels wide and high."""
    return "data:image/jpeg;base64," + base64.b64encode(thumbnail(path, side)).decode("ascii")


def thumbnail(path: Path, side: int) -> bytes:
    """Return a thumbnail as a JPEG, at most ``side`` pixels wide and high."""
    image = read_image(path, least=2 * side)
    image.thumbnail((side, side))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY, optimize=True)
    return buffer.getvalue()
