"""The k largest against a sort of pairs, with many ties."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from boc.topk import topk, topk_of_blocks

FEW = st.sampled_from([-2.5, -1.0, -0.0, 0.0, 1.0, 7.0])
SCORES = st.tuples(
    st.integers(0, 4),
    st.integers(0, 9),
).flatmap(
    lambda shape: st.sampled_from([np.float32, np.float64, np.int32]).flatmap(
        lambda dtype: arrays(np.float64, shape, elements=FEW).map(
            lambda found: found.astype(dtype),
        ),
    ),
)


def sorted_places(scores: list[float], k: int) -> list[int]:
    return sorted(
        range(len(scores)),
        key=lambda place: (-scores[place], place),
    )[:k]


@given(scores=SCORES, k=st.integers(0, 11))
def test_the_largest_come_first_and_ties_go_to_the_lower_place(
    scores: NDArray[Any],
    k: int,
):
    expected = [sorted_places(row, k) for row in scores.tolist()]
    assert topk(scores, k).tolist() == expected
    for row, places in zip(scores, expected, strict=True):
        assert topk(row, k).tolist() == places


@given(
    scores=SCORES.filter(lambda found: found.shape[1] > 0),
    k=st.integers(1, 11),
    size=st.integers(1, 9),
)
def test_blocks_of_columns_give_what_the_whole_gives(
    scores: NDArray[Any],
    k: int,
    size: int,
):
    blocks = (scores[:, i : i + size] for i in range(0, scores.shape[1], size))
    places, values = topk_of_blocks(blocks, k)
    assert places.tolist() == topk(scores, k).tolist()
    assert values.tolist() == np.take_along_axis(scores, places, axis=1).tolist()


def test_no_blocks_are_refused():
    with pytest.raises(ValueError, match="no blocks of scores"):
        topk_of_blocks([], 1)
