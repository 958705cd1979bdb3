"""Read the metadata that cameras write into pictures (EXIF).

Pillow reads the entries. Because anybody can write arbitrary entries, a value is used only if its
type and range are valid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path, PurePosixPath
from typing import Any

from boc.errors import ImageError
from boc.inputs import written
from boc.inputs.images import exif_of, open_image, orientation, passing_over, upright_size
from boc.inputs.written import degrees, plain, texts_of, written_facts
from boc.paths import name_words, nfc
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
    **written.FIELDS,
}
"""Types of the fields that ``camera_facts`` may return. ``width`` and ``height`` are the size of
the upright picture in pixels. ``orientation`` is 1 to 8, and 1 if the file has no value. Latitude
and longitude are in degrees; north and east are positive."""

LONGEST = 256  # maximum length of a text in characters

MAKE = 0x010F
MODEL = 0x0110
LENS = 0xA434
CHANGED = 0x0132
TAKEN = 0x9003
DIGITIZED = 0x9004
CAMERA_DIRECTORY = 0x8769
GPS_DIRECTORY = 0x8825

_DATE = re.compile(
    r"(\d{4})[:./-](\d\d)[:./-](\d\d)[ T](\d\d):(\d\d)(?::(\d\d))?(?:\.\d*)?(?:Z|[+-]\d\d:\d\d)?",
    re.ASCII,
)
# Eight digits can be any number. They count as a date only if separators divide them, if words
# precede them, or if a time follows them.
_NAME = re.compile(
    r"(?<!\d)((?:19|20)\d\d)([-_.]?)(\d\d)\2(\d\d)"
    r"(?:(?:[-_ .T]| at )?(\d\d)[-_.h]?(\d\d)[-_.m]?(\d\d)(?:[-_.]?\d{1,3})?)?(?!\d)",
    re.ASCII,
)
_WORDS = re.compile("[A-Za-z][A-Za-z ]*[-_ ]", re.ASCII)
_MILLISECONDS = re.compile(r"(?<!\d)1\d{12}(?!\d)", re.ASCII)  # since 1970, for times from 2001 on


def camera_facts(image: ImageRef) -> dict[str, Any]:
    """Return the facts from the header and the file name of a picture, in the order of ``FIELDS``.

    ``taken`` is the local time of the camera's clock, in whichever time zone. ``taken_from`` is the
    source of this time: exif, xmp, or name, because cameras and messengers often name files by
    time. ``folder`` and ``name`` are derived from the id. The pixels are not decoded. For a picture
    that cannot be opened, only the facts from its name are returned.
    """
    path = PurePosixPath(nfc(image.id))
    facts = {"name": name_words(f"{path.parent}/{path.stem}")}
    if str(path.parent).strip("./"):
        facts["folder"] = str(path.parent)
    facts |= _header_facts(image.path)
    if "taken" not in facts and (taken := _date_of(path.stem)):
        facts |= {"taken": taken, "taken_from": "name"}
    return {name: facts[name] for name in FIELDS if facts.get(name) not in (None, "")}


def _date_of(name: str) -> str | None:
    """Return the time in a file name, in the formats that cameras, phones and messengers use. Times
    in the future are ignored."""
    if match := _MILLISECONDS.search(name):
        moment = datetime.fromtimestamp(int(match[0]) // 1000, timezone.utc)
        taken: str | None = moment.replace(tzinfo=None).isoformat()
    else:
        match = _NAME.search(name)
        if match is None or not (match[2] or match[5] or _WORDS.match(name[: match.start()])):
            return None
        time = ":".join(part or "00" for part in match.group(5, 6, 7))
        taken = _moment(f"{match[1]}-{match[3]}-{match[4]} {time}")
    latest = datetime.now(timezone.utc) + timedelta(days=1)
    return taken if taken and taken <= latest.isoformat() else None


def exif_facts(exif: Mapping[int, Any]) -> dict[str, Any]:
    """Return the facts in the EXIF of a picture, as read by Pillow. Damaged entries are skipped."""
    camera = _directory(exif, CAMERA_DIRECTORY)
    place = _directory(exif, GPS_DIRECTORY)
    times = (_text(camera, TAKEN), _text(camera, DIGITIZED), _text(exif, CHANGED))
    taken = next(filter(None, map(_moment, times)), None)
    # Do not repeat the maker if the name of the model includes it, as in Canon, Canon EOS 5D.
    make = _text(exif, MAKE)
    name = _text(exif, MODEL)
    if not name.lower().startswith(make.split(" ")[0].lower()):
        name = f"{make} {name}".strip()
    facts: dict[str, Any] = {"camera": name or make, "lens": _text(camera, LENS)}
    if taken:
        facts |= {"taken": taken, "taken_from": "exif"}
    latitude = _angle(place, 1, "NS", 90)
    longitude = _angle(place, 3, "EW", 180)
    # Some cameras write zeros if they do not know their position.
    if latitude is not None and longitude is not None and (latitude or longitude):
        facts |= {"gps_latitude": latitude, "gps_longitude": longitude}
    return {name: value for name, value in facts.items() if value != ""}


def _directory(exif: Any, tag: int) -> Mapping[int, Any]:
    """Return the entries of an EXIF subdirectory by tag, or no entries if the subdirectory is
    damaged."""
    with passing_over("EXIF"):
        return exif.get_ifd(tag) or {}
    return {}


def _text(entries: Mapping[int, Any], tag: int) -> str:
    """Return a text entry. Pillow decodes text as Latin-1, but cameras also write UTF-8."""
    with passing_over("EXIF"):
        value = entries.get(tag)
        return plain(value)[:LONGEST] if isinstance(value, str) else ""
    return ""


def _header_facts(path: Path) -> dict[str, Any]:
    try:
        with open_image(path) as image:
            width, height = upright_size(image)
            size = {"width": width, "height": height, "orientation": orientation(image)}
            exif: Mapping[int, Any] = {}
            with passing_over("EXIF"):
                exif = exif_of(image)
            facts = exif_facts(exif)
            texts = texts_of(path, image, exif)
    except (ImageError, OSError):  # the decoder reports the error
        return {}
    text = "".join(texts.get("taken", [])[:1]).strip()
    if "taken" not in facts and (taken := _moment(text) or _moment(f"{text} 00:00")):
        facts |= {"taken": taken, "taken_from": "xmp"}
    places = [degrees("".join(texts.get(name, [])[:1])) for name in ("latitude", "longitude")]
    if None not in places and "gps_latitude" not in facts:
        facts |= dict(zip(("gps_latitude", "gps_longitude"), places, strict=True))
    return {**facts, **written_facts(texts), **size}


def _moment(text: str) -> str | None:
    """Return a time as a metadata date without a time zone, or None if the time is invalid."""
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    try:
        parts = [int(part or 0) for part in match.groups()]
        return datetime(*parts).isoformat()  # type: ignore[arg-type]
    except ValueError:  # such as the 31st of February
        return None


def _angle(place: Mapping[int, Any], tag: int, sides: str, most: int) -> float | None:
    """Return a latitude or longitude in degrees, rounded to a centimetre. Return None if it is
    incomplete or out of range. ``tag`` is the tag of the direction (north, south, east or west),
    and the next tag is the tag of the value."""
    side = _text(place, tag).upper()
    try:
        parts = [float(part) for part in place.get(tag + 1, ())]
    except (TypeError, ValueError, ArithmeticError):
        return None
    # Every text contains the empty string, so the length of the direction is checked as well. An
    # invalid fraction becomes NaN.
    if len(side) != 1 or side not in sides or len(parts) not in (1, 2, 3):
        return None
    angle: float = sum(part / 60**i for i, part in enumerate(parts))
    if not (min(parts) >= 0 and max(parts[1:], default=0) < 60 and angle <= most):
        return None
    return round(angle, 7) if side == sides[0] else -round(angle, 7)
