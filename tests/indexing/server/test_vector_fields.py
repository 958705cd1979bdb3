"""How vectors are stored on servers and scored: scripts decode what was stored, scores become
products again."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from boc.errors import BackendError
from boc.vectors import unit_rows
from indexing.server.vector_fields import (
    FLOAT16,
    FLOAT32,
    LARGEST,
    VECTOR_FIELDS,
    Binary,
    DenseByte,
    DenseFloat,
    KnnByte,
    VectorField,
    quantise,
)

DTYPES = st.sampled_from(["float16", "float32"])
fields = st.builds(
    lambda field, dtype: field.at("boc.vector", dtype),
    st.sampled_from(list(VECTOR_FIELDS.values())),
    DTYPES,
)


def vectors_of(seed: int, count: int, dim: int) -> NDArray[np.float32]:
    found = unit_rows(np.random.default_rng(seed).standard_normal((count, dim)))
    return found.astype(np.float32)


BYTES = pytest.mark.parametrize("kind", [KnnByte, DenseByte])


def numbers(stored: Any) -> NDArray[np.float32]:
    """The components of byte vectors, of which hexadecimal digits stand for signed bytes."""
    rows = [
        np.frombuffer(bytes.fromhex(row), np.int8) if isinstance(row, str) else row
        for row in stored
    ]
    return np.array(rows, np.float32)


@BYTES
@given(seed=st.integers(0, 99), dim=st.integers(1, 40), dtype=DTYPES)
def test_bytes_round_to_half_a_step(
    kind: type[VectorField],
    seed: int,
    dim: int,
    dtype: str,
):
    field = kind().at("vector", dtype)
    vectors = vectors_of(seed, 5, dim).astype(dtype)
    stored = numbers(field.values(vectors))
    assert (np.abs(stored).max(axis=1) == LARGEST).all()
    step = np.abs(vectors.astype(np.float32)).max(axis=1, keepdims=True) / LARGEST
    short = stored * step - vectors.astype(np.float32)  # before it is scaled to length 1 again
    assert (np.abs(short) <= step / 2 + 1e-6).all()
    read = field.decode(stored.tolist())
    assert read.dtype == dtype
    assert (np.abs(read.astype(np.float32) - vectors) <= step / 2 * (1 + dim**0.5) + 2e-3).all()


@pytest.mark.parametrize(
    ("kind", "scored"),
    [(KnnByte, lambda x: 1 + x), (DenseByte, lambda x: (1 + x) / 2)],
)
@given(seed=st.integers(0, 99), dim=st.integers(1, 40), length=st.floats(0.1, 10))
def test_products_of_bytes(
    kind: type[VectorField],
    scored: Any,
    seed: int,
    dim: int,
    length: float,
):
    field = kind().at("vector", "float32")
    query, *items = vectors_of(seed, 4, dim)
    query = query * np.float32(length)
    asked = quantise(query[None])[0].astype(float)
    for item, row in zip(items, numbers(field.values(np.array(items))), strict=True):
        cosine = asked @ row / np.linalg.norm(asked) / np.linalg.norm(row)
        found = field.products([scored(cosine)], query)[0]
        assert abs(found - query @ item) <= 2 * length * dim**0.5 / LARGEST + 1e-5 * length


@given(product=st.floats(-20, 20))
def test_products_of_floats(product: float):
    """Scores are those of the similarity, as Lucene defines it."""
    score = np.float32(1 / (1 - product) if product < 0 else product + 1)
    (found,) = DenseFloat().products([float(score)], np.ones(1, np.float32))
    assert found == pytest.approx(product, abs=1e-4 * (1 + abs(product)) ** 2)


@given(seed=st.integers(0, 99), dim=st.integers(1, 40))
def test_byte_query_of_script_and_knn(seed: int, dim: int):
    query = vectors_of(seed, 1, dim)[0]
    field = DenseByte()
    sought = field.best({"match_all": {}}, query, 5)["knn"]["query_vector"]
    assert numbers([sought]).tolist() == [field.script(query)["params"]["query"].tolist()]


@BYTES
@pytest.mark.parametrize("length", [0.0, 0.5, 0.98, 1.02])
def test_bytes_refuse_other_lengths(kind: type[VectorField], length: float):
    vectors = vectors_of(0, 3, 4)
    kind().check(vectors)
    vectors[1] *= length
    with pytest.raises(
        BackendError,
        match=r"stores vectors of length 1, got one of length .*leave it out",
    ):
        kind().check(vectors)
    Binary().check(vectors)


def painless(source: str, query: NDArray[np.float32], data: bytes) -> float:
    """The sum whose score a script returns, its own expressions evaluated with Java's numbers:
    bytes and ints are signed, ints have 32 bits, products and sums of floats are rounded to
    float32."""
    signed = np.frombuffer(data, np.int8).tolist()
    step = int(re.findall(r"at \+= (\d)", source)[0])
    steps = dict(re.findall(r"int (\w+) = ([^;]+);", source.partition("++i")[2]))
    decoded = re.findall(r"intBitsToFloat\((.+?)\);", source)[0]
    factor = [float(x) for x in re.findall(r"sum \*= ([0-9.E]+);", source)] or [1.0]
    total = np.float32(0)
    for i, weight in enumerate(query):
        known = {"data": signed, "at": i * step}
        for name, expression in steps.items():
            known[name] = int32(eval(expression, {}, known))
        total = np.float32(total + np.float32(weight * as_float(eval(decoded, {}, known))))
    return float(total) * factor[0]


def int32(value: int) -> int:
    return int(np.uint32(value & 0xFFFFFFFF).view(np.int32))


def as_float(bits: int) -> np.float32:
    return np.uint32(bits & 0xFFFFFFFF).view(np.float32)


@pytest.mark.slow
def test_script_decodes_float16():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    every = every[np.isfinite(every)]
    assert len(every) == 2 * 31 * 1024
    one = np.ones(1, np.float32)
    with np.errstate(under="ignore"):
        found = [painless(FLOAT16, one, value.tobytes()) for value in every]
    assert found == every.astype(float).tolist()


@given(
    values=st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        min_size=1,
        max_size=6,
    ),
)
def test_script_decodes_float32(values: list[float]):
    for value in values:
        assert painless(FLOAT32, np.ones(1, np.float32), np.float32(value).tobytes()) == value
