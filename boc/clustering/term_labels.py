"""Labels of terms: the words and pictures that are typical of a term, or of a centroid of a codebook.

A word is typical if it is more frequent around a term than in general, by the z-score of their log-odds ratio with
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

from boc.clustering.centring import centred
from boc.clustering.kmeans import nearest
from boc.clustering.wordpieces import continues, join_pieces, stop_words
from boc.errors import ManifestError
from boc.inputs.features import FeatureFile
from boc.plugins import Index
from boc.types import MODALITIES, Batch, Item, Modality, Ragged, SearchRequest
from boc.vectors import unit_rows

WORDS = 5  # words per label
EXAMPLES = 3
CAPTIONS = 50  # captions searched per term
BACKGROUND = 10_000  # captions of the background sample
PRIOR = 10.0  # weight of the prior, in captions of the background
SIGNIFICANT = 1.64  # smallest z-score of a word in a label (5 %, one-sided)
BATCH = 1024  # items read at a time

_WORD = re.compile(r"(?<![\w\[])[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")


class Box(NamedTuple):
    """A region of a picture, as fractions of its width and height."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True)
class Example:
    """A picture that is typical of a term; with ``box``, this region of it."""

    id: str
    content: str
    box: Box | None = None


@dataclass(frozen=True)
class Label:
    """Words and pictures that are typical of a term, most typical first. Either may be empty."""

    words: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()


def content_words(sentence: str) -> list[str]:
    """The words of a sentence in lower case, in order, without numbers, single letters, stop-words and special tokens
    such as "[UNK]".

    >>> content_words("Two dogs are on the dog's sled .")
    ['dogs', "dog's", 'sled']
    """
    stops = stop_words()
    words = (word.lower() for word in _WORD.findall(sentence))
    return [word for word in words if len(word) > 1 and word not in stops]


