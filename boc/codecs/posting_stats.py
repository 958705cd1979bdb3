"""The cost of a code for an engine: postings read per query, and how unevenly terms are used."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from boc.errors import BocError
from boc.types import TermMatrix


def document_frequencies(documents: TermMatrix) -> NDArray[np.int64]:
    """Length of each term's posting list, int64 (V,): the number of rows of ``documents`` (n, V) that have it."""
    return np.bincount(documents.indices, minlength=documents.shape[1]).astype(np.int64, copy=False)


def postings_read(frequencies: NDArray[np.int64], queries: TermMatrix) -> float:
    """Mean over ``queries`` (q, V) of the postings in the lists of their terms: what term-at-a-time scoring reads.

    ``frequencies`` (V,) are document frequencies. BocError if there is no query, or if the numbers of terms differ.
    """
    n, n_terms = queries.shape
    if n_terms != len(frequencies) or n == 0:
        raise BocError(
            f"postings: {n} queries over {n_terms} terms, lists of {len(frequencies)}; use one code for both"
        )
    return float(frequencies[queries.indices].sum() / n)
