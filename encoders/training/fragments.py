"""Create training texts that replace captions: caption fragments, and captions with opposite
positions.

Queries are shorter than captions. A fragment is a run of words from a caption. The fragment
describes the caption's picture, and possibly other pictures. A picture whose captions contain all
words of a fragment is not a negative for the fragment. The model must therefore distinguish "red
rocket" from pictures of blue rockets and of red boats. Whole captions rarely require this
distinction, because their other words are sufficient.

A caption is reversed by exchanging left and right, and above and below. The reversed caption is
wrong for its picture, although all other words are right. Without reversed captions, training would
not require that "a cat to the left of a car" differs from "a cat to the right of a car", because
two pictures in a batch rarely show the same things.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from boc.vectors import Ints

from .data import CaptionPairs


class Fragments:
    """Source of caption fragments, and of the negative pictures for a fragment.

    ``ids`` contains the captions' token ids, with a special id first and last; ``stops`` contains
    the ids of function words; ``share`` is the probability that a caption is cut.
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
        """Return the ids of the captions ``numbers``, some of them cut to fragments."""
        return [self._cut(list(self._ids[number]), rng) for number in numbers]

    def apart(
        self,
        pictures: Ints,
        rows: Sequence[Sequence[int]],
    ) -> Tensor:
        """Return a mask (pictures, rows) of negatives, which are pictures whose captions do not
        contain all content words of the row."""
        contents = [frozenset(row[1:-1]) - self._stops for row in rows]
        vocabularies = [self._words_of[int(picture)] for picture in pictures]
        lacking = [[not words <= known for words in contents] for known in vocabularies]
        return torch.tensor(lacking)

    def _cut(
        self,
        row: list[int],
        rng: np.random.Generator,
    ) -> list[int]:
        """Return the row, or a run of its words with at least one content word."""
        places = [i for i in range(1, len(row) - 1) if row[i] not in self._stops]
        if not places or rng.random() >= self._share:
            return row
        place = rng.choice(places)
        start = rng.integers(1, place + 1)
        return [row[0], *row[start : rng.integers(place + 1, len(row))], row[-1]]


def exchange_opposites(
    rows: Sequence[Sequence[int]],
    opposites: Mapping[int, int],
    stops: Collection[int],
) -> tuple[list[int], list[list[int]]]:
    """Replace position words in ``rows`` by their ``opposites``. Return the places and the new
    rows.

    A row needs another content word, because "to the left" on its own is as true as "to the right".
    """
    empty = frozenset(stops) | opposites.keys()
    places = []
    turned = []
    for place, row in enumerate(rows):
        if not opposites.keys().isdisjoint(row) and not empty.issuperset(row[1:-1]):
            places.append(place)
            turned.append([opposites.get(id, id) for id in row])
    return places, turned
