"""Lossless conversion between term matrices, {term: frequency} and surrogate text.

Surrogate text has term j with frequency f as the word ``tj`` repeated f times, which any text engine can count.
"""

from __future__ import annotations

from boc.types import TermMatrix


def to_counts(terms: TermMatrix) -> list[dict[str, int]]:
    """One {term: frequency} per row of ``terms`` (n, V), in the order of the columns."""
    pairs = zip(terms.indices.tolist(), terms.data.tolist(), strict=True)
    words = [(f"t{j}", int(f)) for j, f in pairs]
    return [dict(words[a:b]) for a, b in zip(terms.indptr[:-1], terms.indptr[1:], strict=True)]


def to_text(terms: TermMatrix) -> list[str]:
    """Surrogate text of each row: "t17 t17 t203"."""
    return [" ".join(" ".join([word] * f) for word, f in row.items()) for row in to_counts(terms)]
