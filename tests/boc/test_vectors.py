"""Rows of vectors against loops in double precision."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from boc.vectors import are_plain, plain_rows, unit_rows

NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32)
TYPES = st.sampled_from([np.float32, np.float64, np.float16, np.int16, np.bool_, ">f4"])
ROWS = TYPES.flatmap(lambda dtype: arrays(dtype, st.tuples(st.integers(0, 3), st.integers(1, 3))))


@given(
    rows=st.sampled_from([np.float32, np.float64]).flatmap(
        lambda t: arrays(t, (4, 9), elements=NUMBERS),
    ),
)
def test_unit_rows(rows: NDArray[Any]):
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


@example(rows=np.ones((2, 3), np.float32), transposed=True, width=2)
@given(rows=ROWS, transposed=st.booleans(), width=st.integers(1, 3))
def test_plain_rows_are_contiguous_finite_float32(
    rows: NDArray[Any],
    transposed: bool,
    width: int,
):
    rows = rows.T if transposed else rows
    count, dim = rows.shape
    squares = sum(float(x) * float(x) for row in rows.tolist() for x in row)
    assume(not 1e38 < squares < 1e39)  # the bound of float32, where rounding decides
    finite = squares < 1e39
    kept = rows.dtype == np.dtype("=f4") and rows.flags.c_contiguous
    assert are_plain(rows, width) == (kept and finite and count > 0 and dim == width)
    assert not are_plain(rows.tolist(), width)
    if finite:
        plain = plain_rows(rows, dim, "queries")
        assert plain.dtype == np.float32
        assert np.array_equal(plain, rows.astype(np.float32))
        assert are_plain(plain, dim) == (count > 0)


def test_unit_rows_of_nothing():
    assert unit_rows(np.empty((0, 3), np.float32)).shape == (0, 3)
    assert unit_rows(np.empty((2, 0), np.float32)).shape == (2, 0)
