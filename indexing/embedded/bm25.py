"""Words of texts, and what they score: BM25 over the rows of several segments as if they were one.

FTS5 of SQLite is not it: it counts file by file, so that a score would depend on how rows are spread over segments (the
words of a row on its own count for nothing), and it hands out rows one by one, at fifty times the time.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Occurrences: TypeAlias = tuple[NDArray[np.int64], NDArray[Any]]
"""The rows that have a word, ascending, and how often each has it, unsigned integers."""

K1, B = 1.2, 0.75  # as servers have them

_MARKS = ".':\u2019\u00b7,;"
_LOOSE = re.compile(rf"[{_MARKS}](?!(?<=[^\W\d_][.':\u2019\u00b7])[^\W\d_]|(?<=\d[.'\u2019,;])\d)")
"""Marks that do not stand within a word or a number, as they do in "o'clock" and "1,000"."""
_JOINED = "\u00ad\u200c\u200d"  # soft hyphen and joiners: within words, but not of them
_ALONE = ("CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH", "HIRAGANA LETTER")


class _Spaced(dict[int, str]):
    """What characters become for words to stand between spaces; looked up in Unicode once."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if unicodedata.name(character, "").startswith(_ALONE):
            found = f" {character} "
        elif unicodedata.category(character)[0] in "LNM" or character in "_" + _MARKS:
            found = character
        else:
            found = "" if character in _JOINED else " "
        self[code] = found
        return found


_SPACED = _Spaced({ord("\n"): "\n"})


def tokens(text: str) -> list[str]:
    """The words of ``text`` in lower case, nearly as the servers' standard analyser has them (Unicode annex 29).

    >>> tokens("A man's 2-legged dog, at 3.5 m: 犬です")
    ['a', "man's", '2', 'legged', 'dog', 'at', '3.5', 'm', '犬', 'で', 'す']
    """
    return spaced([text]).split()


def spaced(texts: Sequence[str]) -> str:
    """The words of some texts between spaces, a line a text, in lower case: of many at a time, this takes less time."""
    text = "\n".join([text.replace("\n", " ") for text in texts])
    return _LOOSE.sub(" ", unicodedata.normalize("NFC", text).lower()).translate(_SPACED)


class Segment(Protocol):
    """``n`` rows: how many words each has, and which of them have a word."""

    n: int

    @property
    def lengths(self) -> NDArray[Any]:
        """(n,), unsigned integers."""

    def occurrences(self, word: str) -> Occurrences: ...


class Ranking:
    """BM25 of the rows of some segments.

    Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009, in the form that Elasticsearch
    computes: the sum, over the words w of a text, of ln(1 + (N - N_w + 0.5) / (N_w + 0.5)) * (K1 + 1) * f
    / (f + K1 * (1 - B + B * length / mean length)), above 0 for every row with such a word. Rows without any word count
    neither in N nor in the mean.
    """

    def __init__(self, segments: Sequence[Segment], live: Sequence[NDArray[Any] | None]) -> None:
        """``live`` (n,) of each segment is 0 for rows that do not count; None says that all do."""
        self._segments = segments
        self._live = [None if alive is None else alive != 0 for alive in live]
        pairs = zip(segments, self._live, strict=True)
        lengths = [part.lengths if alive is None else part.lengths[alive] for part, alive in pairs]
        self._n = sum(int(np.count_nonzero(part)) for part in lengths)
        self._mean = sum(int(part.sum(dtype=np.int64)) for part in lengths) / max(self._n, 1)

    def scores(self, text: str) -> list[NDArray[np.float64]]:
        """(n,) of each segment, 0 for rows that do not count or share no word with ``text``.

        A word that comes twice in ``text`` counts twice. How rows are spread over segments changes no bit.
        """
        sums = [np.zeros(segment.n) for segment in self._segments]
        for word, times in sorted(Counter(tokens(text)).items()):
            found = [self._occurrences(i, word) for i in range(len(sums))]
            n = sum(len(rows) for rows, _ in found)
            weight = times * (K1 + 1) * math.log1p((self._n - n + 0.5) / (n + 0.5))
            for total, segment, (rows, frequencies) in zip(sums, self._segments, found, strict=True):
                if len(rows):
                    norms = K1 * (1 - B + B / self._mean * segment.lengths[rows])
                    total[rows] += weight * (frequencies / (frequencies + norms))
        return sums

    def match(self, text: str) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """The rows of each segment that share a word with ``text``, ascending, and their scores."""
        scores = self.scores(text)
        rows = [np.flatnonzero(part) for part in scores]
        return [(found, part[found]) for found, part in zip(rows, scores, strict=True)]

    def _occurrences(self, i: int, word: str) -> Occurrences:
        rows, frequencies = self._segments[i].occurrences(word)
        live = self._live[i]
        if live is None:
            return rows, frequencies
        kept = live[rows]
        return rows[kept], frequencies[kept]
