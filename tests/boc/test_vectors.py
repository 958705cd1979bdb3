"""Unit rows against a loop in double precision."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from boc.vectors import unit_rows

NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32)


@given(
    rows=st.sampled_from([np.float32, np.float64]).flatmap(
        lambda t: arrays(t, (4, 9), elements=NUMBERS),
    ),
)
def test_unit_rows(rows: NDArray[Any]) -> None:
    unit = unit_rows(rows)
    assert unit.dtype == np.float32
    for row, found in zip(
        rows.tolist(),
        unit.tolist(),
        strict=True,
    ):
        length = math.hypot(*row)
        assert found == pytest.approx(
            [x / length if length else 0.0 for x in row],
            abs=2e-6,
        )


def test_unit_rows_of_nothing() -> None:
    assert unit_rows(np.empty((0, 3), np.float32)).shape == (0, 3)
    assert unit_rows(np.empty((2, 0), np.float32)).shape == (2, 0)
