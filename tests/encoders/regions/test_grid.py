"""The regions of a grid against slow loops, and published values of colours."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from boc.types import ImageRef
from boc.vectors import Doubles
from encoders.regions import grid


def part_histogram(
    pixels: Doubles,
    top: int,
    left: int,
) -> list[float]:
    """The oriented gradients of a part (Dalal and Triggs, CVPR 2005), of each pixel in its
    strongest channel."""
    bins = [0.0] * grid.ORIENTATIONS
    height, width, channels = pixels.shape
    for y in range(top, top + grid.PIXELS):
        for x in range(left, left + grid.PIXELS):
            steps = []
            for c in range(channels):
                down = pixels[y + 1, x, c] - pixels[y - 1, x, c] if 0 < y < height - 1 else 0
                across = pixels[y, x + 1, c] - pixels[y, x - 1, c] if 0 < x < width - 1 else 0
                steps.append((np.hypot(down, across), down, across))
            size, down, across = max(steps, key=lambda step: step[0])
            bins[int(np.degrees(np.arctan2(down, across)) % 180 // 20) % 9] += size / grid.PIXELS**2
    return bins


@pytest.mark.slow
@pytest.mark.parametrize(("size", "colours"), [((1, 1), 256), ((64, 48), 2), ((200, 90), 256)])
def test_edge_histograms(
    tmp_path: Path,
    size: tuple[int, int],
    colours: int,
):
    pixels = np.random.default_rng(colours).integers(
        0,
        colours,
        (*size, 3),
    )
    pixels *= 255 // (colours - 1)
    path = tmp_path / "picture.png"
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    regions = grid.load("")(ImageRef("picture", path))
    expected = []
    for side in grid.LEVELS:
        cell = grid.PARTS * grid.PIXELS
        scaled = Image.open(path).resize((side * cell, side * cell), Image.Resampling.BOX)
        values = np.asarray(scaled, dtype=np.float32) / np.float32(255)
        parts = range(0, cell, grid.PIXELS)
        for top, left in np.ndindex(side, side):
            places = [(cell * top + y, cell * left + x) for y in parts for x in parts]
            row = np.array([part_histogram(values, *place) for place in places]).ravel()
            clipped = np.minimum(row / np.sqrt((row**2).sum() + 1e-10), 0.2)
            expected.append(clipped / np.sqrt((clipped**2).sum() + 1e-10))
    np.testing.assert_allclose(
        regions.features[:, : -3 * grid.PARTS**2],
        expected,
        atol=1e-5,
    )
    assert regions.features.shape == (46, grid.DIM)


@pytest.mark.parametrize(
    ("colour", "expected"),
    [
        ((1, 1, 1), (100.0, -0.0025, 0.0047)),
        ((1, 0, 0), (53.2406, 80.0923, 67.2028)),
        ((0, 1, 0), (87.7351, -86.183, 83.1797)),
        ((0, 0, 1), (32.2957, 79.1856, -107.8573)),
        ((0, 0, 0), (0.0, 0.0, 0.0)),
        ((0.5, 0.5, 0.5), (53.389, -0.0015, 0.0028)),
        ((0.2, 0.4, 0.6), (42.008, -0.154, -32.8429)),
    ],
)
def test_lab_coordinates(
    colour: tuple[float, float, float],
    expected: tuple[float, float, float],
):
    found = grid.rgb_to_lab(np.array([colour], np.float32))
    np.testing.assert_allclose(
        found,
        [expected],
        atol=2e-3,
    )
