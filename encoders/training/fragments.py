"""Texts that training reads instead of captions: fragments of them, and captions turned round.

Queries are shorter than captions. A fragment is a run of words. It describes the picture of its
caption, and perhaps others: a picture whose captions have all of its words is no negative of it. So
"red rocket" has to be told apart from pictures of blue rockets and of red boats; whole captions
hardly require this, since their other words suffice.

A caption is turned round by exchanging left and right, above and below. It then is false for its
picture, while all else that it says is true. Without it, nothing requires that "a cat to the left
of a car" differs from "a cat to the right of a car", since two pictures of a batch hardly ever have
the same things.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .data import CaptionPairs


class Fragments:
    """Fragments of captions, and the pictures that are negatives of a fragment.

    ``ids`` are the token ids of the captions, the first and the last of each special; ``stops`` are
    ids of words without content; a caption is cut with probability ``share``.
    """

    def __init__(
        self,
        ids: Sequence[Sequence[int]],
        pairs: CaptionPairs,
        stops: Sequence[int],
        share: float,
    ) -> None:
        self._ids = ids
        self._stops = frozenset(stops)
        self._share = share
        self._words_of = {
            int(picture): frozenset(id for number in numbers for id in ids[number])
            for picture, numbers in zip(pairs.pictures, pairs.captions, strict=True)
        }

    def cut(
        self,
        numbers: Sequence[int],
        rng: np.random.Generator,
    ) -> list[list[int]]:
        """Return the ids of the captions ``numbers``, or of fragments of them."""
        return [self._cut(list(self._ids[number]), rng) for number in numbers]

    def apart(
        self,
        pictures: NDArray[np.int64],
        rows: Sequence[Sequence[int]],
    ) -> Tensor:
        """Return whether (pictures, rows) a picture's captions lack a word of the row, so that it
        is a negative."""
        contents = [frozenset(row[1:-1]) - self._stops for row in rows]
        vocabularies = [self._words_of[int(picture)] for picture in pictures]
        lacking = [[not words <= known for words in contents] for known in vocabularies]
        return torch.tensor(lacking)

    def _cut(
        self,
        row: list[int],
        rng: np.random.Generator,
    ) -> list[int]:
        """Return a run of at least one word that is no stop word, if there is such a word."""
        places = [i for i in range(1, len(row) - 1) if row[i] not in self._stops]
        if not places or rng.random() >= self._share:
            return row
        place = rng.choice(places)
        start = rng.integers(1, place + 1)
        stop = rng.integers(place + 1, len(row))
        return [row[0], *row[start:stop], row[-1]]


def exchange_opposites(
    rows: Sequence[Sequence[int]],
    opposites: Mapping[int, int],
    stops: Collection[int],
) -> tuple[list[int], list[list[int]]]:
    """Exchange words of ``opposites`` in ``rows`` that say where something is; return places and
    new rows.

    A row needs a word with content beside them: "to the left" alone is as true as "to the right".
    """
    empty = frozenset(stops) | opposites.keys()
    places = []
    turned = []
    for place, row in enumerate(rows):
        if not opposites.keys().isdisjoint(row) and not empty.issuperset(row[1:-1]):
            places.append(place)
            turned.append([opposites.get(id, id) for id in row])
    return places, turned
