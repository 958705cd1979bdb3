"""Strings side by side: what is taken, found, and refused."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from indexing.embedded import string_column
from indexing.embedded.string_column import Strings

WAYS = ["numpy"] if string_column._search is None else ["compiled", "numpy"]


@pytest.mark.parametrize("way", WAYS)
@given(values=st.lists(st.text(max_size=6), min_size=1), data=st.data())
def test_what_is_taken_is_what_was_put(way: str, values: list[str], data: st.DataObject):
    rows = data.draw(st.lists(st.integers(0, len(values) - 1)))
    with pytest.MonkeyPatch.context() as patch:
        if way == "numpy":
            patch.setattr(string_column, "_search", None)
        strings = Strings.of(values)
        assert strings.take(np.array(rows, np.int64)) == [values[row] for row in rows]
    assert [strings[i] for i in range(len(strings))] == values


@pytest.mark.parametrize("way", WAYS)
@given(values=st.sets(st.text(max_size=3)), value=st.text(max_size=3) | st.just("\udc80"))
def test_a_value_is_found_among_sorted_ones(way: str, values: set[str], value: str):
    ordered = sorted(values)
    with pytest.MonkeyPatch.context() as patch:
        if way == "numpy":
            patch.setattr(string_column, "_search", None)
        strings = Strings.of(ordered)
        assert [strings.find(each) for each in ordered] == list(range(len(ordered)))
        assert strings.find(value) == (ordered.index(value) if value in values else None)


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
def test_a_string_that_is_not_there_is_refused(ends: list[int], row: int):
    strings = Strings(np.frombuffer(b"ab", np.uint8), np.array(ends))
    with pytest.raises(ValueError, match=f"no string {row} of 1"):
        strings.take(np.array([row]))
    if row == 0:
        with pytest.raises(ValueError, match="no string 0 of 1"):
            strings.find("a")


@pytest.mark.skipif(string_column._search is None, reason="not built here")
def test_what_cannot_be_looked_for_is_refused():
    none = np.zeros(0, np.int64)
    data = np.zeros(0, np.uint8)
    assert Strings(data, none).find("a") is None
    for given_ in (("a", data), (b"a", data, none), ("a", none, none), ("a", data, data)):
        with pytest.raises((TypeError, ValueError)):
            string_column._search.find(*given_)
