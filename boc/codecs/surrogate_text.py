"""Lossless conversion between term matrices, {term: frequency} and surrogate text.

Surrogate text has term j with frequency f as the word ``tj`` repeated f times, which any text
engine can count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from boc.types import FieldType, Item, TermMatrix

FIELD = "words"
"""The metadata field with the words of a picture, for codes whose terms are words. It is searched
as text."""


def to_counts(terms: TermMatrix) -> list[dict[str, int]]:
    """Return one {term: frequency} per row of ``terms`` (n, V), in the order of the columns."""
    pairs = zip(terms.indices.tolist(), terms.data.tolist(), strict=True)
    words = [(f"t{j}", int(f)) for j, f in pairs]
    return [dict(words[a:b]) for a, b in zip(terms.indptr[:-1], terms.indptr[1:], strict=True)]


def to_text(terms: TermMatrix) -> list[str]:
    """Write the surrogate text of each row: "t17 t17 t203"."""
    return [" ".join(" ".join([word] * f) for word, f in row.items()) for row in to_counts(terms)]


def to_words(terms: TermMatrix, words: Mapping[int, str]) -> list[str]:
    """Write each row as the words of its terms, "rocket rocket desert", the most frequent first,
    ties by term."""
    rows = []
    for first, end in zip(terms.indptr[:-1], terms.indptr[1:], strict=True):
        order = first + np.argsort(-terms.data[first:end], kind="stable")
        pairs = zip(terms.indices[order].tolist(), terms.data[order].tolist(), strict=True)
        rows.append(
            " ".join(
                " ".join([words[term]] * frequency) for term, frequency in pairs if term in words
            ),
        )
    return rows


def word_fields(words: Mapping[int, str]) -> dict[str, FieldType]:
    """Return the metadata fields that an index has for a code with these words."""
    return {FIELD: "text"} if words else {}


def with_words(items: Sequence[Item], terms: TermMatrix, words: Mapping[int, str]) -> list[Item]:
    """Write the words of their ``terms`` into the field ``FIELD`` of pictures; without ``words``
    nothing changes."""
    if not words:
        return list(items)
    texts = to_words(terms, words)
    return [
        replace(item, fields={**item.fields, FIELD: text})
        if item.modality == "image" and text
        else item
        for item, text in zip(items, texts, strict=True)
    ]
