"""Regions that need no network: grid cells, described by their colours and edges."""

from __future__ import annotations

import numpy as np
from PIL import Image

from boc.atomic_files import text_sha256
from boc.errors import EncoderError
from boc.inputs.images import read_image
from boc.types import Identity, ImageRef, Regions
from boc.vectors import Array, Doubles, Floats

from ._shared import cell_boxes

# Cells per side, parts per side of a cell, and pixels per side of a part.
LEVELS = (6, 3, 1)
PARTS = 3
PIXELS = 8
ORIENTATIONS = 9
DIM = PARTS * PARTS * (ORIENTATIONS + 3)
XYZ = (
    (0.412453, 0.357580, 0.180423),
    (0.212671, 0.715160, 0.072169),
    (0.019334, 0.119193, 0.950227),
)
"""XYZ coordinates of the sRGB primaries under D65, with rows X, Y and Z."""


def load(argument: str) -> GridRegions:
    """Return the source, which takes no argument."""
    if argument:
        raise EncoderError(f"grid takes no argument, got {argument!r}", "write <--regions grid>")
    return GridRegions()


class GridRegions:
    """Region source that returns 46 regions with 108 features, the cells of a 6 x 6, a 3 x 3 and a
    1 x 1 grid, each scaled to 24 x 24 pixels.

    The features of a cell are histograms of oriented gradients and the mean Lab colours of its 3 x
    3 parts.
    """

    def __init__(self) -> None:
        self.identity = Identity(
            "grid",
            text_sha256(f"grid {LEVELS} {PARTS} {PIXELS} {ORIENTATIONS}"),
            DIM,
        )
        self._boxes = np.concatenate([cell_boxes(side, side) for side in LEVELS])

    def __call__(self, image: ImageRef) -> Regions:
        picture = read_image(image.path)
        return Regions(np.concatenate([_describe(picture, side) for side in LEVELS]), self._boxes)


def _describe(picture: Image.Image, side: int) -> Floats:
    """Return the features (side * side, DIM), one row per cell of a ``side`` x ``side`` grid."""
    parts = side * PARTS
    size = parts * PIXELS
    resized = picture.resize((size, size), Image.Resampling.BOX)
    pixels = np.asarray(resized, np.float32) / np.float32(255)
    # Histograms are scaled to unit length, clipped, and scaled again ("L2-Hys").
    edges = _unit(_of_cells(_histograms(pixels), side))
    edges = _unit(np.minimum(edges, 0.2))
    colours = rgb_to_lab(pixels).reshape(parts, PIXELS, parts, PIXELS, 3)
    colours = colours.mean(axis=(1, 3)) / 100
    return np.concatenate([edges, _of_cells(colours, side)], axis=1).astype(np.float32)


def _of_cells(parts: Array, side: int) -> Array:
    """Rearrange the values of parts (side * PARTS, side * PARTS, n) into one row per cell."""
    return parts.reshape(side, PARTS, side, PARTS, -1).swapaxes(1, 2).reshape(side * side, -1)


def _histograms(pixels: Floats) -> Doubles:
    """Return the histogram of oriented gradients of each part (rows, columns, ORIENTATIONS), which
    is the sum of the magnitudes per orientation, divided by the number of pixels.

    As in Dalal and Triggs, CVPR 2005, the gradient of a pixel comes from the channel with the
    largest gradient.
    """
    rows = np.zeros_like(pixels)
    columns = np.zeros_like(pixels)
    rows[1:-1] = pixels[2:] - pixels[:-2]
    columns[:, 1:-1] = pixels[:, 2:] - pixels[:, :-2]
    magnitudes = np.hypot(rows, columns)
    # This is the strongest channel of each pixel (height, width).
    channel = magnitudes.argmax(axis=2)[..., None]
    magnitude, row, column = (
        np.take_along_axis(each, channel, 2)[..., 0] for each in (magnitudes, rows, columns)
    )
    degrees = np.rad2deg(np.arctan2(row, column)) % 180
    bins = (degrees // (180 / ORIENTATIONS)).astype(np.int64)
    bins = np.minimum(bins, ORIENTATIONS - 1)
    side = len(pixels) // PIXELS
    part = np.arange(side).repeat(PIXELS)
    places = (part[:, None] * side + part) * ORIENTATIONS + bins
    sums = np.bincount(
        places.ravel(),
        magnitude.ravel(),
        side * side * ORIENTATIONS,
    )
    return sums.reshape(side, side, ORIENTATIONS) / PIXELS**2


def _unit(rows: Doubles) -> Doubles:
    squares = (rows**2).sum(axis=1, keepdims=True)
    unit: Doubles = rows / np.sqrt(squares + 1e-10)
    return unit


def rgb_to_lab(pixels: Floats) -> Floats:
    """Convert sRGB in [0, 1] to CIE L*a*b* under D65, float32 (..., 3): L* in [0, 100] (CIE
    15:2004, IEC 61966-2-1)."""
    bright = ((pixels + np.float32(0.055)) / np.float32(1.055)) ** np.float32(2.4)
    linear = np.where(
        pixels > 0.04045,
        bright,
        pixels / np.float32(12.92),
    )
    # These are the XYZ coordinates of D65 for the CIE 1931 observer.
    white = np.array((0.95047, 1.0, 1.08883), np.float32)
    xyz = linear @ np.array(XYZ, np.float32).T / white
    dark = np.float32(7.787) * xyz + np.float32(16 / 116)
    x, y, z = np.moveaxis(
        np.where(xyz > 0.008856, np.cbrt(xyz), dark),
        -1,
        0,
    )
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)
