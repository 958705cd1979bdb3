"""Term matrix <-> {term: frequency} <-> surrogate text, loss-free.

Surrogate text writes term j, of frequency f, as the word ``tj`` repeated f times: what any text engine counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import sparse

from boc.types import TermMatrix

_WORD = re.compile(r"t(0|[1-9][0-9]*)")


def to_counts(terms: TermMatrix) -> list[dict[str, int]]:
    """One {term: frequency} a row of ``terms`` (n, V), in the order of the columns."""
    pairs = zip(terms.indices.tolist(), terms.data.tolist(), strict=True)
    words = [(f"t{j}", int(f)) for j, f in pairs]
    return [dict(words[a:b]) for a, b in zip(terms.indptr[:-1], terms.indptr[1:], strict=True)]


def from_counts(counts: Sequence[Mapping[str, int]], n_terms: int) -> TermMatrix:
    """The inverse of ``to_counts``. ValueError for a word that is no term below ``n_terms`` or a frequency below 1."""
    columns = [sorted((_column(word, n_terms), _positive(word, f)) for word, f in row.items()) for row in counts]
    indptr = np.cumsum([0, *map(len, columns)])
    flat = np.array([pair for row in columns for pair in row], dtype=np.int32).reshape(-1, 2)
    return sparse.csr_array((flat[:, 1], flat[:, 0], indptr), shape=(len(counts), n_terms))


def to_text(terms: TermMatrix) -> list[str]:
    """Surrogate text of each row: "t17 t17 t203"."""
    return [" ".join(" ".join([word] * f) for word, f in row.items()) for row in to_counts(terms)]


def from_text(texts: Sequence[str], n_terms: int) -> TermMatrix:
    """The inverse of ``to_text``; the order of the words is free."""
    return from_counts([Counter(text.split()) for text in texts], n_terms)


def _column(word: str, n_terms: int) -> int:
    match = _WORD.fullmatch(word)
    if match is None or int(match[1]) >= n_terms:
        raise ValueError(f"{word!r} is not a term: t0 to t{n_terms - 1} are")
    return int(match[1])


def _positive(word: str, frequency: int) -> int:
    if frequency < 1:
        raise ValueError(f"frequency of {word} must be at least 1, got {frequency}")
    return frequency
