"""Pictures of every mode come out upright and RGB; everything else is an ImageError that names the
file."""

import base64
import errno
import io
import os
import re
import struct
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.random import default_rng
from PIL import Image, ImageFile

from boc.errors import ADVICE, BocError, CutShort, ImageError
from boc.inputs.images import MAX_PIXELS, image_size, read_image, thumbnail_uri

RED = (255, 0, 0)
WHITE = (255, 255, 255)
BLACK = (0, 0, 0)
ORIENTATION = 0x0112


def pixels(path: Path) -> np.ndarray:
    """The picture as read, uint8 (height, width, 3)."""
    image = read_image(path)
    assert image.mode == "RGB"
    return np.asarray(image)


def corners() -> Image.Image:
    """6 x 4, every pixel another colour."""
    values = np.arange(24, dtype=np.uint8).reshape(4, 6)
    return Image.fromarray(
        np.stack(
            [values * 10, 255 - values * 10, values],
            axis=-1,
        ),
    )


# How each orientation is stored: what undoes it, in numpy's words.
STORED = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: np.transpose(a, (1, 0, 2)),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: np.rot90(np.transpose(a, (1, 0, 2)), 2),
    8: lambda a: np.rot90(a, -1),
}


@pytest.mark.parametrize(
    "orientation",
    STORED,
)
def test_the_orientation_of_the_camera_is_applied(tmp_path: Path, orientation: int):
    upright = np.asarray(corners())
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    Image.fromarray(np.ascontiguousarray(STORED[orientation](upright))).save(
        tmp_path / "a.png",
        exif=exif,
    )
    assert np.array_equal(
        pixels(tmp_path / "a.png"),
        upright,
    )


def palette(*colours: tuple[int, int, int]) -> Image.Image:
    image = Image.new("P", (2, 1))
    image.putpalette([value for colour in colours for value in colour])
    image.putdata([0, 1])
    return image


@pytest.mark.parametrize(
    ("image", "options", "expected"),
    [
        (
            Image.fromarray(np.array([[20, 200]], np.uint8)),
            {},
            [(20,) * 3, (200,) * 3],
        ),
        (
            Image.fromarray(np.array([[True, False]])),
            {},
            [WHITE, BLACK],
        ),
        (
            Image.fromarray(np.array([[0, 65535]], np.float32)),
            {},
            [BLACK, WHITE],
        ),
        (
            Image.fromarray(np.full((1, 2), 0.5, np.float32)),
            {},
            [BLACK, BLACK],
        ),
        (palette(RED, BLACK), {}, [RED, BLACK]),
        (
            palette(BLACK, RED),
            {"transparency": 0},
            [WHITE, RED],
        ),
        (
            palette(BLACK, RED),
            {"transparency": b"\x00\xff"},
            [WHITE, RED],
        ),
        (
            Image.fromarray(np.array([[RED, BLACK]], np.uint8)),
            {"transparency": BLACK},
            [RED, WHITE],
        ),
    ],
)
def test_every_mode_becomes_colours(
    tmp_path: Path,
    image: Image.Image,
    options: dict[str, Any],
    expected: list[tuple[int, ...]],
):
    path = tmp_path / ("a.tif" if image.mode == "F" else "a.png")
    image.save(path, **options)
    assert pixels(path).tolist() == [[list(colour) for colour in expected]]


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 1), (0.2, 0.6), (-3, 0.5)],
)
def test_fractions_are_stretched_over_their_range(tmp_path: Path, low: float, high: float):
    parts = np.linspace(0, 1, 12, dtype=np.float32).reshape(
        3,
        4,
    )
    Image.fromarray((low + parts * (high - low)).astype(np.float32)).save(tmp_path / "a.tif")
    values = pixels(tmp_path / "a.tif")[..., 0].astype(int)
    assert np.abs(values - parts * 255).max() <= 1


def test_printing_colours_are_converted(tmp_path: Path):
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(
        tmp_path / "a.jpg",
        quality=95,
    )
    assert np.abs(pixels(tmp_path / "a.jpg").astype(int) - RED).max() <= 6


