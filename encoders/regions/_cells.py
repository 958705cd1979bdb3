"""Boxes of regular grids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def cell_boxes(rows: int, columns: int) -> NDArray[np.float32]:
    """Boxes float32 (rows * columns, 4) of the cells of a grid over the picture, row by row."""
    y, x = (a.ravel() for a in np.mgrid[0:rows, 0:columns])
    edges = np.stack([x / columns, y / rows, (x + 1) / columns, (y + 1) / rows], axis=1)
    return edges.astype(np.float32)
