"""Read the precomputed arrays of SCAN (Lee et al., ECCV 2018), on which VSRN was trained. Each
split is a group of files.

``NAME_ims.npy`` contains the regions of all pictures, float32 (N, 36, 2048). ``NAME_caps.txt``
contains 5 N captions, one per line, with five consecutive captions per picture. The optional file
``NAME_ids.txt`` contains one id per picture or per caption. ``NAME`` is train, dev, test or
testall.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from boc.errors import SourceError
from boc.foreign import DAMAGE
from boc.inputs.text_lines import file_bytes, text_lines
from boc.types import Item

ARRAY = "_ims.npy"
CAPTIONS = 5  # number of captions per picture


def is_scan_array(path: Path) -> bool:
    """Return whether the file name in ``path`` is the name of a SCAN array."""
    return path.name.endswith(ARRAY)


def read_scan(path: Path) -> list[Item]:
    """Return the pictures, then the captions, of the split whose array is at ``path``.

    The id of a picture is ``NAME/ID``, where ID is the picture's line in ``NAME_ids.txt`` if these
    lines are all distinct, and otherwise the row number, counted from 0. Because there are no
    picture files, ``content`` is ``path#ROW``, which the region source ``scan`` reads. Raises
    SourceError if the captions do not match the array.
    """
    split = path.name.removesuffix(ARRAY)
    beside = path.with_name(f"{split}_caps.txt")
    count = rows_of(path)
    captions = _lines(beside)
    if len(captions) != CAPTIONS * count:
        raise SourceError(
            f"{beside}: {len(captions)} captions for the {count} pictures of {path.name}, but "
            f"{CAPTIONS} are needed per picture; use files from the same split",
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
    """Return the number of pictures in an array. Raises SourceError unless the array is
    three-dimensional."""
    try:
        shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
    except OSError as error:
        raise SourceError(
            f"{path}: cannot be read ({error.strerror or error}); download it again",
        ) from error
    except DAMAGE as error:
        raise SourceError(f"{path}: not a NumPy array; download it again") from error
    if len(shape) != 3 or 0 in shape:
        raise SourceError(
            f"{path}: has shape {shape}, not (pictures, regions, numbers); use a SCAN array",
        )
    return int(shape[0])


def _lines(path: Path) -> list[str]:
    data = file_bytes(path, "put the file beside the array")
    return [" ".join(line.split()) for line in text_lines(data.removesuffix(b"\n"), str(path))]
