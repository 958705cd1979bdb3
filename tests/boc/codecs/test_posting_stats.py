"""Costs of a code against slow counts and the definition by pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from bench.paper.recall_postings import gini
from boc.codecs.frequencies import document_frequencies, postings_read
from boc.errors import BocError
from tests.oracles import term_matrices


@pytest.mark.slow
@given(documents=term_matrices((6, 5), 9), queries=term_matrices((3, 5), 9))
def test_postings_are_the_pairs_that_share_a_term(documents: sparse.csr_array, queries: sparse.csr_array) -> None:
    D, Q = documents.toarray(), queries.toarray()
    frequencies = document_frequencies(documents)
    assert frequencies.tolist() == [sum(int(d[j] > 0) for d in D) for j in range(5)]
    met = sum(int(q[j] > 0 and d[j] > 0) for q in Q for d in D for j in range(5))
    assert postings_read(frequencies, queries) == pytest.approx(met / len(Q))


def test_queries_of_another_code_are_refused_with_both_sizes() -> None:
    with pytest.raises(BocError, match="2 queries over 5 terms, lists of 4"):
        postings_read(np.ones(4, dtype=np.int64), sparse.csr_array((2, 5), dtype=np.int32))
    with pytest.raises(BocError, match="0 queries over 4 terms"):
        postings_read(np.ones(4, dtype=np.int64), sparse.csr_array((0, 4), dtype=np.int32))


@pytest.mark.slow
@given(amounts=st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_gini_is_half_the_relative_mean_difference(amounts: list[int]) -> None:
    n, total = len(amounts), sum(amounts)
    pairs = sum(abs(x - y) for x in amounts for y in amounts)
    assert gini(np.array(amounts)) == pytest.approx(pairs / (2 * n * total) if total else 0)


@given(amount=st.integers(1, 9), n=st.integers(1, 20))
def test_gini_is_0_for_equal_lists_and_largest_for_one(amount: int, n: int) -> None:
    assert gini(np.full(n, amount)) == pytest.approx(0)
    assert gini(np.eye(n)[0] * amount) == pytest.approx(1 - 1 / n)


@pytest.mark.parametrize(("amounts", "what"), [([], "none"), ([3, -2], "-2")])
def test_gini_of_no_amounts_is_refused(amounts: list[int], what: str) -> None:
    with pytest.raises(BocError, match=f"needs amounts of 0 or more, got {what}"):
        gini(np.array(amounts))