@pytest.mark.parametrize(
    "suffix",
    [".gif", ".png", ".webp"],
)
def test_an_animation_is_its_first_frame_that_shows_something(tmp_path: Path, suffix: str):
    blank = Image.new("RGBA", (6, 4), BLACK)
    clear = Image.new("RGBA", (6, 4), (0, 0, 0, 0))
    shown = corners().quantize(32).convert("RGBA")
    options = {"lossless": True} if suffix == ".webp" else {}
    blank.save(
        tmp_path / f"a{suffix}",
        save_all=True,
        append_images=[clear, shown, blank],
        duration=50,
        **options,
    )
    assert (
        len(
            np.unique(
                pixels(tmp_path / f"a{suffix}").reshape(
                    -1,
                    3,
                ),
                axis=0,
            ),
        )
        > 12
    )


def refusal(path: Path, **limits: int) -> str:
    with pytest.raises(ImageError) as caught:
        read_image(path, **limits)
    assert str(path) in str(caught.value)
    return str(caught.value)


def noise(side: int = 48) -> Image.Image:
    return Image.fromarray(
        default_rng(0).integers(
            0,
            256,
            (side, side, 3),
            dtype=np.uint8,
        ),
    )


@pytest.mark.parametrize(
    "suffix",
    ["jpg", "png", "bmp", "tif"],
)
def test_a_picture_that_is_cut_short_is_read_as_far_as_it_goes(tmp_path: Path, suffix: str):
    path = tmp_path / f"a.{suffix}"
    noise(160).save(path)
    whole = np.asarray(read_image(path))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.warns(CutShort, match="truncated; only the readable part was read"):
        part = np.asarray(read_image(path))
    rows = slice(-40, None) if suffix == "bmp" else slice(40)
    assert part.shape == whole.shape
    assert np.array_equal(part[rows], whole[rows])


def test_a_jpeg_without_its_last_bytes_is_whole(tmp_path: Path):
    path = tmp_path / "a.jpg"
    noise().save(path)
    whole = np.asarray(read_image(path))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.warns(CutShort):
        assert np.array_equal(np.asarray(read_image(path)), whole)


def test_a_picture_of_which_nothing_is_left_is_refused(tmp_path: Path):
    path = tmp_path / "a.jpg"
    noise(160).save(path)
    path.write_bytes(path.read_bytes()[:200])
    assert "replace or delete it" in refusal(path)


def test_a_jpeg_beyond_the_limit_is_decoded_at_a_smaller_scale(tmp_path: Path):
    path = tmp_path / "a.jpg"
    Image.new("RGB", (800, 640), "red").save(path)
    assert read_image(path, max_pixels=10_000).size == (100, 80)
    refusal(path, max_pixels=7999)


def test_orientation_of_xmp_is_ignored_as_by_browsers(tmp_path: Path):
    xmp = (
        b'<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description '
        b'xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/></rdf:RDF>'
    )
    Image.new("RGB", (22, 15)).save(tmp_path / "a.jpg", xmp=xmp)
    assert read_image(tmp_path / "a.jpg").size == image_size(tmp_path / "a.jpg") == (22, 15)


def test_no_picture(tmp_path: Path):
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("this is no picture")
    assert "empty file (0 bytes); replace or delete it" in refusal(tmp_path / "empty.jpg")
    assert "not a picture in a supported format; convert it" in refusal(tmp_path / "text.jpg")
    assert "cannot be read (No such file or directory)" in refusal(tmp_path / "missing.jpg")
    assert "cannot be read (Is a directory)" in refusal(tmp_path)


