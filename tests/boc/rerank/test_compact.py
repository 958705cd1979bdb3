"""Compact codes: the same with and without the native module, and estimates near the products."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from boc.names import VECTOR_DTYPES
from boc.rerank import compact as module
from boc.rerank.compact import LEVELS, PER_BYTE, ROUNDS, CompactCode, CompactRows
from boc.rerank.storage import store_rows


def rows_of(n: int, d: int, seed: int) -> NDArray[np.float32]:
    found = np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)
    return found / np.float32(d**0.5)


def code_of(d: int) -> CompactCode:
    return CompactCode(rows_of(2, d, d) * np.float32(0.3))


def hadamard(values: list[float]) -> list[float]:
    """By its definition: sums of pairs of numbers half the length apart beside their differences,
    log2(p) times."""
    p = len(values)
    passes = p.bit_length() - 1
    for _ in range(passes):
        pairs = [(values[i], values[i + p // 2]) for i in range(p // 2)]
        values = [each for a, b in pairs for each in (a + b, a - b)]
    return [value / p**0.5 for value in values]


@given(
    n=st.integers(0, 5),
    d=st.integers(1, 70),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(["float32", *VECTOR_DTYPES]),
)
def test_codes_and_estimates_are_those_of_slow_loops(n: int, d: int, seed: int, dtype: str) -> None:
    code = code_of(d)
    rows = rows_of(n, d, seed)
    if n > 2:
        rows[1] = 0
        rows[2, 0] = np.inf
    vectors = store_rows(rows, dtype)
    modality = np.arange(n, dtype=np.uint8) % 2
    query = rows_of(1, d, seed + 1)[0]
    chosen = np.arange(n)[::-1].copy()
    compact = code.encode(vectors, modality)
    estimates = code.estimates(query, compact, chosen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_rescore", None)
        twin = code.encode(vectors, modality)
    assert compact.codes.tobytes() == twin.codes.tobytes()
    assert compact.scales.tobytes() == twin.scales.tobytes()
    whole = np.rint(rotated(code, query) * (127 / max(abs(rotated(code, query)).max(), 1e-30)))
    for i, estimate in zip(chosen.tolist(), estimates.tolist(), strict=True):
        levels = [
            compact.codes[i, j % code.width] >> (8 // PER_BYTE * (j // code.width)) & (LEVELS - 1)
            for j in range(d)
        ]
        product = sum(
            (2 * int(level) - LEVELS + 1) * q
            for level, q in zip(levels, whole.tolist(), strict=True)
        )
        assert estimate == pytest.approx(product * float(compact.scales[i]), rel=1e-5, abs=1e-5)


def rotated(code: CompactCode, row: NDArray[np.float32]) -> NDArray[np.float64]:
    d = len(row)
    p = 1 << (d.bit_length() - 1)
    values = row.astype(np.float64)
    for r in range(ROUNDS):
        values = values * code.signs[r]
        values[:p] = hadamard(values[:p].tolist())
        if p < d:
            values[d - p :] = hadamard(values[d - p :].tolist())
    return values


@given(d=st.integers(1, 300), seed=st.integers(0, 99))
def test_rotations_keep_lengths_and_products(d: int, seed: int) -> None:
    code = code_of(d)
    rows = rows_of(3, d, seed)
    turned = code._rotate(rows.T.copy()).T
    assert turned @ turned.T == pytest.approx(rows @ rows.T, abs=1e-5)
    assert turned[0] == pytest.approx(rotated(code, rows[0]), abs=1e-5)


def test_estimates_are_near_the_products() -> None:
    d = 384
    n = 500
    code = code_of(d)
    vectors = rows_of(n, d, 1)
    vectors[:, :40] *= 6  # of other sizes, which the rotation evens
    modality = np.ones(n, np.uint8)
    query = rows_of(1, d, 2)[0]
    centred = vectors - code.means[1]
    estimates = code.estimates(query, code.encode(vectors, modality), np.arange(n))
    scale = 127 / np.abs(rotated(code, query)).max()
    errors = estimates / scale - centred @ query
    lengths = np.linalg.norm(centred, axis=1) * np.linalg.norm(query)
    assert np.sqrt(np.mean((errors / lengths) ** 2)) == pytest.approx(
        (0.1175 / 0.8825 / d) ** 0.5,
        rel=0.15,
    )


def test_what_does_not_fit_is_refused() -> None:
    code = code_of(8)
    found = code.encode(rows_of(3, 8, 1), np.zeros(3, np.uint8))
    with pytest.raises(IndexError):
        code.estimates(rows_of(1, 8, 1)[0], found, np.array([3]))
    with pytest.raises(ValueError, match="2 compact codes"):
        CompactRows(found.codes[:2], found.scales)
    with pytest.raises(ValueError, match="compact codes are int8"):
        CompactRows(found.codes.view(np.int8), found.scales)


def test_the_means_are_those_that_the_code_of_the_index_subtracts() -> None:
    means = rows_of(2, 6, 1)
    arrays = {"1.labels_": np.array(["image", "text"]), "1.means_": means}
    config = {"steps": [{"name": "RandomRotation"}, {"name": "Center"}]}
    found = CompactCode.of(config, arrays, 6)
    assert found is not None
    assert np.array_equal(found.means, means)
    one = CompactCode.of(config, {"1.labels_": np.array(["text"]), "1.means_": means[:1]}, 6)
    assert one is not None
    assert np.array_equal(one.means, means[[0, 0]])  # what has no mean of its own gets that of all
    assert CompactCode.of(config, arrays, 7) is None
    assert CompactCode.of({"steps": [{"name": "CReLU"}]}, {}, 6) is None
