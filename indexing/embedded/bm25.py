"""Split text into words, and compute BM25 over the rows of several segments as if they were one.

SQLite's FTS5 is not suitable. FTS5 counts words per file, so scores would depend on the
distribution of rows over segments. FTS5 also returns rows one by one, which takes fifty times as
long.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np

from boc.paths import folded
from boc.vectors import Array, Doubles, Ints

from .text_store import Occurrences, TextStore

# Defaults of Elasticsearch and OpenSearch.
K1 = 1.2
B = 0.75

_ALONE = ("CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH", "HIRAGANA LETTER")


class _WordTable(dict[int, str]):
    """Map each character to its replacement, so that text can be split into words at spaces. Each
    character is looked up in the Unicode database only once."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        text = character if unicodedata.category(character)[0] in "LNM" else " "
        if unicodedata.name(character, "").startswith(_ALONE):
            text = f" {character} "
        self[code] = text
        return text


_LETTERS = {**dict(zip("ðøđħıłŧ", "dodhilt", strict=True)), "æ": "ae", "þ": "th", "œ": "oe"}
"""Letters that Unicode does not decompose into a letter and marks, with the replacements that
search engines use."""
_WORDS = _WordTable(str.maketrans({"\n": "\n", **_LETTERS}))


def tokens(text: str) -> list[str]:
    """Return the folded words of ``text``, which are runs of letters and digits, and single
    ideographs.

    >>> tokens("A Man's 2-legged dog, IMG_1234, Łódź: 犬です")
    ['a', 'man', 's', '2', 'legged', 'dog', 'img', '1234', 'lodz', '犬', 'で', 'す']
    """
    return space_words([text]).split()


def space_words(texts: Sequence[str]) -> str:
    """Return the words of ``texts`` separated by spaces, one line per text. A single call is faster
    than a call per text."""
    text = "\n".join([text.replace("\n", " ") for text in texts])
    return folded(text).translate(_WORDS)


class WordRanking:
    """Compute BM25 over the rows of several segments.

    The formula is from Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and
    Beyond, 2009, in the variant that Elasticsearch uses: the sum, over the words w of a text, of
    ln(1 + (N - N_w + 0.5) / (N_w + 0.5)) * (K1 + 1) * f / (f + K1 * (1 - B + B * length / mean
    length)), which is positive for every row that contains such a word. Rows without words are not
    included in N and in the mean.
    """

    def __init__(
        self,
        segments: Sequence[TextStore | None],
        live: Sequence[Array | None],
    ) -> None:
        """Set up a ranking. For each segment, ``live`` (n,) is 0 for deleted rows, or None if no
        rows are deleted. Segments without words are None."""
        self._segments = segments
        self._live = [None if alive is None else alive != 0 for alive in live]
        pairs = zip(segments, self._live, strict=True)
        lengths = [
            part.lengths if alive is None else part.lengths[alive] for part, alive in pairs if part
        ]
        self._forms = [{} if part is None or part.folded else _forms(part) for part in segments]
        self._n = sum(int(np.count_nonzero(part)) for part in lengths)
        self._mean = sum(int(part.sum(dtype=np.int64)) for part in lengths) / max(self._n, 1)

    def scores(self, text: str) -> list[Doubles]:
        """Return scores (n,) for each segment, which are 0 for deleted rows and for rows that share
        no words with ``text``.

        A word that occurs twice in ``text`` counts twice. Scores do not depend on the distribution
        of rows over segments, to the last bit.
        """
        sums = [np.zeros(segment.n if segment else 0) for segment in self._segments]
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
                if segment and len(rows):
                    norms = K1 * (1 - B + B / self._mean * segment.lengths[rows])
                    total[rows] += weight * (frequencies / (frequencies + norms))
        return sums

    def match(self, text: str) -> list[tuple[Ints, Doubles]]:
        """Return the rows of each segment that share a word with ``text``, in ascending order, and
        their scores."""
        scores = self.scores(text)
        rows = [np.flatnonzero(part) for part in scores]
        return [(matching, part[matching]) for matching, part in zip(rows, scores, strict=True)]

    def _occurrences(self, i: int, word: str) -> Occurrences:
        segment = self._segments[i]
        if segment is None:
            return np.zeros(0, np.int64), np.zeros(0)
        forms = self._forms[i].get(word, [word])
        rows, frequencies = segment.occurrences(forms[0])
        if len(forms) > 1:
            counts = np.zeros(segment.n, np.int64)
            for form in forms:
                rows, frequencies = segment.occurrences(form)
                counts[rows] += frequencies
            rows = np.flatnonzero(counts)
            frequencies = counts[rows]
        live = self._live[i]
        if live is None:
            return rows, frequencies
        kept = live[rows]
        return rows[kept], frequencies[kept]


def _forms(segment: TextStore) -> dict[str, list[str]]:
    """Return the unfolded words in a file of an older version, grouped by their folded forms (see
    ``tokens``)."""
    forms: dict[str, list[str]] = {}
    words = list(segment.vocabulary())
    for word, line in zip(words, space_words(words).split("\n"), strict=True):
        for each in set(line.split()):
            forms.setdefault(each, []).append(word)
    return forms