def png(width: int, height: int, packed: bytes = b"") -> bytes:
    """A PNG whose header names that size, whatever its ``packed`` pixels are."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    size = struct.pack(
        ">IIBBBBB",
        width,
        height,
        8,
        2,
        0,
        0,
        0,
    )
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    )


def test_pixel_limit(tmp_path: Path):
    path = tmp_path / "a.png"
    path.write_bytes(png(60, 50))
    assert "60 x 50 pixels, but the limit is 2,999; use a smaller picture" in refusal(
        path,
        max_pixels=2999,
    )
    assert "cannot be read" in refusal(
        path,
        max_pixels=3000,
    )  # allowed, and then there is nothing to decode
    path.write_bytes(png(20_000, 20_000))
    assert f"the limit is {MAX_PIXELS:,}; use a smaller picture" in refusal(path)
    noise(10).save(path)
    assert read_image(path, max_pixels=100).size == (10, 10)
    refusal(path, max_pixels=99)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((640, 320), (100, 50)),
        ((30, 60), (30, 60)),
        ((100, 400), (25, 100)),
    ],
)
def test_a_thumbnail_is_a_jpeg_that_fits(
    tmp_path: Path,
    size: tuple[int, int],
    expected: tuple[int, int],
):
    Image.new("RGBA", size, (255, 0, 0, 255)).save(tmp_path / "a.png")
    start, _, data = thumbnail_uri(tmp_path / "a.png", 100).partition(",")
    assert start == "data:image/jpeg;base64"
    with Image.open(io.BytesIO(base64.b64decode(data, validate=True))) as image:
        assert (image.format, image.size) == ("JPEG", expected)


class Raising:
    """A decoder that fails as it likes."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, *given: object, **options: object) -> None:
        raise self.error


FAILURES = [
    struct.error("unpack requires a buffer of 2 bytes"),
    MemoryError(),
    RecursionError("deep"),
    OSError("broken data stream"),
]


