"""Wrong captions, with one word exchanged or two words swapped: hard negatives that random captions never are.

Two words are exchangeable if they have the same neighbours, as colours do. Synonyms do too; but
they also meet in captions of the same picture, which "red" and "blue" do less than by chance. All of this is counted in
the captions, without a list of words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

FREQUENT = 20  # minimum occurrences of a word
ALIKE = 0.55  # overlap of the neighbours of two words (Bhattacharyya, On a measure of divergence, 1943)


class Exchanges:
    """Makes wrong captions. ``captions[i]`` (rows of ids, the first and last of each special) are those of picture
    i."""

    def __init__(self, captions: Sequence[Sequence[Sequence[int]]]) -> None:
        counts = Counter(id for rows in captions for row in rows for id in row[1:-1])
        self._words = sorted(id for id, count in counts.items() if count >= FREQUENT)
        self._place = {id: place for place, id in enumerate(self._words)}
        shared = _overlaps([row for rows in captions for row in rows], self._place)
        np.fill_diagonal(shared, 0)
        self._alike = shared >= ALIKE
        self._others = self._alike & (_lifts(captions, self._place) < 1)

    def wrong(self, row: Sequence[int], own: frozenset[int], rng: np.random.Generator) -> list[int]:
        """``row`` with two words swapped; or, if no two can be, or at random, with one word exchanged for one that is
        not in ``own``; or unchanged if there is none."""
        pairs = [(i, j) for i in range(len(row)) for j in range(i) if self._can(row[i], row[j])]
        if pairs and rng.random() < 0.5:
            i, j = pairs[rng.integers(len(pairs))]
            changed = list(row)
            changed[i], changed[j] = row[j], row[i]
            return changed
        for i in rng.permutation(len(row)):
            others = [id for id in self._exchangeable(row[i]) if id not in own]
            if others:
                return [*row[:i], others[rng.integers(len(others))], *row[i + 1 :]]
        return list(row)

    def _can(self, one: int, other: int) -> bool:
        a, b = self._place.get(one), self._place.get(other)
        return a is not None and b is not None and bool(self._alike[a, b])

    def _exchangeable(self, id: int) -> list[int]:
        place = self._place.get(id)
        return [] if place is None else [self._words[k] for k in np.flatnonzero(self._others[place])]


def _overlaps(rows: Iterable[Sequence[int]], places: dict[int, int]) -> NDArray[np.float64]:
    """Overlap, in [0, 1], of the distributions of the neighbours of each pair of words, before and after."""
    seen = Counter(
        (places[word], side, neighbour)
        for row in rows
        for before, word, behind in zip(row, row[1:], row[2:], strict=False)
        if word in places
        for side, neighbour in ((0, before), (1, behind))
    )
    columns = {key: number for number, key in enumerate(sorted({key[1:] for key in seen}))}
    at = [key[0] for key in seen], [columns[key[1:]] for key in seen]
    table = sparse.coo_array((list(seen.values()), at), (len(places), len(columns)), dtype=np.float64).tocsr()
    shares = (sparse.diags_array(1 / np.maximum(table.sum(axis=1), 1)) @ table).sqrt()
    found: NDArray[np.float64] = (shares @ shares.T).toarray()
    return found


def _lifts(captions: Sequence[Iterable[Sequence[int]]], places: dict[int, int]) -> NDArray[np.float64]:
    """How much more often than by chance two words occur in captions of one picture."""
    cells = [
        (i, places[id]) for i, rows in enumerate(captions) for id in {id for row in rows for id in row} & set(places)
    ]
    rows, columns = zip(*cells, strict=True) if cells else ((), ())
    has = sparse.coo_array((np.ones(len(cells)), (rows, columns)), (len(captions), len(places))).tocsr()
    alone = has.sum(axis=0)
    found: NDArray[np.float64] = (has.T @ has).toarray() * len(captions) / np.outer(alone, alone)
    return found
