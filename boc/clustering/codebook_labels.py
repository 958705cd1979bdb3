"""Label the centroids of codebooks by their nearest words and regions."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from boc.clustering.codebook import Codebook
from boc.inputs.features import FeatureFile
from boc.labels import EXAMPLES, WORDS, Box, Example, Label, content_words, distinctive, whole_words
from boc.types import MODALITIES, Batch, Ragged
from boc.vectors import Floats, Ints

BATCH = 1024  # items read at a time


def codebook_labels(
    book: Codebook,
    files: Iterable[FeatureFile],
    batch: int = BATCH,
) -> list[Label]:
    """Return a label for each centroid: typical words of sentences, and the nearest regions, at
    most one per picture.

    Each concept is assigned to its nearest centroid by ``Codebook.assign``. A word-piece counts as
    its whole word. Words are ranked by their frequency at the centroid relative to their frequency
    at all centroids; if a centroid represents a word, this word comes first. ``files`` contain
    embeddings; files without concepts and sentences without words are ignored. Items are read in
    batches of ``batch``. Memory use is one number per pair of centroid and word.
    """
    words = _WordCounts(len(book))
    regions = _NearestRegions(len(book))
    for file in files:
        for modality in MODALITIES:
            for rows in file.batches(modality, batch):
                sets = rows.embeddings.concepts
                pieces = rows.embeddings.words
                if sets is None or not len(sets.values):
                    continue
                columns, squared = book.assign(sets.values, modality)
                if modality == "image":
                    regions.add(
                        rows,
                        sets,
                        columns,
                        squared,
                    )
                elif pieces is not None:
                    words.add(pieces, columns)
    names = [[word] for word in book.words or ()] or [[]] * len(book)
    return [
        Label(tuple(dict.fromkeys([*name, *typical]))[:WORDS], examples)
        for name, typical, examples in zip(
            names,
            words.labels(),
            regions.examples(),
            strict=True,
        )
    ]


class _WordCounts:
    """Count how often each word occurs at each centroid."""

    def __init__(self, n_codewords: int) -> None:
        self._n = n_codewords
        self._number: dict[str, int] = {}
        self._counts: Counter[tuple[int, int]] = Counter()

    def add(self, sentences: Sequence[Sequence[str]], codewords: Ints) -> None:
        """Count the words in sentences, which are lists of word-pieces. ``codewords`` contains the
        centroid of each word-piece."""
        place = 0
        for pieces in sentences:
            words, of = whole_words(pieces)
            numbers = {
                i: self._number.setdefault(w, len(self._number))
                for i, w in enumerate(words)
                if content_words(w)
            }
            own = codewords[place : place + len(pieces)]
            pairs = set(zip(own.tolist(), of.tolist(), strict=True))
            self._counts.update((k, numbers[i]) for k, i in sorted(pairs) if i in numbers)
            place += len(pieces)

    def labels(self) -> Iterator[tuple[str, ...]]:
        names = list(self._number)
        inside: list[dict[str, int]] = [{} for _ in range(self._n)]
        general = Counter[str]()
        for (codeword, number), frequency in self._counts.items():
            inside[codeword][names[number]] = frequency
            general[names[number]] += frequency
        total = general.total()
        for counts in inside:
            yield tuple(
                distinctive(
                    counts,
                    sum(counts.values()),
                    general,
                    total,
                )[:WORDS],
            )


class _NearestRegions:
    """Collect the regions nearest to each centroid, at most one per picture. Ties are resolved in
    favour of the region read first."""

    def __init__(self, n_codewords: int) -> None:
        self._best: list[list[tuple[float, Example]]] = [[] for _ in range(n_codewords)]

    def add(
        self,
        batch: Batch,
        sets: Ragged,
        codewords: Ints,
        distances: Floats,
    ) -> None:
        boxes = batch.embeddings.boxes
        owner = np.repeat(np.arange(len(sets)), np.diff(sets.offsets))
        order = np.lexsort((distances, codewords))
        _, first = np.unique(np.stack([codewords, owner])[:, order], axis=1, return_index=True)
        order = order[np.sort(first)]
        rank = np.arange(len(order)) - np.searchsorted(codewords[order], codewords[order])
        for i in order[rank < EXAMPLES].tolist():
            item = batch.items[owner[i]]
            box = None
            if boxes is not None:
                box = Box(*(round(float(x), 4) for x in boxes.values[i]))
            best = self._best[codewords[i]]
            best.append((float(distances[i]), Example(item.id, item.content, box)))
            best.sort(key=lambda entry: entry[0])
            del best[EXAMPLES:]

    def examples(self) -> Iterator[tuple[Example, ...]]:
        return (tuple(example for _, example in best) for best in self._best)
