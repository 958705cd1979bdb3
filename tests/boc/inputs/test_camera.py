"""What cameras write: right values, or none, whatever somebody wrote into a picture."""

import io
import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, strategies as st
from PIL import Image
from PIL.TiffImagePlugin import IFDRational

from boc.errors import ImageError
from boc.inputs.camera import FIELDS, LONGEST, camera_facts, exif_facts
from boc.inputs.images import decoding, image_size, open_image, read_image
from boc.inputs.metadata import TYPES, parse_filter
from boc.types import ImageRef
from tests.fuzz.mutations import damages

MAKE = 0x010F
MODEL = 0x0110
ORIENTATION = 0x0112
CAMERA = 0x8769
GPS = 0x8825
TAKEN = 0x9003
LENS = 0xA434
TEXT = st.text(
    st.characters(
        codec="ascii",
        categories=["L", "N", "P"],
    ),
    min_size=1,
    max_size=30,
)


def block(
    shown: dict[int, Any] | None = None,
    camera: dict[int, Any] | None = None,
    gps: dict[int, Any] | None = None,
) -> bytes:
    """EXIF as Pillow writes it, without what a JPEG puts before it."""
    exif = Image.Exif()
    for tag, value in (shown or {}).items():
        exif[tag] = value
    for place, values in ((CAMERA, camera), (GPS, gps)):
        if values:
            exif.get_ifd(place).update(values)
    return exif.tobytes().removeprefix(b"Exif\0\0")


def facts(data: bytes) -> dict[str, Any]:
    """The facts of EXIF in the header of a PNG."""
    file = io.BytesIO()
    Image.new("RGB", (1, 1)).save(file, "PNG", exif=data)
    with open_image(file, "picture") as image:
        found = {}
        with suppress(ImageError), decoding("EXIF"):
            found = exif_facts(image.getexif())
        return found


def ref(path: Path, id: str = "") -> ImageRef:
    return ImageRef(id or path.name, path)


