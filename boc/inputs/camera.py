"""Metadata that a camera wrote into a picture (EXIF).

EXIF (CIPA DC-008) is a TIFF structure in the header of a picture: directories of entries (tag,
type, number of values, their place). Anybody can write anything there, so only the few entries
wanted are read, each of a bounded size, and a value counts only if it is of the right type and in
its range. Pillow reads whatever an entry claims.
"""

from __future__ import annotations

import io
import math
import re
import struct
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from boc.errors import ImageError
from boc.inputs.archives import opener
from boc.inputs.images import open_image, orientation, upright_size
from boc.paths import nfc, words_of
from boc.types import FieldType, ImageRef

FIELDS: dict[str, FieldType] = {
    "taken": "date",
    "taken_from": "keyword",
    "camera": "keyword",
    "lens": "keyword",
    "width": "integer",
    "height": "integer",
    "orientation": "integer",
    "gps_latitude": "float",
    "gps_longitude": "float",
    "folder": "keyword",
    "name": "text",
}
"""Types of what ``camera_facts`` may tell. ``width`` and ``height`` are those of the upright
picture, in pixels; ``orientation`` is 1 to 8, 1 if the file says nothing; latitude and longitude
are degrees, north and east positive."""

ENTRIES = 512  # entries read of a directory
LONGEST = 256  # bytes of a text
TEXTS = {2, 129}  # types of entries: ASCII, and UTF-8 of EXIF 3.0
POINTERS = {3: "H", 4: "I", 13: "I"}
FRACTIONS = {5: "II", 10: "ii"}

MAKE = 0x010F
MODEL = 0x0110
LENS = 0xA434
CHANGED = 0x0132
TAKEN = 0x9003
DIGITIZED = 0x9004
XMP = 1 << 16  # bytes of XMP that are read
CAMERA_DIRECTORY = 0x8769
GPS_DIRECTORY = 0x8825
LATITUDE = (1, 2, "N", "S", 90)
LONGITUDE = (3, 4, "E", "W", 180)

_DATE = re.compile(
    r"(\d{4})[:./-](\d\d)[:./-](\d\d)[ T](\d\d):(\d\d)(?::(\d\d))?(?:\.\d*)?(?:Z|[+-]\d\d:\d\d)?",
    re.ASCII,
)
_XMP = re.compile(
    rb"(?:exif:DateTimeOriginal|xmp:CreateDate|photoshop:DateCreated)(?:=[\"']|>)\s*([^\"'<]{10,40})",
)
# The words of a program or the parts of a date or a time must be there: a number of eight digits
# may be anything.
_NAME = re.compile(
    r"([A-Za-z][A-Za-z ]*[-_ ])?((?:19|20)\d\d)([-_.]?)(\d\d)\3(\d\d)"
    r"(?:(?:[-_ .T]| at )(\d\d)[-_.h]?(\d\d)[-_.m]?(\d\d)\d{0,3})?(?!\d)",
    re.ASCII,
)
_PNG = ("Creation Time", "create-date", "date:create")  # texts with the time of a PNG


def camera_facts(image: ImageRef) -> dict[str, Any]:
    """Return the facts in the header and the name of a picture, in the order of ``FIELDS``.

    ``taken`` is the time of the camera's clock, whatever its time zone; ``taken_from`` says where
    it stands: exif, xmp, png (its texts), or name, as cameras and messengers name files. ``folder``
    and ``name`` follow from the id. The pixels are not decoded. A picture that cannot be opened has
    the facts of its name.
    """
    facts = {**_header_facts(image.path), **_name_facts(image.id)}
    if "taken" not in facts and (taken := _moment_of_name(PurePosixPath(image.id).stem)):
        facts |= {"taken": taken, "taken_from": "name"}
    return {name: facts[name] for name in FIELDS if name in facts}


