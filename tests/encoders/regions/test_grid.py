"""The regions of a grid: their edges are the histograms of oriented gradients of scikit-image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from skimage.feature import hog

from boc.types import ImageRef
from encoders.regions import grid


@pytest.mark.parametrize("size", [(1, 1), (64, 48), (200, 90)])
@pytest.mark.parametrize("colours", [256, 2, 1])
def test_edges_are_histograms_of_oriented_gradients(tmp_path: Path, size: tuple[int, int], colours: int) -> None:
    pixels = np.random.default_rng(colours).integers(0, colours, (*size, 3)) * (255 // max(colours - 1, 1))
    path = tmp_path / "picture.png"
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    regions = grid.load("")(ImageRef("picture", path))
    expected = []
    for side in grid.LEVELS:
        length = side * grid.PARTS * grid.PIXELS
        scaled = np.asarray(Image.open(path).resize((length, length), Image.Resampling.BOX), dtype=np.float32) / 255
        cell, block = (grid.PIXELS, grid.PIXELS), (grid.PARTS, grid.PARTS)
        blocks = hog(scaled, grid.ORIENTATIONS, cell, block, feature_vector=False, channel_axis=-1)
        expected.append(blocks[:: grid.PARTS, :: grid.PARTS].reshape(side * side, -1))
    edges = regions.features[:, : -3 * grid.PARTS**2]
    np.testing.assert_allclose(edges, np.concatenate(expected), atol=1e-5)
    assert regions.features.shape == (46, grid.DIM)
