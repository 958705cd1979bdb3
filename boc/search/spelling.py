"""Words of a sentence that neither an index nor its encoder has, each with the word that may be
meant."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from typing import NamedTuple

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
        return set(WORD.findall(" ".join(texts).lower()))

    def unknown(self, text: str) -> list[UnknownWord]:
        """Return the words of a sentence that neither has, in its order."""
        unknown = []
        for word in dict.fromkeys(WORD.findall(nfc(text).lower())):
            letters = unicodedata.normalize("NFD", word)
            plain = "".join(each for each in letters if not unicodedata.combining(each))
            known = not self.vocabulary or word in self.vocabulary or plain in self.vocabulary
            if not known and word not in self.words:
                near = _nearest(word, self.words) or _nearest(word, self.vocabulary)
                unknown.append(UnknownWord(word, near))
        return unknown


def _nearest(word: str, known: Collection[str]) -> str | None:
    """Return the known word most like one; of similar ones one of the same letters, which were
    swapped."""
    choices = [each for each in known if len(each) > 2 and abs(len(each) - len(word)) <= LONGER]
    near = get_close_matches(word, choices, NEAR, ALIKE if len(word) > SHORT else ALIKE_SHORT)
    return max(near, key=lambda each: sorted(each) == sorted(word), default=None)
