"""Find the words in a sentence that neither an index nor its encoder knows, and suggest known
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

ITEMS = 20_000  # the words of this many items at the beginning of the index are known
WORD = re.compile(
    r"(?<![\w'\u2019])[A-Za-z\u00c0-\u052f\u1e00-\u1fff]{3,}(?![\w'\u2019:])",
)  # letters of scripts in which spaces separate words
# Minimum similarity (at most 1) of a suggestion, for long and for short words.
ALIKE = 0.75
ALIKE_SHORT = 0.66
SHORT = 4
# maximum difference in length, and maximum number of words to compare
LONGER = 2
NEAR = 9
# Limits on the cost of a query: the number of words with suggestions, letters per word, words that
# are compared letter by letter, and the total number of known words.
SOUGHT = 16
LONGEST = 30
COMPARED = 48
MOST = 200_000


class UnknownWord(NamedTuple):
    """Unknown word with the most similar known word."""

    word: str
    near: str | None


class Spelling:
    """Known words of an index and its encoder, by length and letter counts. Thread-safe."""

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher

    @cached_property
    def words(self) -> Collection[str]:
        """Whole words in the vocabulary of the encoder, and words in the first sentences of the
        index. The collection is empty for an encoder without a vocabulary, and for an index of
        vectors."""
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
        """Return the words of each length with their letter counts."""
        groups: dict[int, list[str]] = {}
        for word in islice(sorted(self.words), MOST):
            if 2 < len(word) <= LONGEST + LONGER:
                groups.setdefault(len(word), []).append(word)
        return {length: (words, _letters(words)) for length, words in groups.items()}

    def unknown(self, text: str) -> list[UnknownWord]:
        """Return the words of a sentence that neither the index nor the encoder knows, in sentence
        order. Suggestions are made for the first ``SOUGHT`` words of at most ``LONGEST``
        letters."""
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
        """Return the known word that is most similar to ``word``. Anagrams are preferred over other
        similar words.

        Only the words that share the most letters with ``word``, regardless of their order, are
        compared.
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
    """Return the letter counts (n, 32) of words of the same length, with 32 classes of letters."""
    codes = np.array(words).view(np.uint32).reshape(len(words), -1) % 32
    counts = np.zeros((len(words), 32), np.uint8)
    for column in codes.T:
        counts[np.arange(len(words)), column] += 1
    return counts