def exif_facts(file: BinaryIO) -> dict[str, Any]:
    """Return the facts of an EXIF structure or a TIFF file at the position of ``file``. Never
    raises for damage."""
    exif = _Exif(file)
    main = exif.directory(exif.first)
    camera = exif.directory(exif.pointer(main.get(CAMERA_DIRECTORY)))
    place = exif.directory(exif.pointer(main.get(GPS_DIRECTORY)))
    latitude, longitude = (_angle(exif, place, *side) for side in (LATITUDE, LONGITUDE))
    if (
        latitude is None or longitude is None or latitude == longitude == 0
    ):  # zeros are written without a position
        latitude = longitude = None
    entries = camera.get(TAKEN), camera.get(DIGITIZED), main.get(CHANGED)
    taken = next(filter(None, (_moment(exif.text(entry)) for entry in entries)), None)
    facts = {
        "taken": taken,
        "taken_from": taken and "exif",
        "camera": _camera(exif.text(main.get(MAKE)), exif.text(main.get(MODEL))),
        "lens": exif.text(camera.get(LENS)) or None,
        "gps_latitude": latitude,
        "gps_longitude": longitude,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _header_facts(path: Path) -> dict[str, Any]:
    with ExitStack() as stack:
        try:
            image = stack.enter_context(open_image(path))
            width, height = upright_size(image)
            size = {"width": width, "height": height, "orientation": orientation(image)}
            if image.format == "TIFF":  # the file itself is the structure
                facts = exif_facts(stack.enter_context(open(path, "rb", opener=opener)))
            else:
                block = image.info.get("exif")
                facts = (
                    exif_facts(io.BytesIO(block.removeprefix(b"Exif\0\0")))
                    if isinstance(block, bytes)
                    else {}
                )
        except (ImageError, OSError):  # the decoder reports the error
            return {}
        if "taken" not in facts:
            facts |= _written_moment(image.info)
    return {**facts, **size}


def _written_moment(info: Mapping[Any, Any]) -> dict[str, str]:
    """Return when a picture was taken, by its XMP or the texts of a PNG."""
    xmp = info.get("xmp") or info.get("XML:com.adobe.xmp") or b""
    match = _XMP.search((xmp.encode() if isinstance(xmp, str) else xmp)[:XMP])
    texts = [("xmp", match[1].decode(errors="replace"))] if match else []
    texts += [("png", text) for name in _PNG if isinstance(text := info.get(name), str)]
    for source, text in texts:
        if taken := _moment(text.strip()) or _moment(f"{text.strip()} 00:00"):
            return {"taken": taken, "taken_from": source}
    return {}


def _moment_of_name(name: str) -> str | None:
    match = _NAME.match(name)
    if match is None or not (match[1] or match[3] or match[6]):
        return None
    hours = f"{match[6]}:{match[7]}:{match[8]}" if match[6] else "00:00"
    return _moment(f"{match[2]}-{match[4]}-{match[5]} {hours}")


def _name_facts(id: str) -> dict[str, Any]:
    path = PurePosixPath(nfc(id))
    facts = {
        "folder": str(path.parent).strip("./") and str(path.parent),
        "name": words_of(path.stem),
    }
    return {key: value for key, value in facts.items() if value}


class _Exif:
    """Reads entries of an EXIF structure; what is damaged is missing."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._start = file.tell()
        self._order = {b"II*\0": "<", b"MM\0*": ">"}.get(self._at(0, 4), "")
        self.first = self._numbers("I", self._at(4, 4))[0] if self._order else 0

    def directory(self, place: int) -> dict[int, tuple[int, int, bytes]]:
        """Return type, number of values and last four bytes of each entry, by tag; none if there is
        no directory."""
        if not self._order or place < 8:
            return {}
        count = self._numbers("H", self._at(place, 2))[0]
        data = self._at(place + 2, 12 * min(count, ENTRIES))
        entries = struct.iter_unpack(f"{self._order}HHI4s", data[: len(data) // 12 * 12])
        return {tag: (kind, n, inside) for tag, kind, n, inside in entries}

    def pointer(self, entry: tuple[int, int, bytes] | None) -> int:
        """Return the place of another directory; 0 if there is none."""
        kind, count, inside = entry or (0, 0, b"")
        letter = POINTERS.get(kind)
        return self._numbers(letter, inside)[0] if letter and count == 1 else 0

    def text(self, entry: tuple[int, int, bytes] | None) -> str:
        kind, count, inside = entry or (0, 0, b"")
        if kind not in TEXTS or count > LONGEST:
            return ""
        data = self._value(count, inside).partition(b"\0")[0]
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = data.decode("latin-1")
        return " ".join("".join(char if char.isprintable() else " " for char in text).split())

    def fractions(self, entry: tuple[int, int, bytes] | None, most: int) -> list[float]:
        kind, count, inside = entry or (0, 0, b"")
        letters = FRACTIONS.get(kind)
        data = self._value(8 * count, inside) if letters and count <= most else b""
        if not letters or not count or len(data) < 8 * count:
            return []
        pairs = list(struct.iter_unpack(self._order + letters, data))
        return [above / below for above, below in pairs] if all(below for _, below in pairs) else []

    def _value(self, size: int, inside: bytes) -> bytes:
        """Return the bytes of a value: those of the entry, or from where they point to."""
        return inside[:size] if size <= 4 else self._at(self._numbers("I", inside)[0], size)

    def _at(self, place: int, size: int) -> bytes:
        self._file.seek(self._start + place)
        return self._file.read(size)

    def _numbers(self, letter: str, data: bytes) -> Sequence[int]:
        size = struct.calcsize(f"={letter}")
        return struct.unpack_from(self._order + letter, data) if len(data) >= size else (0,)


def _moment(text: str) -> str | None:
    """Return a time as a date of metadata, without time zone."""
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    try:
        return datetime(*(int(part or 0) for part in match.groups())).isoformat()  # type: ignore[arg-type]
    except ValueError:  # the 31st of February
        return None


def _camera(make: str, model: str) -> str | None:
    """Return the maker and model, without naming the maker twice: Canon, Canon EOS 5D."""
    known = make.split(" ")[0].lower()
    return (model if model.lower().startswith(known) else f"{make} {model}".strip()) or make or None


def _angle(
    exif: _Exif,
    place: dict[int, tuple[int, int, bytes]],
    side: int,
    value: int,
    plus: str,
    minus: str,
    most: int,
) -> float | None:
    """Return the latitude or longitude in degrees, to a centimetre; None if it is incomplete or out
    of its range."""
    parts = exif.fractions(place.get(value), 3)
    sign = {plus: 1, minus: -1}.get(exif.text(place.get(side)).upper())
    if not parts or sign is None or min(parts) < 0 or max(parts[1:], default=0) >= 60:
        return None
    angle = sum(part / 60**i for i, part in enumerate(parts))
    return sign * round(angle, 7) if math.isfinite(angle) and angle <= most else None
