"""Compact codes against slow loops; tests/indexing/embedded/test_ranking.py has their estimates."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from boc.names import VECTOR_DTYPES
from boc.rerank import compact as module
from boc.rerank.compact import ROUNDS, CompactCode, CompactRows
from boc.rerank.storage import restore_rows, store_rows
from boc.vectors import Doubles, Floats, Ints

pytestmark = pytest.mark.skipif(module._rescore is None, reason="boc.rerank._rescore is not built")


def rows_of(n: int, d: int, seed: int) -> Floats:
    rows = np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)
    return rows / np.float32(d**0.5)


def code_of(d: int) -> CompactCode:
    return CompactCode(
        rows_of(
            2,
            d,
            d,
        )
        * np.float32(0.3),
    )


def hadamard(values: NDArray[Any]) -> NDArray[Any]:
    """Sums of numbers half the length apart beside their differences, log2(p) times."""
    p = len(values)
    for _ in range(p.bit_length() - 1):
        first, second = values.reshape(2, -1)
        values = np.stack([first + second, first - second], axis=1).ravel()
    return values * values.dtype.type(1 / np.sqrt(p))


def rotated(code: CompactCode, row: NDArray[Any]) -> NDArray[Any]:
    d = len(row)
    p = 1 << (d.bit_length() - 1)
    values = row.copy()
    for r in range(ROUNDS):
        values *= code.signs[r]
        values[:p] = hadamard(values[:p])
        if p < d:
            values[d - p :] = hadamard(values[d - p :])
    return values


def rounded(values: Floats, largest: int) -> tuple[Doubles, float]:
    """Whole numbers, the largest of which becomes ``largest``, and their unit."""
    most = float(np.abs(values).max(initial=0))
    if not 0 < most < np.inf:
        return np.zeros(len(values)), 0.0
    return np.rint(values.astype(np.float64) * (largest / most)), most / largest


def levels_of(codes: NDArray[np.uint8], d: int) -> Ints:
    """The levels -3, -1, 1, 3 of the components of a row."""
    parts = (
        codes[None, :]
        >> np.array(
            [
                [0],
                [2],
                [4],
                [6],
            ],
            np.uint8,
        )
        & 3
    )
    return 2 * parts.ravel()[:d].astype(np.int64) - 3


def estimates(
    code: CompactCode,
    query: Floats,
    stored: CompactRows,
) -> Floats:
    """The products of ``query`` with all rows, but for a factor and a constant."""
    whole, _ = rounded(rotated(code, query), 127)
    sums = [levels_of(row, len(query)) @ whole for row in stored.codes]
    return np.array(sums, np.float32) * stored.scales


@given(
    n=st.integers(0, 5),
    d=st.integers(1, 70),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(["float32", *VECTOR_DTYPES]),
)
def test_codes_equal_slow_loops(n: int, d: int, seed: int, dtype: str):
    code = code_of(d)
    rows = rows_of(
        n,
        d,
        seed,
    )
    if n > 2:
        rows[1] = 0
        rows[2, 0] = np.inf
    vectors = store_rows(rows, dtype)
    modality = np.arange(n, dtype=np.uint8) % 2
    stored = code.encode(vectors, modality)
    with np.errstate(invalid="ignore"):
        centred = restore_rows(vectors).astype(np.float32) - code.means[modality]
        turned = [rotated(code, row) for row in centred]
    for row, codes, scale in zip(
        turned,
        stored.codes,
        stored.scales,
        strict=True,
    ):
        whole, unit = rounded(row, 32767)
        width = 0.996 * np.sqrt(whole @ whole / d)
        expected = 2 * (whole >= 0) - 1 + 2 * (whole >= width) - 2 * (whole < -width)
        assert levels_of(codes, d).tolist() == expected.tolist()
        product = whole @ expected
        assert scale == np.float32(whole @ whole / product * unit if product > 0 else 0)


@given(d=st.integers(1, 300), seed=st.integers(0, 99))
def test_rotations_keep_products(d: int, seed: int):
    rows = rows_of(
        3,
        d,
        seed,
    ).astype(np.float64)
    turned = np.array([rotated(code_of(d), row) for row in rows])
    assert turned @ turned.T == pytest.approx(rows @ rows.T, abs=1e-5)


def test_estimates_are_near_products():
    d = 384
    n = 500
    code = code_of(d)
    vectors = rows_of(
        n,
        d,
        1,
    )
    vectors[:, :40] *= 6  # of other sizes, which the rotation evens
    query = rows_of(
        1,
        d,
        2,
    )[0]
    centred = vectors - code.means[1]
    scale = 127 / np.abs(rotated(code, query)).max()
    errors = (
        estimates(
            code,
            query,
            code.encode(vectors, np.ones(n, np.uint8)),
        )
        / scale
        - centred @ query
    )
    lengths = np.linalg.norm(centred, axis=1) * np.linalg.norm(query)
    expected = (0.1175 / 0.8825 / d) ** 0.5
    assert np.sqrt(np.mean((errors / lengths) ** 2)) == pytest.approx(expected, rel=0.15)


def test_means_are_those_of_the_index():
    means = rows_of(
        2,
        6,
        1,
    )
    arrays = {"1.labels_": np.array(["image", "text"]), "1.means_": means}
    config = {"steps": [{"name": "RandomRotation"}, {"name": "Center"}]}
    code = CompactCode.of(
        config,
        arrays,
        6,
    )
    assert code is not None
    assert np.array_equal(code.means, means)
    one = CompactCode.of(
        config,
        {"1.labels_": np.array(["text"]), "1.means_": means[:1]},
        6,
    )
    assert one is not None
    assert np.array_equal(one.means, means[[0, 0]])
    assert (
        CompactCode.of(
            config,
            arrays,
            7,
        )
        is None
    )
    assert (
        CompactCode.of(
            {"steps": [{"name": "CReLU"}]},
            {},
            6,
        )
        is None
    )
