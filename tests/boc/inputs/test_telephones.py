"""Three hundred files as ten telephones and programs write them, whose sources disagree: an index
holds what the order of the sources says."""

import random
from collections import ChainMap
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.Image import Transpose

from boc import Searcher, plugins
from boc.inputs.images import read_image
from tests.boc.inputs.test_camera import CAMERA, ORIENTATION, TAKEN, add_iptc, xmp_of
from tests.boc.manage.collections_of_files import Counting, Files

NAMES = (
    "%Y%m%d_%H%M%S",
    "PXL_%Y%m%d_%H%M%S123",
    "IMG%Y%m%d%H%M%S",
    "signal-%Y-%m-%d-%H%M%S_002",
    "WP_%Y%m%d_%H_%M_%S_Pro",
    "Screenshot_%Y%m%d-%H%M%S_Maps",
    "%Y-%m-%d %H.%M.%S-1",
    "IMG-%Y%m%d-WA0007",
    "FB_IMG_{}",
    "IMG_1234",
)
TURNS = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_90,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_270,
}
"""What makes the stored picture from the upright one, by the orientation that is written."""
KINDS = ("title", "description", "keywords", "rating", "taken")
PLACES = {
    "beside": KINDS,
    "stem": KINDS,
    "xmp": KINDS,
    "iptc": KINDS[:3],
    "exif": KINDS[1:2] + KINDS[3:],
}
"""What each source may tell, in the order in which the sources are asked; the first two are files
beside the picture."""
IPTC = {"title": 5, "description": 120, "keywords": 25}
EXIF = {"description": 0x010E, "rating": 0x4746}


def moment(draw: random.Random) -> datetime:
    """A second of the years 2002 to 2024."""
    return datetime(2002, 1, 1) + timedelta(seconds=draw.randrange(23 * 365 * 86_400))


def told(draw: random.Random, place: str) -> dict[str, Any]:
    """What a source tells: some of what it may tell."""
    make = {
        "title": lambda: f"title of {place}",
        "description": lambda: f"description of {place}",
        "keywords": lambda: draw.sample(["sea", "été", "Müller", place], draw.randint(1, 3)),
        "rating": lambda: draw.randint(1, 5),
        "taken": lambda: moment(draw),
    }
    return {kind: make[kind]() for kind in PLACES[place] if draw.random() < 0.4}


def texts_of(told: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """The texts of a source by kind, each as a list."""
    return [
        (kind, [told[kind]] if kind in KINDS[:2] else told[kind]) for kind in told if kind in IPTC
    ]


def xmp(told: Mapping[str, Any], draw: random.Random) -> bytes:
    attributes = ""
    if "rating" in told:
        attributes += f' xmp:Rating="{told["rating"]}"'
    if "taken" in told:
        name = draw.choice(["exif:DateTimeOriginal", "xmp:CreateDate"])
        attributes += f' {name}="{told["taken"].isoformat()}+02:00"'
    inside = ""
    for kind, texts in texts_of(told):
        name = f"dc:{kind.replace('keywords', 'subject')}"
        items = "".join(f"<rdf:li>{text}</rdf:li>" for text in texts)
        inside += f"<{name}><rdf:Bag>{items}</rdf:Bag></{name}>"
    return xmp_of(attributes, inside)


def write(path: Path, draw: random.Random) -> dict[str, Any]:
    """Write a picture, and files beside it; return what an index is to hold of them."""
    sources = {place: told(draw, place) for place in PLACES}
    size = draw.choice([(24, 16), (16, 24), (48, 16)])
    upright = Image.new("RGB", size, "white")
    upright.paste("red", (0, 0, 8, 8))
    orientation = draw.randrange(9)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    for kind, tag in EXIF.items():
        if kind in sources["exif"]:
            exif[tag] = sources["exif"][kind]
    if time := sources["exif"].get("taken"):
        entries = draw.choice([exif, exif.get_ifd(CAMERA)])
        tag = 0x0132 if entries is exif else draw.choice([TAKEN, 0x9004])
        entries[tag] = time.strftime("%Y:%m:%d %H:%M:%S")
    stored = upright.transpose(TURNS[orientation]) if orientation in TURNS else upright
    stored.save(path, "JPEG", exif=exif, xmp=xmp(sources["xmp"], draw), quality=95)
    add_iptc(
        path,
        *((IPTC[kind], text) for kind, some in texts_of(sources["iptc"]) for text in some),
    )
    for place, beside in (("beside", Path(f"{path}.xmp")), ("stem", path.with_suffix(".xmp"))):
        if sources[place]:
            beside.write_bytes(xmp(sources[place], draw))
    facts: dict[str, Any] = dict(ChainMap(*sources.values()))
    if taken := sources["exif"].get("taken") or facts.get("taken"):
        source = "exif" if "taken" in sources["exif"] else "xmp"
        facts |= {"taken": taken.isoformat(), "taken_from": source}
    words = [text for kind in IPTC for text in dict(texts_of(facts)).get(kind, [])]
    if len(facts.get("keywords", [])) == 1:
        facts["keywords"] = facts["keywords"][0]
    facts |= {"written": "; ".join(words)} if words else {}
    return facts | {"width": size[0], "height": size[1], "orientation": orientation or 1}


def test_three_hundred_files_of_ten_telephones(
    tmp_path: Path,
    monkeypatch,
) -> None:
    Counting.installed(monkeypatch)
    files = Files(tmp_path / "lib")
    draw = random.Random(0)
    expected = {}
    for number in range(300):
        time = moment(draw)
        form = NAMES[number % len(NAMES)]
        epoch = round(1000 * time.replace(tzinfo=timezone.utc).timestamp())
        suffix = draw.choice([".jpg", ".JPG", ".jpeg"])
        path = files.folder / f"{number}" / f"{time.strftime(form).format(epoch)}{suffix}"
        path.parent.mkdir(parents=True)
        facts = write(path, draw)
        if "taken" not in facts and form != "IMG_1234":
            if "WA" in form:
                time = datetime(time.year, time.month, time.day)
            facts |= {"taken": time.isoformat(), "taken_from": "name"}
        expected[f"{number}/{path.name}"] = facts
        seen = read_image(path)
        assert seen.size == (facts["width"], facts["height"])
        red, green, _ = seen.getpixel((2, 2))
        assert red > 200 > 100 > green
    files.index()
    names = {name for facts in expected.values() for name in facts} - {"title", "description"}
    held = {
        item.id: {name: item.fields[name] for name in names & item.fields.keys()}
        for item in plugins.backend(files.at).open("x").items()
    }
    for key, facts in expected.items():
        assert held[key] == {name: facts[name] for name in names & facts.keys()}, key
    searcher = Searcher.open("x", files.at)
    hits = searcher.search("any", filters=["keywords=müller"])
    assert hits.notes == ["no item has keywords=müller; some have Müller, beside, iptc"]
    # An item outside of the sample has the value; the other filter leaves no hits.
    some = next(key for key in held if "iptc" not in held[key].get("keywords", "iptc"))
    monkeypatch.setattr(searcher.index, "sample", lambda *_: [some])
    hits = searcher.search("any", filters=["keywords=iptc", "folder=nowhere"])
    assert len(hits) == 0
    assert not [note for note in hits.notes if "keywords" in note]
