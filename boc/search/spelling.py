"""Find words of a sentence that neither an index nor its encoder contains, and suggest known
words."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boc.paths import folded, nfc
from boc.remarks import word_forms
from boc.search.dates import read_date
from boc.search.searcher import NAME, Searcher

ITEMS = 20_000  # number of first index items whose words count as known
WORD = re.compile(
    r"(?<![\w'\u2019])[A-Za-z\u00c0-\u052f\u1e00-\u1fff]{3,}(?![\w'\u2019:])",
)  # letters of scripts that separate words by spaces
# Smallest similarity (at most 1) between a word and a suggestion, for long and for short words.
ALIKE = 0.75
ALIKE_SHORT = 0.66
SHORT = 4
# largest difference in length to a suggestion, and largest number of words compared
LONGER = 2
NEAR = 9
# Limits on the cost of a query: number of words that get a suggestion, letters per word, number of
# words compared letter by letter, and total number of known words.
SOUGHT = 16
LONGEST = 30
COMPARED = 48
MOST = 200_000


class UnknownWord(NamedTuple):
    """Unknown word with the most similar known word."""

    word: str
    near: str | None


class Spelling:
    """Words of an index and its encoder, by length and letter counts. Thread-safe."""

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher

    @cached_property
    def words(self) -> Collection[str]:
        """The words that the encoder reads whole, and the words of the first sentences of the
        index; empty for an encoder without a vocabulary, and for an index of vectors."""
        index = self._searcher.index
        words: Collection[str] = ()
        if not index.manifest.identity.spec.startswith("vectors:"):
            words = getattr(self._searcher.encoder, "vocabulary", ())
        if words and index.manifest.items["text"]:
            items = islice(index.items(), ITEMS)
            texts = (item.content for item in items if item.modality == "text")
            words = {*words, *islice(WORD.findall(" ".join(texts).lower()), 10 * MOST)}
        return words

    @cached_property
    def by_length(self) -> dict[int, tuple[list[str], NDArray[np.uint8]]]:
        """Return the words of each length, and their letter counts."""
        groups: dict[int, list[str]] = {}
        for word in islice(sorted(self.words), MOST):
            if 2 < len(word) <= LONGEST + LONGER:
                groups.setdefault(len(word), []).append(word)
        return {length: (words, _letters(words)) for length, words in groups.items()}

    def unknown(self, text: str) -> list[UnknownWord]:
        """Return the words of a sentence that neither index nor encoder contains, in sentence
        order. The first ``SOUGHT`` words of at most ``LONGEST`` letters get suggestions."""
        unknown: list[UnknownWord] = []
        words = WORD.findall(nfc(text).lower())
        if not self.words or NAME.fullmatch(text) or read_date(text):
            words = []
        for word in dict.fromkeys(words):
            if not any(form in self.words for form in (*word_forms(word), folded(word))):
                near = None
                if len(unknown) < SOUGHT and len(word) <= LONGEST:
                    near = self.nearest(word)
                unknown.append(UnknownWord(word, near))
        return unknown

    def nearest(self, word: str) -> str | None:
        """Return the known word most similar to ``word``. Among similar words, an anagram comes
        first.

        Only the words that share the most letters with ``word``, in any order, are compared.
        """
        mine = _letters([word])
        choices = []
        for length in range(len(word) - LONGER, len(word) + LONGER + 1):
            words, theirs = self.by_length.get(length, ([], mine[:0]))
            shared = np.minimum(theirs, mine).sum(axis=1, dtype=np.int32)
            alike = 2.0 * shared / (length + len(word))
            best = np.argsort(-alike, kind="stable")[:COMPARED]
            choices += [(-float(alike[row]), words[row]) for row in best.tolist()]
        some = [each for _, each in sorted(choices)[:COMPARED]]
        near = get_close_matches(word, some, NEAR, ALIKE if len(word) > SHORT else ALIKE_SHORT)
        return max(near, key=lambda each: sorted(each) == sorted(word), default=None)


def _letters(words: Sequence[str]) -> NDArray[np.uint8]:
    """Return the letter counts (n, 32) of words of one length, in 32 letter classes."""
    codes = np.array(words).view(np.uint32).reshape(len(words), -1) % 32
    counts = np.zeros((len(words), 32), np.uint8)
    for column in codes.T:
        counts[np.arange(len(words)), column] += 1
    return counts
