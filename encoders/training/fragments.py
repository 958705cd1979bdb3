"""Texts that training reads instead of captions: fragments of captions, and captions turned round.

Queries are shorter than captions. A fragment is a run of words. It describes the picture of its
caption, and perhaps other pictures: a picture whose captions have all words of a fragment is not a
negative of the fragment. So the model must tell "red rocket" from pictures of blue rockets and of
red boats. Whole captions hardly require this, since their other words suffice.

A caption is turned round by exchanging left and right, above and below. The result is false for its
picture, but all other words are true. Without such captions, nothing requires that "a cat to the
left of a car" differs from "a cat to the right of a car", since two pictures in a batch hardly ever
have the same things.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from boc.vectors import Ints

from .data import CaptionPairs


class Fragments:
    """A source of fragments of captions, and of the pictures that are negatives of a fragment.

    ``ids`` are the token ids of the captions, with a special id first and last; ``stops`` are the
    ids of words without content; ``share`` is the probability that a caption is cut.
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
        """Return the ids of the captions ``numbers``, or of their fragments."""
        return [self._cut(list(self._ids[number]), rng) for number in numbers]

    def apart(
        self,
        pictures: Ints,
        rows: Sequence[Sequence[int]],
    ) -> Tensor:
        """Return a mask (pictures, rows) of negatives: pictures whose captions lack a word of the
        row."""
        contents = [frozenset(row[1:-1]) - self._stops for row in rows]
        vocabularies = [self._words_of[int(picture)] for picture in pictures]
        lacking = [[not words <= known for words in contents] for known in vocabularies]
        return torch.tensor(lacking)

    def _cut(
        self,
        row: list[int],
        rng: np.random.Generator,
    ) -> list[int]:
        """Return a run of words with at least one word that is not a stop-word, if the row has such
        a word."""
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
    """Exchange the words for places in ``rows`` with their ``opposites``. Return the places and the
    new rows.

    A row needs another word with content: "to the left" alone is as true as "to the right".
    """
    empty = frozenset(stops) | opposites.keys()
    places = []
    turned = []
    for place, row in enumerate(rows):
        if not opposites.keys().isdisjoint(row) and not empty.issuperset(row[1:-1]):
            places.append(place)
            turned.append([opposites.get(id, id) for id in row])
    return places, turned
