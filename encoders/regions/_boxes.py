"""Selection of boxes, shared by all detectors, and their corners as fractions of the picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Kept:
    """Options for the boxes of a detector that become regions.

    At most ``top`` of those whose class confidence reaches ``threshold``, the most confident first (36 and 0.2 are
    those of bottom-up attention, Anderson et al., CVPR 2018; VSRN++ quotes a threshold of 0.3).
    """

    top: int = 36
    threshold: float = 0.2

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ValueError(f"top must be at least 1, got {self.top}")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold must be between 0 and 1, got {self.threshold}")


def select(
    corners: NDArray[np.float32], confidence: NDArray[np.float32], kept: Kept
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Boxes (m, 4) and their rows (m,), from ``corners`` (n, 4) x1 y1 x2 y2 as fractions and ``confidence``
    (n,).

    The most confident first, ties to the lower row. Boxes are clipped at the edges of the picture; those without area
    are dropped.
    """
    boxes = corners.astype(np.float32).clip(0, 1)
    usable = (boxes[:, :2] < boxes[:, 2:]).all(axis=1) & (confidence >= kept.threshold)
    order = np.argsort(-confidence, kind="stable")
    rows = order[usable[order]][: kept.top].astype(np.int64)
    return boxes[rows], rows
