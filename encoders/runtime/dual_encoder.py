"""Base class for encoders with two networks, one for pictures and one for sentences."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from boc.types import Identity, ImageRef, Ragged
from boc.vectors import Floats

Encoded = tuple[Floats, Ragged]
"""Vectors (n, d), and n sets of rows (m_i, d)."""


@dataclass
class DualEncoder:
    """Encoder with one network for pictures and one for sentences.

    ``open_preparer`` is called for the first picture. The ``vocabulary`` consists of the words that
    have their own ids in ``tokens``.
    """

    identity: Identity
    tokens: Any
    open_preparer: Callable[[], Callable[[ImageRef], Any]]

    @cached_property
    def preparer(self) -> Callable[[ImageRef], Any]:
        return self.open_preparer()

    @property
    def vocabulary(self) -> frozenset[str]:
        words: frozenset[str] = self.tokens.vocabulary
        return words

    def prepare(self, image: ImageRef) -> Any:
        return self.preparer(image)
