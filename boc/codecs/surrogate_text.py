"""Convert term matrices to {term: frequency} mappings and to surrogate text without loss.

In surrogate text, the word ``tj`` is repeated f times for term j with frequency f, so that any text
search engine can index it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from boc.types import FieldType, Item, TermMatrix

FIELD = "words"
"""Metadata field that contains the words of a picture, for codes whose terms are words. Word
searches read this field."""


def to_counts(terms: TermMatrix) -> list[dict[str, int]]:
    """Return a {term: frequency} mapping for each row of ``terms`` (n, V), in column order."""
    words = [f"t{term}" for term in terms.indices.tolist()]
    pairs = list(zip(words, terms.data.tolist(), strict=True))
    return [dict(pairs[first:end]) for first, end in pairwise(terms.indptr)]


def to_words(terms: TermMatrix, words: Mapping[int, str]) -> list[str]:
    """Convert each row to the words of its terms, such as "rocket rocket desert", sorted by
    descending frequency, then by term."""
    rows = []
    for first, end in pairwise(terms.indptr):
        order = first + np.argsort(-terms.data[first:end], kind="stable")
        repeated = np.repeat(terms.indices[order], terms.data[order]).tolist()
        rows.append(" ".join(words[term] for term in repeated if term in words))
    return rows


def word_fields(words: Mapping[int, str]) -> dict[str, FieldType]:
    """Return the metadata fields that a code with the given words adds to an index."""
    return {FIELD: "text"} if words else {}


def with_words(
    items: Sequence[Item],
    terms: TermMatrix,
    words: Mapping[int, str],
) -> list[Item]:
    """Return items with the words of ``terms`` in the field ``FIELD`` of pictures. If ``words`` is
    empty, items are not changed."""
    if not words:
        return list(items)
    result = []
    for item, text in zip(items, to_words(terms, words), strict=True):
        if item.modality == "image" and text:
            item = replace(item, fields={**item.fields, FIELD: text})
        result.append(item)
    return result