@pytest.mark.parametrize(
    "error",
    FAILURES,
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize(
    "at",
    ["load", "convert"],
)
def test_decoder_errors(
    tmp_path: Path,
    monkeypatch,
    error: Exception,
    at: str,
):
    corners().save(tmp_path / "a.png")
    monkeypatch.setattr(
        Image.Image if at == "convert" else ImageFile.ImageFile,
        at,
        Raising(error),
    )
    with pytest.raises(ImageError, match=r"a\.png"):
        read_image(tmp_path / "a.png")


@pytest.mark.parametrize(
    "error",
    FAILURES,
    ids=lambda error: type(error).__name__,
)
def test_unreadable_exif(tmp_path: Path, monkeypatch, error: Exception):
    corners().save(tmp_path / "a.png")
    monkeypatch.setattr(
        Image.Image,
        "getexif",
        Raising(error),
    )
    assert np.array_equal(
        pixels(tmp_path / "a.png"),
        np.asarray(corners()),
    )
    assert image_size(tmp_path / "a.png") == (6, 4)


@pytest.mark.parametrize(
    "number",
    [errno.EMFILE, errno.ENFILE, errno.ENOMEM],
)
def test_system_errors(tmp_path: Path, monkeypatch, number: int):
    corners().save(tmp_path / "a.png")
    monkeypatch.setattr(
        Image,
        "open",
        Raising(OSError(number, os.strerror(number))),
    )
    with pytest.raises(
        BocError,
        match=re.escape(ADVICE[number]),
    ) as caught:
        read_image(tmp_path / "a.png")
    assert not isinstance(caught.value, ImageError)


@pytest.mark.parametrize(
    "format",
    ["PPM", "ICO", "TGA", "PCX", "EPS", "JPEG2000", "DDS", "SGI", "PDF"],
)
def test_other_formats_are_refused(tmp_path: Path, format: str):
    corners().save(tmp_path / "a.jpg", format)
    for read in (read_image, image_size):
        with pytest.raises(
            ImageError,
            match="not a picture in a supported format",
        ):
            read(tmp_path / "a.jpg")


@settings(max_examples=20)
@given(
    width=st.integers(1, 30),
    height=st.integers(1, 700),
    mode=st.sampled_from(["RGBA", "LA", "P"]),
)
def test_transparency(width: int, height: int, mode: str):
    values = default_rng(width * height).integers(
        0,
        256,
        (height, width, 4),
        dtype=np.uint8,
    )
    image = Image.fromarray(values).convert(mode)
    with TemporaryDirectory() as folder:
        image.save(
            Path(folder) / "a.png",
            **({"transparency": 3} if mode == "P" else {}),
        )
        with Image.open(Path(folder) / "a.png") as stored:
            rgba = stored.convert("RGBA")
        whole = Image.alpha_composite(
            Image.new("RGBA", rgba.size, "white"),
            rgba,
        ).convert("RGB")
        assert np.array_equal(
            pixels(Path(folder) / "a.png"),
            np.asarray(whole),
        )


def icc(
    space: bytes,
    tags: dict[bytes, bytes],
    kind: bytes = b"mntr",
    connection: bytes = b"XYZ ",
) -> bytes:
    """A colour profile (ICC.1:2010), version 2."""
    place = 132 + 12 * len(tags)
    table = b""
    body = b""
    for name, data in tags.items():
        table += struct.pack(
            ">4sII",
            name,
            place + len(body),
            len(data),
        )
        body += data + bytes(-len(data) % 4)
    head = struct.pack(
        ">I4sI4s4s4s",
        place + len(body),
        b"none",
        0x02100000,
        kind,
        space,
        connection,
    )
    head += (
        bytes(12)
        + b"acsp"
        + bytes(28)
        + struct.pack(
            ">3i",
            *(round(v * 65536) for v in WHITE_POINT),
        )
        + bytes(48)
    )
    return head + struct.pack(">I", len(tags)) + table + body


WHITE_POINT = (0.9642, 1.0, 0.8249)
# Red, green and blue of wider spaces, adapted to D50: Display P3, Adobe RGB, ProPhoto RGB.
WIDE = {
    "p3": (
        (0.5151, 0.2412, -0.0011),
        (0.2920, 0.6922, 0.0419),
        (0.1571, 0.0666, 0.7841),
        2.2,
    ),
    "adobe": (
        (0.6097, 0.3111, 0.0195),
        (0.2053, 0.6257, 0.0609),
        (0.1492, 0.0632, 0.7446),
        2.2,
    ),
    "prophoto": (
        (0.7977, 0.2880, 0.0),
        (0.1352, 0.7119, 0.0),
        (0.0313, 0.0001, 0.8249),
        1.8,
    ),
}
SRGB_OF_D50 = np.array(
    [
        [3.1339, -1.6169, -0.4906],
        [-0.9788, 1.9161, 0.0335],
        [0.0719, -0.2290, 1.4052],
    ],
)


def xyz(values: tuple[float, ...]) -> bytes:
    return (
        b"XYZ "
        + bytes(4)
        + struct.pack(
            ">3i",
            *(round(value * 65536) for value in values),
        )
    )


def rgb_profile(name: str) -> bytes:
    *colours, gamma = WIDE[name]
    curve = b"curv" + bytes(4) + struct.pack(">IH", 1, round(gamma * 256))
    tags = {b"wtpt": xyz(WHITE_POINT)}
    for letter, colour in zip(
        (b"r", b"g", b"b"),
        colours,
        strict=True,
    ):
        tags |= {
            letter + b"XYZ": xyz(colour),
            letter + b"TRC": curve,
        }
    return icc(b"RGB ", tags)


def in_srgb(name: str, values: np.ndarray) -> np.ndarray:
    """What a colour-managed viewer shows: the slow way, from the definitions of the spaces."""
    *colours, gamma = WIDE[name]
    light = np.clip(
        (values / 255) ** gamma @ np.array(colours) @ SRGB_OF_D50.T,
        0,
        1,
    )
    return 255 * np.where(
        light <= 0.0031308,
        12.92 * light,
        1.055 * light ** (1 / 2.4) - 0.055,
    )


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize(
    "suffix",
    [".png", ".jpg", ".tif", ".webp", "-alpha.png"],
)
def test_wide_colours_are_shown_as_they_are_meant(tmp_path: Path, name: str, suffix: str):
    values = np.repeat(
        np.repeat(
            default_rng(0).integers(
                60,
                200,
                (6, 6, 3),
                np.uint8,
            ),
            16,
            0,
        ),
        16,
        1,
    )
    image = Image.fromarray(values).convert("RGBA" if "alpha" in suffix else "RGB")
    exact = (
        {"quality": 100, "lossless": True}
        if suffix == ".webp"
        else {"quality": 100, "subsampling": 0}
    )
    image.save(
        tmp_path / f"a{suffix}",
        icc_profile=rgb_profile(name),
        **(exact if suffix != ".tif" else {}),
    )
    shown = in_srgb(name, values.astype(float))
    assert np.abs(shown - values).mean() > 3
    assert np.abs(pixels(tmp_path / f"a{suffix}") - shown).mean() < 2
    thumbnail = base64.b64decode(thumbnail_uri(tmp_path / f"a{suffix}").partition(",")[2])
    assert (
        np.abs(
            np.asarray(
                Image.open(io.BytesIO(thumbnail)),
                float,
            ).mean((0, 1))
            - shown.mean((0, 1)),
        ).max()
        < 4
    )


def test_inks_are_shown_as_they_are_meant(tmp_path: Path):
    """A profile whose black ink is red."""
    grid = [(255 - k // 2, 128 + k // 2, 128 + k // 2) for _ in range(8) for k in (0, 255)]
    line = bytes(range(256))
    matrix = struct.pack(
        ">9i",
        *(65536 * (i % 4 == 0) for i in range(9)),
    )
    lut = (
        b"mft1"
        + bytes(4)
        + bytes([4, 3, 2, 0])
        + matrix
        + line * 4
        + bytes(sum(grid, ()))
        + line * 3
    )
    profile = icc(
        b"CMYK",
        {b"A2B0": lut, b"wtpt": xyz(WHITE_POINT)},
        b"prtr",
        b"Lab ",
    )
    Image.new("CMYK", (8, 8), (0, 0, 0, 255)).save(
        tmp_path / "a.jpg",
        icc_profile=profile,
        quality=100,
    )
    red, green, blue = pixels(tmp_path / "a.jpg").mean((0, 1))
    assert red > 2 * max(green, blue)


@pytest.mark.parametrize(
    "profile",
    [
        b"",
        b"x",
        rgb_profile("p3")[:200],
        icc(b"GRAY", {}),
        icc(b"RGB ", {}),
    ],
)
def test_a_profile_that_does_not_fit_is_passed_by(tmp_path: Path, profile: bytes):
    corners().save(
        tmp_path / "a.png",
        icc_profile=profile,
    )
    np.testing.assert_array_equal(
        pixels(tmp_path / "a.png"),
        np.asarray(corners()),
    )


@pytest.mark.parametrize(
    "gamma",
    [None, 1.8],
)
@pytest.mark.parametrize(
    "bits",
    [8, 10, 12, 14, 16],
)
def test_grey_of_any_depth_is_as_bright(tmp_path: Path, bits: int, gamma: float | None):
    values = np.linspace(0.2, 1, 64).reshape(8, 8)
    curve = (
        b"curv"
        + bytes(4)
        + struct.pack(
            ">IH",
            1,
            round((gamma or 1) * 256),
        )
    )
    profile = (
        icc(
            b"GRAY",
            {b"wtpt": xyz(WHITE_POINT), b"kTRC": curve},
        )
        if gamma
        else None
    )
    grey = Image.fromarray(
        np.round(values * (2**bits - 1)).astype(np.uint8 if bits == 8 else np.uint16),
    )
    grey.save(
        tmp_path / "a.tif",
        icc_profile=profile,
    )
    shown = 1.055 * values ** (gamma / 2.4) - 0.055 if gamma else values  # the curve of sRGB
    assert np.abs(pixels(tmp_path / "a.tif")[..., 0] - 255 * shown).max() <= (2 if gamma else 1)
