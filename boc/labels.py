"""Label terms with typical words and pictures, and extract words from sentences.

A label lists the words and pictures that are typical of a term, or of a codebook centroid. A word
is typical if it is more frequent near the term than in general, measured by the z-score of the
log-odds ratio with an informative Dirichlet prior (Monroe, Colaresi & Quinn, Fightin' Words,
Political Analysis 2008, eqs. 16 and 22).
"""

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from itertools import islice
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from scipy import sparse

from boc.errors import ManifestError
from boc.foreign import parse_json, typed
from boc.plugins import Engine
from boc.types import Item, Modality, SearchRequest
from boc.vectors import Bytes, Ints

WORDS = 5  # words per label
EXAMPLES = 3
CAPTIONS = 50  # captions searched per term
BACKGROUND = 10_000  # captions in the background sample
PRIOR = 10.0  # weight of the prior, in background captions
SIGNIFICANT = 1.64  # minimum z-score of a word in a label (5 %, one-sided)

_WORD = re.compile(r"(?<![\w\[])[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")


class Box(NamedTuple):
    """Region of a picture, as fractions of the picture's width and height."""

    x1: float
    y1: float
    x2: float
    y2: float


class Example(NamedTuple):
    """Picture, or region ``box`` of a picture, that is typical of a term."""

    id: str
    content: str
    box: Box | None = None


@dataclass(frozen=True)
class Label:
    """Words and pictures that are typical of a term, most typical first. Either list may be
    empty."""

    words: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()


@cache
def stop_words() -> frozenset[str]:
    """Return scikit-learn's list of 318 English stop words, in lower case.

    The BoC paper (section IV) does not name a list. This list includes words for things that
    pictures can show, such as "fire". The list is stored in a file because importing scikit-learn
    takes seconds.
    """
    return frozenset((files("boc") / "stop_words.txt").read_text(encoding="utf-8").split())


def content_words(sentence: str) -> list[str]:
    """Return the words of a sentence in lower case, without numbers, single letters, stop words and
    special tokens.

    >>> content_words("Two dogs are on the dog's sled .")
    ['dogs', "dog's", 'sled']
    """
    stops = stop_words()
    words = (word.lower() for word in _WORD.findall(sentence))
    return [word for word in words if len(word) > 1 and word not in stops]


def whole_words(pieces: Sequence[str]) -> tuple[list[str], Ints]:
    """Join word pieces into lower-case words. Return the words, and for each piece the index of its
    word. A piece that begins with "##" continues a word.

    >>> words, of = whole_words(["a", "snow", "##board", "##ing", "dogs"])
    >>> words, of.tolist()
    (['a', 'snowboarding', 'dogs'], [0, 1, 1, 1, 2])
    """
    words: list[str] = []
    of = []
    for piece in pieces:
        if words and piece.startswith("##") and len(piece) > 2:
            words[-1] += piece[2:].lower()
        else:
            words.append(piece.lower())
        of.append(len(words) - 1)
    return words, np.array(of, np.int64)


def ranked(values: Mapping[str, float]) -> list[str]:
    """Return the words sorted by descending value, with ties in alphabetical order."""
    return sorted(values, key=lambda word: (-values[word], word))


def distinctive(
    counts: Mapping[str, int],
    size: float,
    general: Mapping[str, int],
    total: float,
) -> list[str]:
    """Return the words that are over-represented in ``counts``, most significant first, with ties
    in alphabetical order.

    ``counts`` contains word counts in ``size`` captions (or occurrences), and ``general`` contains
    word counts in the ``total`` background captions.
    """
    if not size or not total:
        return []
    scores = {}
    for word, count in counts.items():
        share = (general.get(word, 0) + 0.5) / (total + 1)
        prior = PRIOR * share
        delta = _log_odds(count + prior, size + PRIOR) - _log_odds(
            general.get(word, 0) + prior,
            total + PRIOR,
        )
        scores[word] = delta / math.sqrt(1 / (count + prior) + 1 / (general.get(word, 0) + prior))
    return ranked({word: score for word, score in scores.items() if score > SIGNIFICANT})


def typical_words(
    captions: Sequence[Collection[str]],
    general: Mapping[str, int],
    total: float,
) -> tuple[str, ...]:
    """Return the words that label ``captions``, compared with the ``total`` background captions.
    Each caption is given as its distinct words."""
    counts = Counter(word for caption in captions for word in sorted(caption))
    return tuple(distinctive(counts, len(captions), general, total)[:WORDS])


def _log_odds(count: float, total: float) -> float:
    return math.log(count / max(total - count, 0.5))


@dataclass
class IndexLabels:
    """Labels for the terms of an index, whichever code is used. To label a term, a search finds the
    items in which the term is most frequent.

    The background is a sample of at most ``sample`` captions, spread evenly over the index. If the
    index has no captions, labels contain only pictures. Creating the first label reads all items
    once.
    """

    index: Engine
    n_terms: int
    sample: int = BACKGROUND

    def __getitem__(self, term: int) -> Label:
        words = [set(content_words(item.content)) for item in self._ask(term, CAPTIONS, "text")]
        typical = typical_words(words, *self.background) if words else ()
        pictures = self._ask(term, EXAMPLES, "image")
        return Label(typical, tuple(Example(item.id, item.content) for item in pictures))

    @cached_property
    def background(self) -> tuple[Counter[str], int]:
        """Return, for each word, the number of sampled captions that contain it, and the sample
        size."""
        captions = (item.content for item in self.index.items() if item.modality == "text")
        step = math.ceil(max(1, self.index.manifest.items["text"]) / self.sample)
        sample = [set(content_words(caption)) for caption in islice(captions, 0, None, step)]
        return Counter(word for caption in sample for word in caption), len(sample)

    def _ask(self, term: int, k: int, modality: Modality) -> list[Item]:
        query = sparse.csr_array(
            ([np.int32(1)], ([0], [term])),
            shape=(1, self.n_terms),
            dtype=np.int32,
        )
        return [hit.item for hit in self.index.search(SearchRequest(query, k, modality))[0]]


class _Row(Struct):
    words: tuple[str, ...]
    examples: tuple[Example, ...]


def pack_labels(labels: Sequence[Label]) -> Bytes:
    """Encode labels as JSON in a uint8 array (n,), which can be stored without pickle."""
    rows = [vars(label) for label in labels]
    return np.frombuffer(json.dumps(rows, ensure_ascii=False).encode(), np.uint8)


def unpack_labels(packed: Bytes) -> list[Label]:
    """Decode labels that ``pack_labels`` encoded; an empty array contains no labels. Raises
    ManifestError for invalid bytes."""
    if not packed.size:
        return []
    try:
        rows = typed(parse_json(packed.tobytes()), list[_Row])
    except ValueError as error:
        raise ManifestError(
            f"the stored labels of the codewords cannot be read ({error}); rebuild them",
        ) from error
    return [Label(row.words, row.examples) for row in rows]
