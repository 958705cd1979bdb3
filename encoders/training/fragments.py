"""Fragments of captions for training, since queries are shorter than captions.

A fragment is a run of words. It describes the picture of its caption, and perhaps others: a picture whose captions have
all of its words is no negative of it. So "red rocket" has to be told apart from pictures of blue rockets and of red
boats; whole captions hardly require this, since their other words suffice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .data import Pairs


class Fragments:
    """Cuts captions to fragments, and finds the pictures that are negatives of a fragment.

    ``ids`` are the token ids of the captions, the first and the last of each special; ``stops`` are ids of words
    without content; a caption is cut with probability ``share``.
    """

    def __init__(self, ids: Sequence[Sequence[int]], pairs: Pairs, stops: Sequence[int], share: float) -> None:
        self._ids = ids
        self._stops = frozenset(stops)
        self._share = share
        self._known = {
            int(picture): frozenset(id for number in numbers for id in ids[number])
            for picture, numbers in zip(pairs.pictures, pairs.captions, strict=True)
        }

    def cut(self, numbers: Sequence[int], rng: np.random.Generator) -> list[list[int]]:
        """The ids of the captions ``numbers``, or of fragments of them."""
        return [self._cut(list(self._ids[number]), rng) for number in numbers]

    def apart(self, pictures: NDArray[np.int64], rows: Sequence[Sequence[int]]) -> Tensor:
        """Boolean (pictures, rows): whether the captions of a picture lack a word of the row, so that it is a
        negative."""
        asked = [frozenset(row[1:-1]) - self._stops for row in rows]
        known = [self._known[int(picture)] for picture in pictures]
        return torch.tensor([[not words <= have for words in asked] for have in known])

    def _cut(self, row: list[int], rng: np.random.Generator) -> list[int]:
        """A run of at least one word that is no stop word, if there is such a word."""
        places = [i for i in range(1, len(row) - 1) if row[i] not in self._stops]
        if not places or rng.random() >= self._share:
            return row
        kept = rng.choice(places)
        start, stop = rng.integers(1, kept + 1), rng.integers(kept + 1, len(row))
        return [row[0], *row[start:stop], row[-1]]
