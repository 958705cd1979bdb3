"""What terms stand for: the words and pictures that are typical of a term, or of a codeword of a codebook.

Typical are the words that are more frequent around a term than in general, by the z-score of their log-odds ratio with
an informative Dirichlet prior (Monroe, Colaresi & Quinn, Fightin' Words, Political Analysis 2008, eqs. 16 and 22).
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.preprocessing import normalize

from boc.clustering.kmeans import nearest
from boc.clustering.wordpieces import continues, join_pieces, stop_words
from boc.errors import ManifestError
from boc.inputs.features import FeatureFile
from boc.plugins import Index
from boc.types import MODALITIES, Item, Modality, Rows

WORDS = 5  # of a label
EXAMPLES = 3
CAPTIONS = 50  # asked of an index for a term
BACKGROUND = 10_000  # captions that tell what is frequent in general
PRIOR = 10.0  # captions' worth of the background that each side has seen before
SIGNIFICANT = 1.64  # z-score below which a word is no label (5 %, one-sided)
BATCH = 1024  # items read at a time

_WORD = re.compile(r"(?<![\w\[])[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")


class Box(NamedTuple):
    """A part of a picture, in [0, 1] of its width and height."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True)
class Example:
    """A picture that shows what a term stands for; with ``box``, that part of it."""

    id: str
    content: str
    box: Box | None = None


@dataclass(frozen=True)
class Label:
    """What a term stands for, most typical first. Either part may be empty: nothing was typical."""

    words: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()


def content_words(sentence: str) -> list[str]:
    """The words of a sentence in lower case, in order, without numbers, single letters, stop-words and marks such as
    "[UNK]" of a tokenizer.

    >>> content_words("Two dogs are on the dog's sled .")
    ['dogs', "dog's", 'sled']
    """
    stops = stop_words()
    words = (word.lower() for word in _WORD.findall(sentence))
    return [word for word in words if len(word) > 1 and word not in stops]


