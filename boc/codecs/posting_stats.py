"""What a code costs an engine: postings read a query, and how unevenly terms are used."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.errors import BocError
from boc.types import TermMatrix


def document_frequencies(documents: TermMatrix) -> NDArray[np.int64]:
    """Length of each term's posting list, int64 (V,): the number of rows of ``documents`` (n, V) that hold it."""
    return np.bincount(documents.indices, minlength=documents.shape[1]).astype(np.int64, copy=False)


def postings_read(frequencies: NDArray[np.int64], queries: TermMatrix) -> float:
    """Mean over ``queries`` (q, V) of the postings in the lists of their terms: what term-at-a-time scoring reads.

    ``frequencies`` (V,) are document frequencies. BocError if there is no query, or their terms are not the same V.
    """
    n, n_terms = queries.shape
    if n_terms != len(frequencies) or n == 0:
        raise BocError(
            f"postings: {n} queries over {n_terms} terms, lists of {len(frequencies)}; use one code for both"
        )
    return float(frequencies[queries.indices].sum() / n)


def gini(amounts: NDArray[Any]) -> float:
    """Gini coefficient of amounts (n,) >= 0, such as document frequencies: 0 = all equal, 1 - 1/n = one has all.

    G = sum_i (2 i - n - 1) x_i / (n sum_i x_i) over rising x_1..x_n (Damgaard and Weiner, Ecology 81, 2000). 0 if all
    are 0. BocError if there are none, or one is negative.
    """
    x = np.sort(np.asarray(amounts, dtype=np.float64))
    n = len(x)
    if n == 0 or x[0] < 0:
        raise BocError(f"Gini coefficient: needs amounts of 0 or more, got {f'{x[0]:g}' if n else 'none'}")
    return float((2 * np.arange(1, n + 1) - n - 1) @ x / (n * max(x.sum(), np.finfo(float).tiny)))
