"""The precomputed arrays of SCAN (Lee et al., ECCV 2018), which VSRN was trained on: one group of
files per split.

``NAME_ims.npy`` holds the regions of all pictures, float32 (N, 36, 2048); ``NAME_caps.txt`` 5 N
captions, one per line, five consecutive ones per picture; ``NAME_ids.txt``, if it is there, an id
per picture or per caption. ``NAME`` is train, dev, test or testall.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from boc.errors import SourceError
from boc.foreign import DAMAGE
from boc.inputs.text_lines import file_bytes, text_lines
from boc.types import Item

ARRAY = "_ims.npy"
CAPTIONS = 5  # of each picture


def is_scan_array(path: Path) -> bool:
    """Return whether ``path`` is named as an array of SCAN."""
    return path.name.endswith(ARRAY)


def read_scan(path: Path) -> list[Item]:
    """Return the pictures and captions of the split whose array is ``path``, pictures first.

    The id of a picture is ``NAME/ID``, with its id in ``NAME_ids.txt`` if these differ for all
    pictures, otherwise its row from 0. There are no picture files: ``content`` is ``path#ROW``,
    which the region source ``scan`` reads. SourceError for captions that do not belong to the
    array.
    """
    split = path.name.removesuffix(ARRAY)
    beside = path.with_name(f"{split}_caps.txt")
    count = rows_of(path)
    captions = _lines(beside)
    if len(captions) != CAPTIONS * count:
        raise SourceError(
            f"{beside}: {len(captions)} captions for the {count} pictures of {path.name}, "
            f"expected {CAPTIONS} of each; "
            "give both files of one split",
        )
    ids = path.with_name(f"{split}_ids.txt")
    lines = [line.strip() for line in _lines(ids)] if ids.is_file() else []
    if len(lines) == CAPTIONS * count:
        lines = lines[::CAPTIONS]
    if len(set(lines)) != count:
        lines = list(map(str, range(count)))
    names = [f"{split}/{line}" for line in lines]
    pictures = [
        Item(name, "image", f"{path.resolve()}#{row}", name) for row, name in enumerate(names)
    ]
    owners = [names[number // CAPTIONS] for number in range(len(captions))]
    sentences = [
        Item(f"{owner}#{number % CAPTIONS}", "text", caption, owner)
        for number, (owner, caption) in enumerate(zip(owners, captions, strict=True))
    ]
    return pictures + sentences


def rows_of(path: Path) -> int:
    """Return the number of pictures of an array. SourceError unless it has three axes."""
    try:
        shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
    except OSError as error:
        raise SourceError(
            f"{path}: cannot be read ({error.strerror or error}); fetch it again",
        ) from error
    except DAMAGE as error:
        raise SourceError(f"{path}: not an array of numpy; fetch it again") from error
    if len(shape) != 3 or 0 in shape:
        raise SourceError(
            f"{path}: has the shape {shape}, not (pictures, regions, numbers); give an array of "
            "SCAN",
        )
    return int(shape[0])


def _lines(path: Path) -> list[str]:
    data = file_bytes(path, "it belongs beside the array")
    return [" ".join(line.split()) for line in text_lines(data.removesuffix(b"\n"), str(path))]