def degrees(value: float) -> tuple[IFDRational, IFDRational, IFDRational]:
    """Degrees, minutes and seconds, in hundredths of a second."""
    hundredths = round(abs(value) * 360_000)
    return (
        IFDRational(hundredths // 360_000),
        IFDRational(hundredths // 6000 % 60),
        IFDRational(hundredths % 6000, 100),
    )


@given(
    moment=st.datetimes(datetime(1000, 1, 1)),
    make=TEXT,
    model=TEXT,
    lens=TEXT,
    order=st.sampled_from(["<", ">"]),
    latitude=st.floats(-90, 90),
    longitude=st.floats(-180, 180),
)
def test_exif_of_pillow(
    moment: datetime,
    make: str,
    model: str,
    lens: str,
    order: str,
    latitude: float,
    longitude: float,
):
    exif = Image.Exif()
    exif.endian = order
    exif[MAKE] = make
    exif[MODEL] = model
    exif.get_ifd(CAMERA).update(
        {
            TAKEN: moment.strftime("%Y:%m:%d %H:%M:%S").zfill(19),
            LENS: lens,
        },
    )
    exif.get_ifd(GPS).update(
        {
            1: "S" if latitude < 0 else "N",
            2: degrees(latitude),
            3: "W" if longitude < 0 else "E",
            4: degrees(longitude),
        },
    )
    fields = facts(exif.tobytes().removeprefix(b"Exif\0\0"))
    assert fields["taken"] == moment.replace(microsecond=0).isoformat()
    assert fields["lens"] == lens
    assert fields["camera"] == (
        model if model.lower().startswith(make.lower()) else f"{make} {model}"
    )
    if "gps_latitude" in fields:
        assert fields["gps_latitude"] == pytest.approx(latitude, abs=1.5e-6)
        assert fields["gps_longitude"] == pytest.approx(longitude, abs=1.5e-6)
    else:
        assert max(abs(latitude), abs(longitude)) < 1e-5


@pytest.mark.parametrize(
    "suffix",
    ["jpg", "png", "webp", "tif", "avif"],
)
@pytest.mark.parametrize(
    "orientation",
    range(1, 9),
)
def test_orientation_in_every_format(tmp_path: Path, suffix: str, orientation: int):
    path = tmp_path / f"a.{suffix}"
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    exif[MODEL] = "X100"
    exif.get_ifd(CAMERA)[TAKEN] = "2024:06:01 12:30:00"
    Image.new("RGB", (40, 24), "red").save(
        path,
        exif=exif.tobytes() if suffix == "tif" else exif,
    )
    fields = camera_facts(ref(path))
    upright = (40, 24) if orientation < 5 else (24, 40)
    assert (
        (fields["width"], fields["height"]) == upright == image_size(path) == read_image(path).size
    )
    assert fields["orientation"] == orientation
    assert (fields["camera"], fields["taken"]) == ("X100", "2024-06-01T12:30:00")
    assert list(fields) == [name for name in FIELDS if name in fields]


def test_heic_orientation(tmp_path: Path):
    pytest.importorskip("pillow_heif").register_heif_opener()
    exif = Image.Exif()
    exif[MODEL] = "iPhone 12"
    exif[ORIENTATION] = 6
    exif.get_ifd(CAMERA)[TAKEN] = "2024:06:01 12:30:00"
    picture = Image.new("RGB", (64, 32), "red")
    picture.info["exif"] = (
        exif.tobytes()
    )  # from there it is stored as the rotation that HEIF itself has
    picture.save(tmp_path / "a.heic")
    fields = camera_facts(ref(tmp_path / "a.heic"))
    assert (fields["camera"], fields["taken"]) == ("iPhone 12", "2024-06-01T12:30:00")
    assert (
        (fields["width"], fields["height"])
        == read_image(tmp_path / "a.heic").size
        == image_size(tmp_path / "a.heic")
    )
    assert read_image(tmp_path / "a.heic").size == (32, 64)


def test_facts_without_exif(tmp_path: Path):
    Image.new("RGB", (5, 4)).save(tmp_path / "a.jpg")
    assert camera_facts(
        ref(
            tmp_path / "a.jpg",
            "2024/Rome & co/beach_sunset-2.jpg",
        ),
    ) == {
        "width": 5,
        "height": 4,
        "orientation": 1,
        "folder": "2024/Rome & co",
        "name": "2024 Rome co beach sunset 2",
    }
    (tmp_path / "b.jpg").write_bytes(b"nothing of a picture")
    assert camera_facts(ref(tmp_path / "b.jpg", "été.jpg")) == {"name": "été"}
    assert camera_facts(ref(tmp_path / "missing.jpg", "---.jpg")) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024:06:01 12:30:59", "2024-06-01T12:30:59"),
        ("2024-06-01T12:30", "2024-06-01T12:30:00"),
        ("2024:02:30 12:30:00", None),
        ("2024:06:01 24:00:00", None),
        ("0000:00:00 00:00:00", None),
        ("yesterday", None),
        ("٢٠٢٤:06:01 12:30:00", None),
    ],
)
def test_time_taken(text: str, expected: str | None):
    assert facts(block(camera={TAKEN: text})).get("taken") == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("IMG-20180506-WA0001", "2018-05-06T00:00:00"),
        ("20180506_123456", "2018-05-06T12:34:56"),
        ("2018-05-06 12.34.56-1", "2018-05-06T12:34:56"),
        ("Screenshot_2020-01-02-12-34-56", "2020-01-02T12:34:56"),
        ("20180506", None),
        ("1000092795", None),
        ("IMG_20180231_123456", None),
        ("IMG20240501101500", "2024-05-01T10:15:00"),
        ("20240501101500", "2024-05-01T10:15:00"),
        ("C360_2024-05-01-10-15-00-123", "2024-05-01T10:15:00"),
        ("00000IMG_00000_BURST20240501101500123_COVER", "2024-05-01T10:15:00"),
        ("1714558500000", "2024-05-01T10:15:00"),
        ("FB_IMG_1714558500000", "2024-05-01T10:15:00"),
        ("20990101_000000", None),
    ],
)
def test_time_in_a_name(tmp_path: Path, name: str, expected: str | None):
    found = camera_facts(
        ref(
            tmp_path / "gone.jpg",
            f"sub/{name}.jpg",
        ),
    )
    assert (
        found.get("taken"),
        found.get("taken_from"),
    ) == (expected, expected and "name")


