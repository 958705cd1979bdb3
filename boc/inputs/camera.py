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
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from boc.errors import ImageError
from boc.inputs.archives import opener
from boc.inputs.images import open_image, orientation, upright_size
from boc.paths import nfc, printable, words_of
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
    path = PurePosixPath(nfc(image.id))
    facts = {"name": words_of(path.stem)}
    if str(path.parent).strip("./"):
        facts["folder"] = str(path.parent)
    facts |= _header_facts(image.path)
    match = _NAME.match(PurePosixPath(image.id).stem)
    if "taken" not in facts and match and (match[1] or match[3] or match[6]):
        time = ":".join(part or "00" for part in match.group(6, 7, 8))
        if taken := _moment(f"{match[2]}-{match[4]}-{match[5]} {time}"):
            facts |= {"taken": taken, "taken_from": "name"}
    return {name: facts[name] for name in FIELDS if facts.get(name) not in (None, "")}


def exif_facts(file: BinaryIO) -> dict[str, Any]:
    """Return the facts of an EXIF structure or a TIFF file at the position of ``file``. Never
    raises for damage."""
    exif = _Exif(file)
    main = exif.directory(exif.first)
    camera = exif.directory(exif.pointer(main, CAMERA_DIRECTORY))
    place = exif.directory(exif.pointer(main, GPS_DIRECTORY))
    times = (exif.text(camera, TAKEN), exif.text(camera, DIGITIZED), exif.text(main, CHANGED))
    taken = next(filter(None, map(_moment, times)), None)
    # The maker is not named twice: Canon, Canon EOS 5D.
    make = exif.text(main, MAKE)
    name = exif.text(main, MODEL)
    if not name.lower().startswith(make.split(" ")[0].lower()):
        name = f"{make} {name}".strip()
    facts: dict[str, Any] = {"camera": name or make, "lens": exif.text(camera, LENS)}
    if taken:
        facts |= {"taken": taken, "taken_from": "exif"}
    latitude = _angle(exif, place, 1, "NS", 90)
    longitude = _angle(exif, place, 3, "EW", 180)
    # Zeros are written without a position.
    if latitude is not None and longitude is not None and (latitude or longitude):
        facts |= {"gps_latitude": latitude, "gps_longitude": longitude}
    return {name: value for name, value in facts.items() if value != ""}


def _header_facts(path: Path) -> dict[str, Any]:
    facts = {}
    with ExitStack() as stack:
        try:
            image = stack.enter_context(open_image(path))
            width, height = upright_size(image)
            size = {"width": width, "height": height, "orientation": orientation(image)}
            block = image.info.get("exif")
            if image.format == "TIFF":
                # The file itself is the structure.
                facts = exif_facts(stack.enter_context(open(path, "rb", opener=opener)))
            elif isinstance(block, bytes):
                facts = exif_facts(io.BytesIO(block.removeprefix(b"Exif\0\0")))
        except (ImageError, OSError):  # the decoder reports the error
            return {}
        # When it was taken stands in its XMP, too, or in the texts of a PNG.
        info = image.info
        xmp = info.get("xmp") or info.get("XML:com.adobe.xmp") or b""
        if isinstance(xmp, str):
            xmp = xmp.encode()
        match = _XMP.search(xmp[:XMP])
        texts = [("xmp", match[1].decode(errors="replace"))] if match else []
        texts += [("png", info[name]) for name in _PNG if isinstance(info.get(name), str)]
        for source, text in texts:
            taken = _moment(text.strip()) or _moment(f"{text.strip()} 00:00")
            if taken and "taken" not in facts:
                facts |= {"taken": taken, "taken_from": source}
    return {**facts, **size}


class _Entry(NamedTuple):
    """An entry of a directory: its type, the number of its values, and its last four bytes."""

    kind: int
    size: int
    inside: bytes


class _Exif:
    """Reads entries of an EXIF structure; what is damaged is missing."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._start = file.tell()
        self._order = {b"II*\0": "<", b"MM\0*": ">"}.get(self._at(0, 4), "")
        self.first = self._number("I", self._at(4, 4))

    def directory(self, place: int) -> dict[int, _Entry]:
        """Return the entries by tag; none if there is no directory."""
        if not self._order or place < 8:
            return {}
        count = self._number("H", self._at(place, 2))
        data = self._at(place + 2, 12 * min(count, ENTRIES))
        entries = struct.iter_unpack(f"{self._order}HHI4s", data[: len(data) // 12 * 12])
        return {tag: _Entry(*entry) for tag, *entry in entries}

    def pointer(self, entries: Mapping[int, _Entry], tag: int) -> int:
        """Return the place of another directory; 0 if there is none."""
        entry = entries.get(tag)
        if entry is None or entry.kind not in POINTERS or entry.size != 1:
            return 0
        return self._number(POINTERS[entry.kind], entry.inside)

    def text(self, entries: Mapping[int, _Entry], tag: int) -> str:
        entry = entries.get(tag)
        if entry is None or entry.kind not in TEXTS or entry.size > LONGEST:
            return ""
        data = self._value(entry.size, entry.inside).partition(b"\0")[0]
        try:
            return printable(data.decode())
        except UnicodeDecodeError:
            return printable(data.decode("latin-1"))

    def fractions(self, entries: Mapping[int, _Entry], tag: int, most: int) -> list[float]:
        entry = entries.get(tag)
        if entry is None or entry.kind not in FRACTIONS or not 0 < entry.size <= most:
            return []
        data = self._value(8 * entry.size, entry.inside)
        if len(data) < 8 * entry.size:
            return []
        pairs = list(struct.iter_unpack(self._order + FRACTIONS[entry.kind], data))
        if not all(below for _, below in pairs):
            return []
        return [above / below for above, below in pairs]

    def _value(self, size: int, inside: bytes) -> bytes:
        """Return the bytes of a value: those of the entry, or from where they point to."""
        return inside[:size] if size <= 4 else self._at(self._number("I", inside), size)

    def _at(self, place: int, size: int) -> bytes:
        self._file.seek(self._start + place)
        return self._file.read(size)

    def _number(self, letter: str, data: bytes) -> int:
        """Return the number at the beginning of ``data``; 0 if this is cut off."""
        if not self._order or len(data) < struct.calcsize(f"={letter}"):
            return 0
        (number,) = struct.unpack_from(self._order + letter, data)
        return int(number)


def _moment(text: str) -> str | None:
    """Return a time as a date of metadata, without time zone."""
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    try:
        return datetime(*(int(part or 0) for part in match.groups())).isoformat()  # type: ignore[arg-type]
    except ValueError:  # the 31st of February
        return None


def _angle(
    exif: _Exif,
    place: Mapping[int, _Entry],
    tag: int,
    sides: str,
    most: int,
) -> float | None:
    """Return the latitude or longitude in degrees, to a centimetre; None if it is incomplete or out
    of its range. ``tag`` is that of its side, and before that of its value."""
    parts = exif.fractions(place, tag + 1, 3)
    side = exif.text(place, tag).upper()
    if not parts or min(parts) < 0 or max(parts[1:], default=0) >= 60:
        return None
    angle = sum(part / 60**i for i, part in enumerate(parts))
    # Without a side the text is empty, and in each.
    if len(side) != 1 or side not in sides or not math.isfinite(angle) or angle > most:
        return None
    rounded: float = round(angle, 7)
    return rounded if side == sides[0] else -rounded
