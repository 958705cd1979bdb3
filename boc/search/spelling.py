"""Words of a sentence that neither an index nor its encoder has, each with the word that may be
meant."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boc.paths import nfc
from boc.search.searcher import Searcher

ITEMS = 20_000  # first items of an index, whose words are known
WORD = re.compile(
    r"(?<![\w'\u2019])[A-Za-z\u00c0-\u052f\u1e00-\u1fff]{3,}(?![\w'\u2019:])",
)  # where spaces part words
# of 1: likeness of a word, and of one of few letters, to what may be meant
ALIKE = 0.75
ALIKE_SHORT = 0.66
SHORT = 4
# letters by which the two may differ in length; words that are looked at
LONGER = 2
NEAR = 9
# What a question costs at most: words for which another is looked for, letters of such a word,
# known words that it is compared with letter by letter, and known words altogether.
SOUGHT = 16
LONGEST = 30
COMPARED = 48
MOST = 200_000


class UnknownWord(NamedTuple):
    """A word that is not known, and the known one most like it."""

    word: str
    near: str | None


class Spelling:
    """The words that an index and its encoder have. Thread-safe."""

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher

    @cached_property
    def vocabulary(self) -> Collection[str]:
        """The words that the encoder reads whole; empty if it does not tell."""
        words: Collection[str] = getattr(self._searcher.encoder, "vocabulary", ())
        return words

    @cached_property
    def words(self) -> Collection[str]:
        """The words of the first sentences of the index."""
        index = self._searcher.index
        if not index.manifest.items["text"]:
            return set()
        items = islice(index.items(), ITEMS)
        texts = (item.content for item in items if item.modality == "text")
        return set(islice(WORD.findall(" ".join(texts).lower()), 10 * MOST))

    @cached_property
    def indexes(self) -> tuple[LetterIndex, LetterIndex]:
        """Where words like another are looked up: those of the index first."""
        return LetterIndex(self.words), LetterIndex(self.vocabulary)

    def unknown(self, text: str) -> list[UnknownWord]:
        """Return the words of a sentence that neither has, in its order; for the first ``SOUGHT``
        of at most ``LONGEST`` letters with the known ones that may be meant."""
        unknown: list[UnknownWord] = []
        for word in dict.fromkeys(WORD.findall(nfc(text).lower())):
            letters = unicodedata.normalize("NFD", word)
            plain = "".join(each for each in letters if not unicodedata.combining(each))
            known = not self.vocabulary or word in self.vocabulary or plain in self.vocabulary
            if not known and word not in self.words:
                near = None
                if len(unknown) < SOUGHT and len(word) <= LONGEST:
                    own, others = self.indexes
                    near = own.nearest(word) or others.nearest(word)
                unknown.append(UnknownWord(word, near))
        return unknown


class LetterIndex:
    """Known words by their lengths and how often they have which letters."""

    def __init__(self, known: Collection[str]) -> None:
        self._words: dict[int, list[str]] = {}
        for word in islice(sorted(known), MOST):
            if 2 < len(word) <= LONGEST + LONGER:
                self._words.setdefault(len(word), []).append(word)
        self._letters = {length: _letters(words) for length, words in self._words.items()}

    def nearest(self, word: str) -> str | None:
        """Return the known word most like one; of similar ones one of the same letters, which were
        swapped.

        Words that share the most letters, whatever their order, are compared.
        """
        mine = _letters([word])
        choices: list[tuple[float, str]] = []
        for length in range(len(word) - LONGER, len(word) + LONGER + 1):
            if length in self._words:
                shared = np.minimum(self._letters[length], mine).sum(axis=1, dtype=np.int32)
                alike = 2.0 * shared / (length + len(word))
                best = np.argsort(-alike, kind="stable")[:COMPARED]
                words = self._words[length]
                choices += [(-float(alike[row]), words[row]) for row in best.tolist()]
        some = [each for _, each in sorted(choices)[:COMPARED]]
        near = get_close_matches(word, some, NEAR, ALIKE if len(word) > SHORT else ALIKE_SHORT)
        return max(near, key=lambda each: sorted(each) == sorted(word), default=None)


def _letters(words: Sequence[str]) -> NDArray[np.uint8]:
    """Return how often words of one length have the letters of each of 32 classes, (n, 32)."""
    codes = np.array(words).view(np.uint32).reshape(len(words), -1) % 32
    counts = np.zeros((len(words), 32), np.uint8)
    for column in codes.T:
        counts[np.arange(len(words)), column] += 1
    return counts