def xmp_of(attributes: str, inside: str = "") -> bytes:
    spaces = {
        "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
        "xmp": "http://ns.adobe.com/xap/1.0/",
        "dc": "http://purl.org/dc/elements/1.1/",
        "exif": "http://ns.adobe.com/exif/1.0/",
        "photoshop": "http://ns.adobe.com/photoshop/1.0/",
        "Iptc4xmpExt": "http://iptc.org/std/Iptc4xmpExt/2008-02-29/",
    }
    declared = " ".join(f'xmlns:{name}="{space}"' for name, space in spaces.items())
    body = f"<rdf:Description {attributes}>{inside}</rdf:Description>"
    return f"<rdf:RDF {declared}>{body}</rdf:RDF>".encode()


INSIDE = """
<dc:title><rdf:Alt><rdf:li>Birthday</rdf:li></rdf:Alt></dc:title>
<dc:description><rdf:Alt><rdf:li>Grandma blows out the candles</rdf:li></rdf:Alt></dc:description>
<dc:subject><rdf:Bag><rdf:li>cake</rdf:li><rdf:li>été</rdf:li></rdf:Bag></dc:subject>
<Iptc4xmpExt:PersonInImage><rdf:Bag><rdf:li>Ada</rdf:li></rdf:Bag></Iptc4xmpExt:PersonInImage>
"""
ATTRIBUTES = (
    'xmp:Rating="5" photoshop:City="Rome" exif:GPSLatitude="41,54.1N" '
    'exif:GPSLongitude="12,29,30W" exif:DateTimeOriginal="2019-07-04T12:00:00+02:00"'
)
WRITTEN = {
    "written": "Birthday; Grandma blows out the candles; cake; été; Ada; Rome",
    "keywords": ["cake", "été"],
    "people": "Ada",
    "place": "Rome",
    "rating": 5,
    "gps_latitude": 41.9016667,
    "gps_longitude": -12.4916667,
    "taken": "2019-07-04T12:00:00",
}


@pytest.mark.parametrize("where", ["inside", "a.jpg.xmp", "a.xmp"])
def test_xmp_tells_what_people_wrote(tmp_path: Path, where: str):
    xmp = xmp_of(ATTRIBUTES, f"<!-- by hand --> {INSIDE}")
    options = {"xmp": xmp} if where == "inside" else {}
    Image.new("RGB", (2, 2)).save(tmp_path / "a.jpg", **options)
    if where != "inside":
        (tmp_path / where).write_bytes(xmp)
    found = camera_facts(ref(tmp_path / "a.jpg"))
    assert {name: found.get(name) for name in WRITTEN} == WRITTEN


def add_iptc(path: Path, *entries: tuple[int, str]) -> None:
    """Write entries of IPTC, by their numbers, to a JPEG."""
    texts = [(number, text.encode()) for number, text in entries]
    data = b"".join(
        b"\x1c\x02" + bytes([number]) + len(text).to_bytes(2, "big") + text
        for number, text in texts
    )
    block = b"8BIM\x04\x04\0\0" + len(data).to_bytes(4, "big") + data + b"\0" * (len(data) % 2)
    part = b"Photoshop 3.0\0" + block
    jpeg = path.read_bytes()
    path.write_bytes(jpeg[:2] + b"\xff\xed" + (len(part) + 2).to_bytes(2, "big") + part + jpeg[2:])


@given(damages(xmp_of(ATTRIBUTES, INSIDE)))
def test_damaged_xmp(data: bytes):
    file = io.BytesIO()
    Image.new("RGB", (1, 1)).save(file, "JPEG", xmp=data)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.jpg"
        path.write_bytes(file.getvalue())
        check(camera_facts(ref(path)))


