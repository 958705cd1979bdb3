"""What the networks of a model folder compute, on torch or ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boc.types import Ragged, Regions

Places = Sequence[Sequence[int]]
"""Rows of the set of each text, in ascending order."""


class Towers(Protocol):
    """A network, on torch or ONNX Runtime."""

    def images(self, regions: Sequence[Regions]) -> tuple[NDArray[np.float32], Ragged]:
        """Return vectors (n, d), and the row of each region."""

    def texts(
        self, ids: Sequence[list[int]], places: Places | None = None
    ) -> tuple[NDArray[np.float32], Ragged, Places]:
        """Return vectors (n, d), the rows ``places`` of each set, and these places: by default those of words."""
