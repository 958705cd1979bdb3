"""Surrogate text and counts: nothing is lost on the way there and back."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from boc.codecs.surrogate_text import from_counts, from_text, to_counts, to_text
from tests.oracles import assert_canonical, same_matrix, term_matrices

SHAPES = st.tuples(st.integers(0, 5), st.integers(1, 12))


@given(terms=SHAPES.flatmap(lambda shape: term_matrices(shape, 2**31 - 1)))
def test_counts_come_back(terms: sparse.csr_array) -> None:
    counts = to_counts(terms)
    expected = [{f"t{j}": int(f) for j, f in enumerate(row) if f} for row in terms.toarray()]
    assert counts == expected
    assert [list(row) for row in counts] == [list(row) for row in expected]
    back = from_counts(counts, terms.shape[1])
    assert_canonical(back, terms.shape)
    assert same_matrix(back, terms)


@given(terms=SHAPES.flatmap(lambda shape: term_matrices(shape, 40)), rnd=st.randoms(use_true_random=False))
def test_texts_come_back_in_whatever_order_their_words_are(terms: sparse.csr_array, rnd: object) -> None:
    texts = to_text(terms)
    assert [Counter(text.split()) for text in texts] == [Counter(row) for row in to_counts(terms)]
    shuffled = []
    for text in texts:
        words = text.split()
        rnd.shuffle(words)  # type: ignore[attr-defined]
        shuffled.append("  ".join(words))
    for written in (texts, shuffled):
        back = from_text(written, terms.shape[1])
        assert_canonical(back, terms.shape)
        assert same_matrix(back, terms)


def test_a_text_worked_by_hand() -> None:
    terms = sparse.csr_array(np.array([[0, 2, 0, 1], [0, 0, 0, 0]], dtype=np.int32))
    assert to_text(terms) == ["t1 t1 t3", ""]
    assert to_counts(terms) == [{"t1": 2, "t3": 1}, {}]


@pytest.mark.parametrize("word", ["t4", "t-1", "t01", "t", "x1", "T1", "t1.", "t\u0661", "t1t2", "", "t9999999999"])
def test_a_word_that_is_no_term_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="is not a term: t0 to t3 are") as caught:
        from_counts([{"t0": 1}, {word: 1}], 4)
    assert repr(word) in str(caught.value)
    if word.strip():
        with pytest.raises(ValueError, match="is not a term"):
            from_text([f"t0 {word}"], 4)


@pytest.mark.parametrize("frequency", [0, -3])
def test_a_frequency_below_one_is_refused(frequency: int) -> None:
    with pytest.raises(ValueError, match=f"frequency of t1 must be at least 1, got {frequency}"):
        from_counts([{"t1": frequency}], 4)
