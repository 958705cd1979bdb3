"""Strings side by side: what is taken, found, and refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexing.embedded import string_column
from indexing.embedded.string_column import Strings

WAYS = ["numpy"] if string_column._search is None else ["compiled", "numpy"]


@pytest.mark.parametrize("way", WAYS)
@given(values=st.lists(st.text(max_size=6), min_size=1), data=st.data())
def test_what_is_taken_is_what_was_put(way: str, values: list[str], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(values) - 1)))
    with pytest.MonkeyPatch.context() as patch:
        if way == "numpy":
            patch.setattr(string_column, "_search", None)
        strings = Strings.of(values)
        assert strings.take(np.array(rows, np.int64)) == [values[row] for row in rows]
    assert [strings[i] for i in range(len(strings))] == values


@given(values=st.sets(st.text(max_size=3)), value=st.text(max_size=3))
def test_a_value_is_found_among_sorted_ones(values: set[str], value: str) -> None:
    ordered = sorted(values)
    assert Strings.of(ordered).find(value) == (ordered.index(value) if value in values else None)


@pytest.mark.skipif(string_column._search is None, reason="not built here")
@pytest.mark.parametrize(
    ("ends", "row"),
    [
        ([0, 2], 1),
        ([0, 2], -1),
        ([0, 3], 0),
        ([2, 0], 0),
        ([-1, 2], 0),
    ],
)
def test_a_string_that_is_not_there_is_refused(ends: list[int], row: int) -> None:
    strings = Strings(np.frombuffer(b"ab", np.uint8), np.array(ends))
    with pytest.raises(ValueError, match=f"no string {row} of 1"):
        strings.take(np.array([row]))
