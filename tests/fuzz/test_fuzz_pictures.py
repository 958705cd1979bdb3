"""Damaged pictures of every format: each is read, or refused as a BocError, within its time.

BOC_PICTURES sets how many are tried (default 400).
"""

import io
import os
import random
import signal
import traceback
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from PIL import Image

from boc.errors import BocError
from boc.inputs.camera import camera_facts
from boc.inputs.images import formats, image_size, read_image
from boc.types import ImageRef
from tests.fuzz.mutations import damaged, damages
from tests.indexing.embedded.test_crash import start, tell

PICTURES = int(os.environ.get("BOC_PICTURES", "400"))
PIXELS = 1_000_000
LONGEST = 60  # seconds for one picture, on a busy machine
KINDS = {
    "JPEG": (
        {"mode": "RGB"},
        {"mode": "L"},
        {"mode": "CMYK"},
        {"mode": "RGB", "progressive": True},
    ),
    "PNG": (
        {"mode": "RGB"},
        {"mode": "P"},
        {"mode": "1"},
        {"mode": "LA"},
        {"mode": "I;16"},
        {"mode": "RGBA", "frames": 3},
    ),
    "WEBP": (
        {"mode": "RGB"},
        {"mode": "RGBA", "lossless": True},
        {"mode": "RGB", "frames": 3},
    ),
    "GIF": (
        {"mode": "P"},
        {"mode": "P", "interlace": 1},
        {"mode": "RGB", "frames": 3},
    ),
    "BMP": (
        {"mode": "RGB"},
        {"mode": "P"},
        {"mode": "1"},
    ),
    "TIFF": (
        {"mode": "RGB"},
        *(
            {"mode": "RGB", "compression": name}
            for name in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits")
        ),
        {"mode": "1", "compression": "group4"},
        {"mode": "F"},
        {"mode": "RGB", "frames": 3},
    ),
    "AVIF": (
        {"mode": "RGB"},
        {"mode": "RGBA"},
        {"mode": "L"},
    ),
    "HEIF": ({"mode": "RGB"}, {"mode": "RGBA"}),
}


def picture(form: str, mode: str = "RGB", frames: int = 1, **options: object) -> bytes:
    """A small sound picture of a format, with EXIF where the format has it."""
    exif = Image.Exif()
    buffer = io.BytesIO()
    exif[0x0112] = 6
    exif[0x010E] = "what is on it"
    exif.get_ifd(0x8769)[0x9003] = "2020:02:29 12:00:00"
    shown = [
        Image.frombytes(
            "RGB",
            (24, 16),
            bytes((i * 37 + n) % 256 for i in range(24 * 16 * 3)),
        )
        for n in range(frames)
    ]
    several = (
        {
            "save_all": True,
            "append_images": shown[1:],
        }
        if frames > 1
        else {}
    )
    written = {"exif": exif} if form not in ("GIF", "BMP") else {}
    shown[0].convert("L" if mode == "I;16" else mode).convert(mode).save(
        buffer,
        form,
        **several,
        **written,
        **options,
    )
    return buffer.getvalue()


@cache
def pictures() -> list[bytes]:
    """Sound pictures of all formats and kinds that can be read here."""
    return [picture(form, **kind) for form in formats() for kind in KINDS[form]]


READERS = (
    lambda path: read_image(path, PIXELS),
    lambda path: read_image(path, PIXELS, 8),
    image_size,
    lambda path: camera_facts(ImageRef(path.name, path)),
)


def outcome(path: Path) -> str:
    """What became of reading a file in every way: read, refused, or the error that is none of
    ours."""
    found = "read"
    for read in READERS:
        try:
            read(path)
        except BocError:
            found = "refused"
        except Exception:
            return " | ".join(traceback.format_exc().splitlines()[-7:])
    return found


@given(data=st.data())
def test_a_damaged_picture_is_read_or_refused(
    tmp_path_factory,
    data: st.DataObject,
):
    path = tmp_path_factory.getbasetemp() / "damaged.jpg"
    path.write_bytes(data.draw(st.sampled_from(pictures()).flatmap(damages)))
    assert outcome(path) in ("read", "refused")


def judge(folder: str, first: str, last: str) -> None:
    """Damage pictures one after the other, and tell what becomes of each. In a process of its own,
    which one that takes too long ends."""
    tell("ready")
    for number in range(int(first), int(last)):
        chance = random.Random(number)
        path = Path(folder) / f"{number}.jpg"
        path.write_bytes(damaged(chance.choice(pictures()), chance))
        signal.alarm(LONGEST)
        tell(f"{number} {outcome(path)}")
        path.unlink()
    signal.alarm(0)


@pytest.mark.slow
def test_damaged_pictures_in_a_process(tmp_path: Path):
    process = start(judge, tmp_path, 0, PICTURES)
    outcomes = [line.partition(" ")[2] for line in process.communicate()[0].splitlines()]
    assert process.returncode == 0, f"ended by {process.returncode} at picture {len(outcomes)}"
    assert len(outcomes) == PICTURES
    assert set(outcomes) == {"read", "refused"}
