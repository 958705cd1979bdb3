"""Base of encoders with two networks, one for pictures and one for sentences."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.types import Identity, ImageRef, Ragged

Encoded = tuple[NDArray[np.float32], Ragged]
"""Vectors (n, d), and n sets of rows (m_i, d)."""


class DualEncoder:
    """Encoder with one network for pictures and one for sentences.

    The first picture triggers ``open_preparer``. The ``vocabulary`` consists of the words with
    their own id in ``tokens``.
    """

    def __init__(
        self,
        identity: Identity,
        tokens: Any,
        open_preparer: Callable[[], Callable[[ImageRef], Any]],
    ) -> None:
        self.identity = identity
        self.tokens = tokens
        self._open_preparer = open_preparer

    @cached_property
    def preparer(self) -> Callable[[ImageRef], Any]:
        return self._open_preparer()

    @property
    def vocabulary(self) -> frozenset[str]:
        words: frozenset[str] = self.tokens.vocabulary
        return words

    def prepare(self, image: ImageRef) -> Any:
        return self.preparer(image)
