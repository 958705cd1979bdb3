"""The candidates that hold a recall are the fewest, to a twentieth, beside a slow loop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

growth = pytest.importorskip("bench.speed.growth")


@given(st.integers(20, 3000), st.integers(10, 4000), st.floats(0.1, 1))
def test_the_fewest_candidates_that_reach_the_recall_are_chosen(most: int, needed: int, target: float) -> None:
    def recall(candidates: int) -> float:
        return target * candidates / needed

    candidates = growth.fewest(recall, target, most)
    slow = next((each for each in range(10, most) if recall(each) >= target), most)
    assert slow <= candidates <= max(slow + 1, 1.06 * slow)
