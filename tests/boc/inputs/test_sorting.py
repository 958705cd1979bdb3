"""The order of hits by a metadata field."""

from dataclasses import replace

from hypothesis import given, strategies as st

from boc.inputs.metadata import by_field, check_sort
from boc.types import Hit
from tests.oracles import picture

VALUES = st.one_of(
    st.none(),
    st.integers(0, 3),
    st.lists(
        st.integers(0, 3),
        min_size=1,
        max_size=2,
    ),
)


@given(
    values=st.lists(VALUES, max_size=8),
    falls=st.booleans(),
)
def test_hits_sorted_by_field_equal_a_slow_sort(
    values: list[int | list[int] | None],
    falls: bool,
):
    hits = []
    for i, value in enumerate(values):
        item = replace(
            picture(f"{i}"),
            fields={} if value is None else {"year": value},
        )
        hits.append(Hit(item, -float(i)))
    left = list(zip(values, hits, strict=True))
    expected = []
    for year in range(3, -1, -1) if falls else range(4):
        for value, hit in left:
            years = [value] if isinstance(value, int) else value or []
            if years and (max if falls else min)(years) == year:
                expected.append(hit)
    expected += [hit for value, hit in left if value is None]
    assert (
        by_field(
            hits,
            check_sort(
                "-year" if falls else "year",
                {"year": "integer"},
            ),
        )
        == expected
    )