def whole_words(pieces: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """The words that word-pieces make up, and for each piece the number of its word.

    >>> words, of = whole_words(["snow", "##board", "##ing", "dogs"])
    >>> words, of.tolist()
    (['snowboarding', 'dogs'], [0, 0, 0, 1])
    """
    begins = [i == 0 or not continues(piece) for i, piece in enumerate(pieces)]
    joined = join_pieces(pieces)
    return [word for word, first in zip(joined, begins, strict=True) if first], np.cumsum(begins, dtype=np.int64) - 1


def distinctive(found: Mapping[str, int], size: float, general: Mapping[str, int], total: float) -> list[str]:
    """The words of ``found`` that are over-represented, most significantly first, ties by the alphabet.

    ``found`` counts words among ``size`` captions (or occurrences), ``general`` among ``total`` of the background.
    """
    if not size or not total:
        return []
    scores = {}
    for word, count in found.items():
        share = (general.get(word, 0) + 0.5) / (total + 1)
        prior = PRIOR * share
        delta = _log_odds(count + prior, size + PRIOR) - _log_odds(general.get(word, 0) + prior, total + PRIOR)
        scores[word] = delta / math.sqrt(1 / (count + prior) + 1 / (general.get(word, 0) + prior))
    typical = (word for word, score in scores.items() if score > SIGNIFICANT)
    return sorted(typical, key=lambda word: (-scores[word], word))


def _log_odds(count: float, total: float) -> float:
    return math.log(count / max(total - count, 0.5))


class IndexLabels:
    """Labels of the terms of any code, from the index itself: a term asks for the items that have most of it.

    Words are told from a background of up to 10,000 captions, evenly spread over the index; without captions a label
    has pictures only. Items are read once, in full, when the first label is asked.
    """

    def __init__(self, index: Index, n_terms: int) -> None:
        self._index = index
        self._n_terms = n_terms
        self._background: tuple[Counter[str], int] | None = None

    def __getitem__(self, term: int) -> Label:
        words = [set(content_words(item.content)) for item in self._ask(term, CAPTIONS, "text")]
        counts = Counter(word for caption in words for word in sorted(caption))
        typical = distinctive(counts, len(words), *self.background)[:WORDS] if words else []
        pictures = self._ask(term, EXAMPLES, "image")
        return Label(tuple(typical), tuple(Example(item.id, item.content) for item in pictures))

    @property
    def background(self) -> tuple[Counter[str], int]:
        """How many captions of the sample hold each word, and how many captions it has."""
        if self._background is None:
            captions = (item.content for item in self._index.items() if item.modality == "text")
            step = math.ceil(max(1, self._index.manifest.items["text"]) / BACKGROUND)
            sample = [set(content_words(caption)) for caption in islice(captions, 0, None, step)]
            self._background = Counter(word for caption in sample for word in caption), len(sample)
        return self._background

    def _ask(self, term: int, k: int, modality: Modality) -> list[Item]:
        query = sparse.csr_array(([np.int32(1)], ([0], [term])), shape=(1, self._n_terms), dtype=np.int32)
        return [hit.item for hit in self._index.search(query, k, modality)[0]]


def codebook_labels(
    centroids: NDArray[np.float32],
    files: Iterable[FeatureFile],
    *,
    spherical: bool = False,
    names: Sequence[str] | None = None,
) -> list[Label]:
    """One label for each of the ``centroids`` (k, d): its words, of the concepts of sentences, and its nearest
    regions, one a picture.

    Concepts belong to the nearest centroid, by direction if ``spherical``. A word-piece counts for the whole word;
    words are ranked against their number in all codewords, behind the ``names`` (k,) that centroids have already.
    ``files`` hold embeddings; those without concepts add nothing, nor do sentences without words. They are read in
    batches; what stays in memory is one number for each pair of a codeword and a different word in it.
    """
    words, regions = _WordCounts(len(centroids)), _NearestRegions(len(centroids))

    def assign(concepts: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        columns, squared = nearest(normalize(concepts) if spherical else concepts, centroids, 1)
        return columns[:, 0], squared[:, 0]

    for file in files:
        for modality in MODALITIES:
            for rows in file.batches(modality, BATCH):
                sets = rows.ragged.get("concepts")
                if sets is None or not len(sets.values):
                    continue
                if modality == "image":
                    regions.add(rows, *assign(sets.values))
                elif rows.words is not None:
                    words.add(rows.words, assign(sets.values)[0])
    return [
        Label(tuple(dict.fromkeys([*own, *typical]))[:WORDS], examples)
        for own, typical, examples in zip(
            ([name] for name in names) if names is not None else repeat([], len(centroids)),
            words.labels(),
            regions.examples(),
            strict=True,
        )
    ]


class _WordCounts:
    """How often each word is in each codeword."""

    def __init__(self, n_codewords: int) -> None:
        self._n = n_codewords
        self._number: dict[str, int] = {}
        self._counts: Counter[tuple[int, int]] = Counter()

    def add(self, sentences: Sequence[Sequence[str]], codewords: NDArray[np.int64]) -> None:
        """Count the words of sentences (lists of pieces); ``codewords`` are those of all their pieces, in order."""
        place = 0
        for pieces in sentences:
            words, of = whole_words(pieces)
            kept = {i: self._number.setdefault(w, len(self._number)) for i, w in enumerate(words) if content_words(w)}
            found = zip(codewords[place : place + len(pieces)].tolist(), of.tolist(), strict=True)
            self._counts.update((codeword, kept[i]) for codeword, i in sorted(set(found)) if i in kept)
            place += len(pieces)

    def labels(self) -> Iterator[tuple[str, ...]]:
        names = list(self._number)
        inside: list[dict[str, int]] = [{} for _ in range(self._n)]
        general = Counter[str]()
        for (codeword, number), count in self._counts.items():
            inside[codeword][names[number]] = count
            general[names[number]] += count
        total = general.total()
        for found in inside:
            yield tuple(distinctive(found, sum(found.values()), general, total)[:WORDS])


class _NearestRegions:
    """The regions that are closest to each codeword, at most one of a picture; ties to the one seen first."""

    def __init__(self, n_codewords: int) -> None:
        self._best: list[list[tuple[float, Example]]] = [[] for _ in range(n_codewords)]

    def add(self, rows: Rows, codewords: NDArray[np.int64], distances: NDArray[np.float32]) -> None:
        """Take in all regions of a batch of pictures."""
        sets, boxes = rows.ragged["concepts"], rows.ragged.get("boxes")
        owner = np.repeat(np.arange(len(sets)), np.diff(sets.offsets))
        order = np.lexsort((distances, codewords))
        _, first = np.unique(np.stack([codewords, owner])[:, order], axis=1, return_index=True)
        order = order[np.sort(first)]
        rank = np.arange(len(order)) - np.searchsorted(codewords[order], codewords[order])
        for i in order[rank < EXAMPLES].tolist():
            item = rows.items[owner[i]]
            box = None if boxes is None else Box(*(round(float(x), 4) for x in boxes.values[i]))
            best = self._best[codewords[i]]
            best.append((float(distances[i]), Example(item.id, item.content, box)))
            best.sort(key=lambda entry: entry[0])
            del best[EXAMPLES:]

    def examples(self) -> Iterator[tuple[Example, ...]]:
        return (tuple(example for _, example in best) for best in self._best)


def pack_labels(labels: Sequence[Label]) -> NDArray[np.uint8]:
    """Labels as the bytes of a JSON text, uint8 (n,): an array that can be stored without pickle."""
    rows = [{"words": label.words, "examples": [[e.id, e.content, e.box] for e in label.examples]} for label in labels]
    return np.frombuffer(json.dumps(rows, ensure_ascii=False).encode("utf-8"), dtype=np.uint8)


def unpack_labels(packed: NDArray[np.uint8]) -> list[Label]:
    """The inverse of ``pack_labels``; no labels for an empty array. ManifestError if the bytes are something else."""
    if not packed.size:
        return []
    try:
        rows = json.loads(packed.tobytes().decode("utf-8"))
        return [
            Label(
                tuple(row["words"]),
                tuple(Example(key, content, box and Box(*box)) for key, content, box in row["examples"]),
            )
            for row in rows
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"the stored labels of the codewords cannot be read ({error}); make them anew") from error