def whole_words(pieces: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Join word-pieces to words; also return for each piece the number of its word.

    >>> words, of = whole_words(["snow", "##board", "##ing", "dogs"])
    >>> words, of.tolist()
    (['snowboarding', 'dogs'], [0, 0, 0, 1])
    """
    begins = [i == 0 or not continues(piece) for i, piece in enumerate(pieces)]
    joined = join_pieces(pieces)
    return [word for word, first in zip(joined, begins, strict=True) if first], np.cumsum(begins, dtype=np.int64) - 1


def distinctive(counts: Mapping[str, int], size: float, general: Mapping[str, int], total: float) -> list[str]:
    """The over-represented words of ``counts``, most significant first, ties alphabetical.

    ``counts`` counts words among ``size`` captions (or occurrences), ``general`` among ``total`` of the background.
    """
    if not size or not total:
        return []
    scores = {}
    for word, count in counts.items():
        share = (general.get(word, 0) + 0.5) / (total + 1)
        prior = PRIOR * share
        delta = _log_odds(count + prior, size + PRIOR) - _log_odds(general.get(word, 0) + prior, total + PRIOR)
        scores[word] = delta / math.sqrt(1 / (count + prior) + 1 / (general.get(word, 0) + prior))
    typical = (word for word, score in scores.items() if score > SIGNIFICANT)
    return sorted(typical, key=lambda word: (-scores[word], word))


def _log_odds(count: float, total: float) -> float:
    return math.log(count / max(total - count, 0.5))


class IndexLabels:
    """Labels of the terms of any code, from the index itself: each term is searched for the items with most of it.

    The background is a sample of up to 10,000 captions, spread evenly over the index; without captions a label has
    pictures only. Items are read once, in full, for the first label.
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
        """The number of captions of the sample with each word, and the size of the sample."""
        if self._background is None:
            captions = (item.content for item in self._index.items() if item.modality == "text")
            step = math.ceil(max(1, self._index.manifest.items["text"]) / BACKGROUND)
            sample = [set(content_words(caption)) for caption in islice(captions, 0, None, step)]
            self._background = Counter(word for caption in sample for word in caption), len(sample)
        return self._background

    def _ask(self, term: int, k: int, modality: Modality) -> list[Item]:
        query = sparse.csr_array(([np.int32(1)], ([0], [term])), shape=(1, self._n_terms), dtype=np.int32)
        return [hit.item for hit in self._index.search(SearchRequest(query, k, modality))[0]]


def codebook_labels(
    centroids: NDArray[np.float32],
    files: Iterable[FeatureFile],
    *,
    spherical: bool = False,
    names: Sequence[str] | None = None,
    means: NDArray[np.float32] | None = None,
    axes: NDArray[np.float32] | None = None,
) -> list[Label]:
    """One label per row of ``centroids`` (k, d): words from the concepts of sentences, and its nearest regions, at most
    one per picture.

    Concepts belong to the nearest centroid, by cosine if ``spherical``, after ``centred`` by ``means`` (2, d) and
    ``axes`` (d, d). A word-piece counts for its whole word. Words
    are ranked by their frequency against that in all centroids, after the ``names`` (k,) that centroids already have.
    ``files`` hold embeddings; files without concepts and sentences without words add nothing. Files are read in
    batches; memory holds one number per pair of a centroid and a word.
    """
    words, regions = _WordCounts(len(centroids)), _NearestRegions(len(centroids))

    def assign(concepts: NDArray[np.float32], modality: Modality) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        concepts = centred(concepts, modality, means, axes)
        columns, squared = nearest(unit_rows(concepts) if spherical else concepts, centroids, 1)
        return columns[:, 0], squared[:, 0]

    for file in files:
        for modality in MODALITIES:
            for batch in file.batches(modality, BATCH):
                sets, pieces = batch.embeddings.concepts, batch.embeddings.words
                if sets is None or not len(sets.values):
                    continue
                if modality == "image":
                    regions.add(batch, sets, *assign(sets.values, modality))
                elif pieces is not None:
                    words.add(pieces, assign(sets.values, modality)[0])
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
    """The frequency of each word in each centroid."""

    def __init__(self, n_codewords: int) -> None:
        self._n = n_codewords
        self._number: dict[str, int] = {}
        self._counts: Counter[tuple[int, int]] = Counter()

    def add(self, sentences: Sequence[Sequence[str]], codewords: NDArray[np.int64]) -> None:
        """Count the words of sentences (lists of pieces); ``codewords`` are the centroids of all pieces, in order."""
        place = 0
        for pieces in sentences:
            words, of = whole_words(pieces)
            kept = {i: self._number.setdefault(w, len(self._number)) for i, w in enumerate(words) if content_words(w)}
            pairs = zip(codewords[place : place + len(pieces)].tolist(), of.tolist(), strict=True)
            self._counts.update((codeword, kept[i]) for codeword, i in sorted(set(pairs)) if i in kept)
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
    """The regions nearest to each centroid, at most one per picture; ties to the first one seen."""

    def __init__(self, n_codewords: int) -> None:
        self._best: list[list[tuple[float, Example]]] = [[] for _ in range(n_codewords)]

    def add(self, batch: Batch, sets: Ragged, codewords: NDArray[np.int64], distances: NDArray[np.float32]) -> None:
        """Add all regions, ``sets``, of a batch of pictures."""
        boxes = batch.embeddings.boxes
        owner = np.repeat(np.arange(len(sets)), np.diff(sets.offsets))
        order = np.lexsort((distances, codewords))
        _, first = np.unique(np.stack([codewords, owner])[:, order], axis=1, return_index=True)
        order = order[np.sort(first)]
        rank = np.arange(len(order)) - np.searchsorted(codewords[order], codewords[order])
        for i in order[rank < EXAMPLES].tolist():
            item = batch.items[owner[i]]
            box = None if boxes is None else Box(*(round(float(x), 4) for x in boxes.values[i]))
            best = self._best[codewords[i]]
            best.append((float(distances[i]), Example(item.id, item.content, box)))
            best.sort(key=lambda entry: entry[0])
            del best[EXAMPLES:]

    def examples(self) -> Iterator[tuple[Example, ...]]:
        return (tuple(example for _, example in best) for best in self._best)


def pack_labels(labels: Sequence[Label]) -> NDArray[np.uint8]:
    """Labels as the bytes of a JSON text, uint8 (n,), which can be stored without pickle."""
    rows = [{"words": label.words, "examples": [[e.id, e.content, e.box] for e in label.examples]} for label in labels]
    return np.frombuffer(json.dumps(rows, ensure_ascii=False).encode("utf-8"), dtype=np.uint8)


def unpack_labels(packed: NDArray[np.uint8]) -> list[Label]:
    """The inverse of ``pack_labels``; no labels for an empty array. ManifestError for other bytes."""
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
        raise ManifestError(f"the stored labels of the codewords cannot be read ({error}); make them again") from error
