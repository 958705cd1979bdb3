"""Read texts that people wrote about a picture: XMP in the file or beside it, IPTC, and EXIF texts.

Lightroom, digiKam, darktable and Apple Photos write the entries that are read here. Because anybody
can write arbitrary entries, the amount of data is limited, and values that do not match a field are
skipped.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from os.path import splitext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from boc.inputs.archives import read_head
from boc.inputs.images import passing_over
from boc.paths import nfc, printable
from boc.types import FieldType

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

FIELDS: dict[str, FieldType] = {
    "written": "text",
    "keywords": "keyword",
    "people": "keyword",
    "place": "keyword",
    "rating": "integer",
}
"""Types of the fields. For full-text search, ``written`` combines the title, the description, and
all keywords, people and places. ``rating`` is 1 to 5."""

BYTES = 1 << 18  # maximum size of XMP in bytes
LONGEST = 1000  # maximum length of a text in characters

_RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
_XMP = {
    "{http://purl.org/dc/elements/1.1/}title": "title",
    "{http://purl.org/dc/elements/1.1/}description": "description",
    "{http://purl.org/dc/elements/1.1/}subject": "keywords",
    "{http://iptc.org/std/Iptc4xmpExt/2008-02-29/}PersonInImage": "people",
    "{http://www.metadataworkinggroup.com/schemas/regions/}Name": "people",
    "{http://ns.adobe.com/photoshop/1.0/}City": "place",
    "{http://ns.adobe.com/photoshop/1.0/}Country": "place",
    "{http://ns.adobe.com/xap/1.0/}Rating": "rating",
    "{http://ns.adobe.com/exif/1.0/}DateTimeOriginal": "taken",
    "{http://ns.adobe.com/xap/1.0/}CreateDate": "taken",
    "{http://ns.adobe.com/exif/1.0/}GPSLatitude": "latitude",
    "{http://ns.adobe.com/exif/1.0/}GPSLongitude": "longitude",
}
_IPTC = {
    (2, 5): "title",
    (2, 120): "description",
    (2, 25): "keywords",
    (2, 90): "place",
    (2, 101): "place",
}
_EXIF = {0x010E: "description", 0x4746: "rating"}
_ANGLE = re.compile(r"(\d{1,3}),(\d{1,2}(?:\.\d+)?)(?:,(\d{1,2}(?:\.\d+)?))?([NSEW])", re.ASCII)


def texts_of(path: Path, image: ImageFile, exif: Mapping[int, Any]) -> dict[str, list[str]]:
    """Return the texts of a picture by kind: title, description, keywords, people, place, rating,
    taken, latitude, longitude. For each kind, the first source that contains it is used, in this
    order: a file beside the picture (``a.jpg.xmp``, ``a.xmp``), XMP in the picture, IPTC, EXIF."""
    from PIL.IptcImagePlugin import getiptcinfo

    sources = [_xmp(read_head(beside, BYTES + 1)) for beside in sidecars(path)]
    sources.append(_xmp(image.info.get("xmp") or image.info.get("XML:com.adobe.xmp") or b""))
    with passing_over("IPTC"):
        found = getiptcinfo(image) or {}
        sources.append(_pairs((_IPTC.get(key), data) for key, data in found.items()))
    with passing_over("EXIF"):
        sources.append(_pairs((name, exif.get(tag)) for tag, name in _EXIF.items()))
    return dict(ChainMap(*sources))


def written_facts(texts: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the values of ``FIELDS`` that can be derived from ``texts``."""
    facts: dict[str, Any] = {}
    words = [*texts.get("title", [])[:1], *texts.get("description", [])[:1]]
    for name in ("keywords", "people", "place"):
        values = list(dict.fromkeys(texts.get(name, [])))[:100]
        words += values
        if values:
            facts[name] = values if len(values) > 1 else values[0]
    written = "; ".join(dict.fromkeys(words))
    if written:
        facts["written"] = written
    rating = "".join(texts.get("rating", [])[:1])
    if re.fullmatch("[1-5]", rating):
        facts["rating"] = int(rating)
    return facts


def degrees(text: str) -> float | None:
    """Convert a latitude or longitude from XMP notation, such as ``41,54.1N``, to degrees. Return
    None if the text is invalid."""
    match = _ANGLE.fullmatch(text)
    if match is None:
        return None
    whole, minutes, seconds, side = match.groups()
    angle = int(whole) + float(minutes) / 60 + float(seconds or 0) / 3600
    if angle > (90 if side in "NS" else 180):
        return None
    return round(-angle if side in "SW" else angle, 7)


def sidecars(path: Path | str) -> list[str]:
    """Return the paths of the XMP files beside a picture, whether or not they exist. The first file
    takes precedence over the second."""
    return [f"{path}.xmp", f"{splitext(path)[0]}.xmp"]  # noqa: PTH122


def _xmp(data: bytes | str) -> dict[str, list[str]]:
    """Return the texts in XMP data. Return no texts if the data is damaged, too large, or contains
    entities, which could expand without limit."""
    if isinstance(data, str):
        data = data.encode()
    # Remove NUL bytes, so that the signature is recognised in UTF-16 as well.
    if len(data) > BYTES or b"<!DOCTYPE" in data.replace(b"\0", b""):
        return {}
    with suppress(ElementTree.ParseError, ValueError, LookupError):
        return _pairs(_entries(ElementTree.fromstring(data.strip(b"\0 \n"))))
    return {}


def _entries(root: ElementTree.Element) -> Iterator[tuple[str | None, Any]]:
    """Yield the name of each property that is used, and its text or list of texts. A property is an
    attribute or an element."""
    for element in root.iter():
        for name, value in element.attrib.items():
            yield _XMP.get(name), value
        if element.tag in _XMP:
            # Read only the direct list of the element, because nested lists would take quadratic
            # time.
            listed = [each.text for each in element.findall(f"*/{_RDF}li")]
            yield _XMP[element.tag], listed or element.text


def _pairs(entries: Iterable[tuple[str | None, Any]]) -> dict[str, list[str]]:
    """Return the texts of entries by name, without empty texts."""
    texts: dict[str, list[str]] = {}
    for name, value in entries:
        for each in value if isinstance(value, list) else [value]:
            text = plain(each)
            if name and text:
                texts.setdefault(name, []).append(text)
    return texts


def plain(value: object) -> str:
    """Return a value as a single line of text. Bytes are decoded as UTF-8 or, if they are not valid
    UTF-8, as Latin-1, as in Pillow's EXIF."""
    text = str(value) if isinstance(value, (str, int)) else ""
    if isinstance(value, bytes):
        text = value.decode("latin-1")
    with suppress(UnicodeError):
        text = text.encode("latin-1").decode()
    # Replace bars, because bars separate the values of a filter.
    return nfc(printable(text.partition("\0")[0][:LONGEST].replace("|", "/")))