def test_entities_and_huge_xmp_are_left_alone(tmp_path: Path):
    bomb = b'<!DOCTYPE a [<!ENTITY b "bb">]>' + xmp_of(ATTRIBUTES, INSIDE)
    wide = b"\xfe\xff" + bomb.decode().encode("utf-16-be")
    for xmp in (bomb, wide, xmp_of(ATTRIBUTES, INSIDE + " " * 300_000)):
        Image.new("RGB", (2, 2)).save(tmp_path / "a.jpg")
        (tmp_path / "a.xmp").write_bytes(xmp)
        assert "written" not in camera_facts(ref(tmp_path / "a.jpg"))


@pytest.mark.parametrize(
    ("make", "model", "expected"),
    [
        ("Canon", "Canon EOS 5D", "Canon EOS 5D"),
        ("NIKON CORPORATION", "NIKON D70", "NIKON D70"),
        ("Apple", "iPhone 12", "Apple iPhone 12"),
        ("Apple", "", "Apple"),
        ("", "X100", "X100"),
        ("  Sony \n", "a7\x07 III", "Sony a7 III"),
        ("", "", None),
    ],
)
def test_a_camera_names_its_maker_once(make: str, model: str, expected: str | None):
    assert facts(block({MAKE: make, MODEL: model})).get("camera") == expected


def test_text_is_utf_8_or_latin_1():
    for text in ("Müller", "Müller".encode().decode("latin-1"), "Müller\0junk"):
        exif = Image.Exif()
        exif[MODEL] = text
        assert exif_facts(exif) == {"camera": "Müller"}


GOOD = {
    1: "N",
    2: (47.0, 22.0, 30.0),
    3: "E",
    4: (8.0, 32.0, 0.0),
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, (47.375, 8.5333333)),
        ({1: "S", 3: "w"}, (-47.375, -8.5333333)),
        (
            {
                2: (
                    IFDRational(1),
                    IFDRational(0, 0),
                    IFDRational(0),
                ),
            },
            None,
        ),
        ({2: (91.0, 0.0, 0.0)}, None),
        ({2: (1.0, 60.0, 0.0)}, None),
        ({1: "X"}, None),
        (
            {2: (0.0, 0.0, 0.0), 4: (0.0, 0.0, 0.0)},
            None,
        ),
        ({3: "W\0E"}, (47.375, -8.5333333)),
        *[({tag: None}, None) for tag in GOOD],
    ],
)
def test_gps_position(change: dict[int, Any], expected: tuple[float, float] | None):
    fields = facts(
        block(
            gps={tag: value for tag, value in (GOOD | change).items() if value is not None},
        ),
    )
    assert (
        fields.get("gps_latitude"),
        fields.get("gps_longitude"),
    ) == (expected or (None, None))


def check(found: dict[str, Any]) -> None:
    """Every value is of its type and in its range, as a table of metadata would have it."""
    assert FIELDS.keys() >= found.keys()
    for name, values in found.items():
        for value in values if isinstance(values, list) else [values]:
            if FIELDS[name] != "text":
                read = parse_filter(f"{name}=={value}", FIELDS)
                assert (read.value, read.last) == (value, None)
    assert -90 <= found.get("gps_latitude", 0) <= 90
    assert -180 <= found.get("gps_longitude", 0) <= 180
    assert ("gps_latitude" in found) == ("gps_longitude" in found)
    assert all(len(found.get(name, "").encode()) <= 4 * LONGEST for name in ("camera", "lens"))


WHOLE = block(
    {
        MAKE: "Canon",
        MODEL: "Canon EOS 5D",
        ORIENTATION: 6,
    },
    {
        TAKEN: "2024:06:01 12:30:59",
        LENS: "EF 50mm",
    },
    GOOD,
)


@given(
    damages(WHOLE)
    | st.binary(max_size=200)
    | st.binary(max_size=200).map(lambda data: WHOLE[:8] + data),
)
def test_damaged_exif(data: bytes):
    check(facts(data))


def test_field_names_and_types():
    assert set(FIELDS.values()) <= set(TYPES)
    assert all(re.fullmatch("[a-z][a-z0-9_]*", name) for name in FIELDS)
