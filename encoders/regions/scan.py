"""Regions from the precomputed arrays of SCAN (Lee et al., ECCV 2018): ``NAME_ims.npy`` in one folder.

The pictures are those of a source ``NAME_ims.npy``. The arrays hold no boxes, which VSRN does not need: every region
has the whole picture as its box.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from boc.errors import EncoderError, ImageError, SourceError
from boc.inputs.scan_arrays import ARRAY, rows_of
from boc.types import Identity, ImageRef, Regions

ARGUMENT = "DIR"
EXTRA = "encoders"


def load(argument: str) -> ScanRegions:
    """The source over the arrays in the folder ``argument``. EncoderError if there are none."""
    return ScanRegions(Path(argument))


class ScanRegions:
    """Reads the row of a picture whose path is ``NAME_ims.npy#ROW``; order and values are kept."""

    boxes = False

    def __init__(self, folder: Path) -> None:
        arrays = sorted(folder.glob(f"*{ARRAY}"))
        if not arrays:
            raise EncoderError(f"{folder}: no arrays of SCAN (testall_ims.npy); name the folder they were unpacked in")
        try:
            rows_of(arrays[0])
        except SourceError as error:
            raise EncoderError(str(error)) from error
        listing = "\n".join(f"{path.name} {path.stat().st_size}" for path in arrays)
        self._folder = folder.resolve()
        width = np.load(arrays[0], mmap_mode="r", allow_pickle=False).shape[-1]
        self.identity = Identity(f"scan:{self._folder}", hashlib.sha256(listing.encode()).hexdigest(), int(width))

    def __call__(self, image: ImageRef) -> Regions:
        name, mark, row = image.path.name.rpartition("#")
        if not mark or not row.isdecimal() or not name.endswith(ARRAY):
            raise ImageError(f"{image.path}: no picture of an array of SCAN; give an array ({ARRAY}) as the source")
        path = self._folder / name
        try:
            features = np.load(path, mmap_mode="r", allow_pickle=False)[int(row)].astype(np.float32)
        except (OSError, ValueError, IndexError) as error:
            raise ImageError(f"{path}: no regions in row {row} ({error}); give the folder of this array") from error
        if features.ndim != 2 or features.shape[1] != self.identity.dim:
            raise ImageError(f"{path}: row {row} has the shape {features.shape}; regions are {self.identity.dim} wide")
        return Regions(features, np.tile(np.array([0, 0, 1, 1], np.float32), (len(features), 1)))
