"""Surrogate text and counts hold the terms of each row, and nothing else."""

from hypothesis import given, strategies as st
from scipy import sparse

from boc.codecs.surrogate_text import to_counts
from tests.oracles import term_matrices

SHAPES = st.tuples(st.integers(0, 5), st.integers(1, 12))


@given(terms=SHAPES.flatmap(lambda shape: term_matrices(shape, 2**31 - 1)))
def test_to_counts(terms: sparse.csr_array):
    expected = [[(f"t{j}", int(f)) for j, f in enumerate(row) if f] for row in terms.toarray()]
    assert [list(row.items()) for row in to_counts(terms)] == expected
