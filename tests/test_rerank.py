"""The final order is that of exact dot products."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from oracles import picture

from boc.rerank import rerank
from boc.types import Hit


@given(data=st.data(), k=st.integers(1, 9), keys=st.lists(st.text("abé", min_size=1), max_size=7, unique=True))
def test_hits_are_sorted_by_dot_product_then_id(data: st.DataObject, k: int, keys: list[str]) -> None:
    whole = st.integers(-2, 2).map(np.float32)
    vectors = data.draw(arrays(np.float32, (len(keys), 3), elements=whole))
    query = data.draw(arrays(np.float32, 3, elements=whole))
    hits = [Hit(picture(key), float(i)) for i, key in enumerate(keys)]
    expected = [
        (sum(float(a) * float(b) for a, b in zip(query, row, strict=True)), key)
        for row, key in zip(vectors, keys, strict=True)
    ]
    expected = sorted(expected, key=lambda pair: (-pair[0], pair[1]))[:k]
    found = rerank(query, hits, vectors, k)
    assert [(hit.score, hit.item) for hit in found] == [(score, picture(key)) for score, key in expected]
    assert [hit.score for hit in hits] == list(range(len(keys)))


@pytest.mark.parametrize("rows", [1, 3])
def test_vectors_of_another_number_are_refused(rows: int) -> None:
    hits = [Hit(picture("a"), 1.0), Hit(picture("b"), 1.0)]
    with pytest.raises(ValueError, match="argument"):
        rerank(np.ones(2, np.float32), hits, np.ones((rows, 2), np.float32), 5)
