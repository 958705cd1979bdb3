"""Regions without weights: cells of grids, described by their colours and edges."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from skimage.color import rgb2lab
from skimage.feature import hog

from boc.errors import EncoderError
from boc.inputs.images import read_image
from boc.types import Identity, ImageRef, Regions

from ._cells import cell_boxes

ARGUMENT = ""
EXTRA = "encoders"
LEVELS = (6, 3, 1)  # cells a side
PARTS = 3  # a cell is described by 3 x 3 parts ...
PIXELS = 8  # ... of 8 x 8 pixels
ORIENTATIONS = 9
DIM = PARTS * PARTS * (ORIENTATIONS + 3)


def load(argument: str) -> GridRegions:
    """The source; it takes no argument."""
    if argument:
        raise EncoderError(f"grid takes no argument, got {argument!r}; write --regions grid")
    return GridRegions()


class GridRegions:
    """46 regions of 108 numbers: cells of a 6 x 6, a 3 x 3 and a 1 x 1 grid, each scaled to 24 x 24 pixels.

    A cell gives a histogram of oriented gradients and the mean Lab colour of its 3 x 3 parts.
    """

    def __init__(self) -> None:
        described = f"grid {LEVELS} {PARTS} {PIXELS} {ORIENTATIONS}"
        self.identity = Identity("grid", hashlib.sha256(described.encode()).hexdigest(), DIM)
        self._boxes = np.concatenate([cell_boxes(side, side) for side in LEVELS])

    def __call__(self, image: ImageRef) -> Regions:
        picture = read_image(image.path)
        return Regions(np.concatenate([_describe(picture, side) for side in LEVELS]), self._boxes)


def _describe(picture: Image.Image, side: int) -> NDArray[np.float32]:
    """(side * side, DIM): one row a cell of a ``side`` x ``side`` grid."""
    size = side * PARTS * PIXELS
    pixels = np.asarray(picture.resize((size, size), Image.Resampling.BOX), dtype=np.float32) / 255
    edges = hog(pixels, ORIENTATIONS, (PIXELS, PIXELS), (PARTS, PARTS), feature_vector=False, channel_axis=-1)[
        ::PARTS, ::PARTS
    ]
    parts = rgb2lab(pixels).reshape(side * PARTS, PIXELS, side * PARTS, PIXELS, 3).mean(axis=(1, 3)) / 100
    colours = parts.reshape(side, PARTS, side, PARTS, 3).swapaxes(1, 2)
    cells = [edges.reshape(side * side, -1), colours.reshape(side * side, -1)]
    return np.concatenate(cells, axis=1).astype(np.float32)
