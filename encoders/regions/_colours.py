"""Colour features of grid cells, which networks trained to classify objects hardly provide."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

PIXELS = 8  # side of a cell
VIVID = 4  # pixels whose mean is the most vivid colour
HUES = 12
GREYS = 3  # dark, middle, light
WIDTH = 9 + HUES + GREYS


def describe(picture: Image.Image, side: int) -> NDArray[np.float32]:
    """float32 (side * side, WIDTH) in [0, 1], one row per cell of a ``side`` x ``side`` grid: the mean colour, its
    spread, the most vivid colour (each red, green, blue), and shares of hues and of greys.

    The weight of a pixel for its hue is its chroma (maximum minus minimum of red, green and blue), that for grey the
    rest; weights are split between the two nearest hues or greys.
    """
    small = picture.resize((side * PIXELS, side * PIXELS), Image.Resampling.BOX)
    colours = _cells(np.asarray(small, dtype=np.float32) / 255, side)
    hues = _cells(np.asarray(small.convert("HSV"), dtype=np.float32)[..., :1] / 256, side)[..., 0]
    light, chroma = colours.max(axis=2), np.ptp(colours, axis=2)
    vivid = np.argsort(-chroma, axis=1, kind="stable")[:, :VIVID, None]
    parts = (
        colours.mean(axis=1),
        2 * colours.std(axis=1),
        np.take_along_axis(colours, vivid, axis=1).mean(axis=1),
        _shares(hues * HUES, HUES, chroma),
        _shares(light * (GREYS - 1), GREYS, 1 - chroma),
    )
    return np.concatenate(parts, axis=1).astype(np.float32)


def _cells(pixels: NDArray[Any], side: int) -> NDArray[np.float32]:
    """Pixels (side * PIXELS, side * PIXELS, c) as (side * side, PIXELS ** 2, c)."""
    blocks = pixels.reshape(side, PIXELS, side, PIXELS, -1).swapaxes(1, 2)
    return blocks.reshape(side * side, PIXELS**2, -1)


def _shares(places: NDArray[np.float32], count: int, weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Histograms (n, count) of ``places`` (n, m) in [0, count], with ``count`` equal to 0, each split between two
    columns."""
    columns = np.arange(count)
    distance = np.abs(places[..., None] - columns)
    near = np.clip(1 - np.minimum(distance, count - distance), 0, None)
    shares: NDArray[np.float32] = (near * weights[..., None]).mean(axis=1)
    return shares
