"""Text analysis, and BM25 over the rows of several segments as if they were one.

SQLite's FTS5 is no alternative: it counts per file, so scores would depend on how rows are spread
over segments, and it returns rows one by one, which takes fifty times as long.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .text_store import Occurrences, TextStore

# defaults of Elasticsearch and OpenSearch
K1 = 1.2
B = 0.75

_MARKS = ".':\u2019\u00b7,;"
_LOOSE = re.compile(rf"[{_MARKS}](?!(?<=[^\W\d_][.':\u2019\u00b7])[^\W\d_]|(?<=\d[.'\u2019,;])\d)")
"""Punctuation that is not inside a word or a number, as it is in "o'clock" and "1,000"."""
_JOINED = "\u00ad\u200c\u200d"  # soft hyphen and joiners, which are dropped from words
_ALONE = ("CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH", "HIRAGANA LETTER")


class _WordTable(dict[int, str]):
    """The replacement of each character that separates words by spaces; looked up in Unicode
    once."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if unicodedata.name(character, "").startswith(_ALONE):
            text = f" {character} "
        elif unicodedata.category(character)[0] in "LNM" or character in "_" + _MARKS:
            text = character
        else:
            text = "" if character in _JOINED else " "
        self[code] = text
        return text


_WORDS = _WordTable({ord("\n"): "\n"})


def tokens(text: str) -> list[str]:
    """Return the words of ``text`` in lower case, almost as in the standard analyser of the servers
    (Unicode annex 29).

    >>> tokens("A man's 2-legged dog, at 3.5 m: 犬です")
    ['a', "man's", '2', 'legged', 'dog', 'at', '3.5', 'm', '犬', 'で', 'す']
    """
    return space_words([text]).split()


def space_words(texts: Sequence[str]) -> str:
    """Return the lower-case words of ``texts`` separated by spaces, one line per text; faster than
    text by text."""
    text = "\n".join([text.replace("\n", " ") for text in texts])
    return _LOOSE.sub(" ", unicodedata.normalize("NFC", text).lower()).translate(_WORDS)


class WordRanking:
    """BM25 over the rows of several segments.

    Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009, in the
    form of Elasticsearch: the sum, over the words w of a text, of ln(1 + (N - N_w + 0.5) / (N_w +
    0.5)) * (K1 + 1) * f / (f + K1 * (1 - B + B * length / mean length)), which is above 0 for every
    row with such a word. Rows without words are neither in N nor in the mean.
    """

    def __init__(
        self,
        segments: Sequence[TextStore],
        live: Sequence[NDArray[Any] | None],
    ) -> None:
        """``live`` (n,) of a segment is 0 for deleted rows; None means that no row is deleted."""
        self._segments = segments
        self._live = [None if alive is None else alive != 0 for alive in live]
        pairs = zip(segments, self._live, strict=True)
        lengths = [part.lengths if alive is None else part.lengths[alive] for part, alive in pairs]
        self._n = sum(int(np.count_nonzero(part)) for part in lengths)
        self._mean = sum(int(part.sum(dtype=np.int64)) for part in lengths) / max(self._n, 1)

    def scores(self, text: str) -> list[NDArray[np.float64]]:
        """Return scores (n,) for each segment, 0 for deleted rows and for rows that share no word
        with ``text``.

        A word twice in ``text`` counts twice. Scores are bit-identical however rows are spread over
        segments.
        """
        sums = [np.zeros(segment.n) for segment in self._segments]
        for word, times in sorted(Counter(tokens(text)).items()):
            occurrences = [self._occurrences(i, word) for i in range(len(sums))]
            n = sum(len(rows) for rows, _ in occurrences)
            weight = times * (K1 + 1) * math.log1p((self._n - n + 0.5) / (n + 0.5))
            for total, segment, (rows, frequencies) in zip(
                sums,
                self._segments,
                occurrences,
                strict=True,
            ):
                if len(rows):
                    norms = K1 * (1 - B + B / self._mean * segment.lengths[rows])
                    total[rows] += weight * (frequencies / (frequencies + norms))
        return sums

    def match(self, text: str) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Return the rows of each segment that share a word with ``text``, ascending, and their
        scores."""
        scores = self.scores(text)
        rows = [np.flatnonzero(part) for part in scores]
        return [(matching, part[matching]) for matching, part in zip(rows, scores, strict=True)]

    def _occurrences(self, i: int, word: str) -> Occurrences:
        rows, frequencies = self._segments[i].occurrences(word)
        live = self._live[i]
        if live is None:
            return rows, frequencies
        kept = live[rows]
        return rows[kept], frequencies[kept]
