"""The test of two systems against its definition: all changes of places, and uniform p without a
difference."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boc.evaluate.significance import compare, holm


@given(
    st.lists(
        st.integers(-3, 3),
        min_size=3,
        max_size=9,
    ),
    st.integers(1, 3),
)
def test_p_is_the_share_of_changes_of_places_with_as_large_a_difference(
    values: list[int],
    captions: int,
) -> None:
    clusters = np.arange(len(values)) // captions
    one = np.array(values, float)[:, None]
    result = compare(
        one,
        np.zeros_like(one),
        clusters,
        rounds=4000,
    )[0]
    sums = np.bincount(clusters, one[:, 0])
    changed = [abs(np.dot(signs, sums)) for signs in product((1, -1), repeat=len(sums))]
    exact = np.mean([each >= abs(sums.sum()) - 1e-9 for each in changed])
    assert result.p == pytest.approx(exact, abs=0.05)
    assert result.difference == pytest.approx(np.mean(values))
    assert result.low <= result.high


def test_copies_of_queries_within_a_cluster_change_nothing_that_is_told() -> None:
    rng = np.random.default_rng(1)
    one, other = rng.random((2, 30, 2))
    alone = compare(one, other, np.arange(30))
    copied = compare(
        np.repeat(one, 5, axis=0),
        np.repeat(other, 5, axis=0),
        np.repeat(np.arange(30), 5),
    )
    assert np.allclose(alone, copied)


def test_without_a_difference_p_and_the_interval_err_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 60, 2000))
    results = compare(
        one,
        other,
        np.arange(60),
        rounds=1000,
    )
    assert np.mean([each.p < 0.1 for each in results]) == pytest.approx(0.1, abs=0.04)
    assert np.mean([each.low <= 0 <= each.high for each in results]) == pytest.approx(
        0.94,
        abs=0.03,
    )
    assert min(each.holm for each in results) >= min(each.p for each in results)


@given(
    st.lists(
        st.floats(0, 1),
        min_size=1,
        max_size=8,
    ),
)
def test_holm_rejects_step_by_step(values: list[float]) -> None:
    for level in (0.01, 0.05, 0.3):
        rejected = [False] * len(values)
        for rank, place in enumerate(
            sorted(
                range(len(values)),
                key=values.__getitem__,
            ),
        ):
            if values[place] * (len(values) - rank) > level:
                break
            rejected[place] = True
        assert [p <= level for p in holm(values)] == rejected
