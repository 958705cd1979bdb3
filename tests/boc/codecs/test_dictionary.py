"""The dictionary code against slow loops, and what it is for: few postings at high recall."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from numpy.random import default_rng

from boc.clustering.cell_index import rounded
from boc.codecs import SurrogateCodec, global_code
from boc.codecs.dictionary import (
    CHOICE,
    Dictionary,
    dictionary_steps,
    pursuit,
    quantized,
    query_terms,
    vocabulary_size,
)
from boc.types import Embeddings
from boc.vectors import Doubles, Floats, Ints, unit_rows
from tests.oracles import assert_canonical, same_matrix


def gaussian(seed: int, n: int, width: int = 5) -> Floats:
    return default_rng(seed).standard_normal((n, width)).astype(np.float32)


def as_held(X: Floats) -> Doubles:
    """The directions of rows as they are in 8 bits."""
    rows, scales = rounded(X)
    return rows * scales[:, None].astype(np.float64)


def slow_document(
    x: Doubles,
    centroids: Doubles,
    z: int,
) -> tuple[dict[int, float], float]:
    """Orthogonal matching pursuit in float64, among the centroids nearest to ``x``, and the least
    lead of a choice."""
    near = sorted(range(len(centroids)), key=lambda j: -float(centroids[j] @ x))[: CHOICE * z]
    chosen = []
    remainder = x
    weights = np.empty(0)
    lead = math.inf
    for _ in range(min(z, len(near))):
        rest = sorted(
            (j for j in near if j not in chosen),
            key=lambda j: -float(centroids[j] @ remainder),
        )
        chosen.append(rest[0])
        if len(rest) > 1:
            lead = min(lead, float((centroids[rest[0]] - centroids[rest[1]]) @ remainder))
        weights = np.linalg.lstsq(
            centroids[chosen].T,
            x,
            rcond=None,
        )[0]
        remainder = x - weights @ centroids[chosen]
    return dict(
        zip(
            chosen,
            weights.tolist(),
            strict=True,
        ),
    ), lead


@pytest.mark.slow
@given(
    n=st.integers(1, 30),
    terms=st.integers(1, 40),
    z=st.integers(1, 4),
    bits=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_documents_are_matching_pursuits(n: int, terms: int, z: int, bits: int, seed: int) -> None:
    X = gaussian(seed, n)
    step = Dictionary(
        terms,
        z=z,
        bits=bits,
    ).fit(gaussian(seed + 1, 40))
    terms_of = step.transform(X)
    assert_canonical(terms_of, (n, len(step.centroids_)))
    top = 2**bits - 1
    for row, x in zip(
        terms_of.toarray(),
        as_held(X),
        strict=True,
    ):
        expected, lead = slow_document(
            x,
            step.centroids_ * step.scales_[:, None].astype(np.float64),
            z,
        )
        assume(lead > 1e-4)  # float32 decides otherwise between equals
        assert set(np.flatnonzero(row)) == set(expected)
        for j, weight in expected.items():
            assert abs(row[j] - min(max(weight * top, 1), top)) <= 0.5 + 0.02 * top


@pytest.mark.slow
@given(
    n=st.integers(0, 4),
    z=st.integers(1, 40),
    top=st.integers(1, 300),
    seed=st.integers(0, 99),
)
def test_weights_become_whole_numbers(n: int, z: int, top: int, seed: int) -> None:
    values = [
        0,
        -1,
        0.5 / top,
        1.5 / top,
        0.3,
        1,
        2,
        1e9,
    ]
    weights = default_rng(seed).choice(np.float32(values), (n, z))
    found = quantized(weights, top)
    assert found.dtype == np.int32
    assert found.tolist() == [
        [min(max(round(weight * top), 1), top) for weight in row] for row in weights.tolist()
    ]


@given(
    n=st.integers(0, 4),
    z=st.integers(1, 40),
    top=st.integers(1, 511),
    heat=st.floats(0.01, 2),
    seed=st.integers(0, 99),
)
def test_weights_of_a_temperature(n: int, z: int, top: int, heat: float, seed: int) -> None:
    cosines = (
        default_rng(seed)
        .uniform(
            -1,
            1,
            (n, z),
        )
        .astype(np.float32)
    )
    for row, frequencies in zip(
        cosines.tolist(),
        quantized(
            cosines,
            top,
            heat,
        ).tolist(),
        strict=True,
    ):
        products = [math.exp((cosine - max(row)) / heat) * top for cosine in row]
        assert frequencies == [max(round(product), 1) for product in products]


@given(
    n=st.integers(0, 5),
    terms=st.integers(1, 30),
    z=st.integers(1, 40),
    bits=st.integers(1, 9),
    heat=st.floats(0.01, 2),
    seed=st.integers(0, 99),
)
def test_terms_of_a_query_are_its_nearest_centroids(
    n: int,
    terms: int,
    z: int,
    bits: int,
    heat: float,
    seed: int,
) -> None:
    step = Dictionary(
        terms,
        query_z=z,
        bits=bits,
        temperature=heat,
    ).fit(gaussian(seed, 40))
    code = step.query_code(gaussian(seed + 1, 1)[0])
    top = 2**bits - 1
    X = np.concatenate(
        [gaussian(seed + 2, n), code.mean[None]],
    )  # the last is zero without the mean
    found = query_terms(code, X)
    assert_canonical(found, (n + 1, len(step.centroids_)))
    assert not found[[n]].nnz
    whole, scales = rounded(X[:n] - code.mean)
    products = whole.astype(np.int64) @ step.centroids_.astype(np.int64).T
    for i, row in enumerate(found.toarray()[:n].tolist()):
        cosines = (products[i].astype(np.float32) * step.scales_ * scales[i]).tolist()
        nearest = sorted(range(len(cosines)), key=lambda j: (-cosines[j], j))[:z]
        weights = {j: math.exp((cosines[j] - cosines[nearest[0]]) / heat) * top for j in nearest}
        assert {j for j, weight in enumerate(row) if weight} == set(nearest)
        assert all(abs(row[j] - max(weight, 1)) <= 0.5 + 1e-3 for j, weight in weights.items())


def pursued(
    X: Floats,
    candidates: Floats,
    z: int,
) -> tuple[Ints, Floats]:
    gram = candidates @ candidates.transpose(
        0,
        2,
        1,
    )
    rows = np.arange(len(X))
    return pursuit(
        np.einsum(
            "nmd,nd->nm",
            candidates,
            X,
        ),
        lambda one: gram[rows, one],
        z,
    )


def test_two_equal_candidates_do_not_break_it() -> None:
    _, weights = pursued(
        unit_rows(np.array([[1.0, 0.0]])),
        unit_rows(np.array([[1.0, 1.0], [1.0, 1.0]]))[None],
        2,
    )
    assert np.isfinite(weights).all()


@pytest.mark.parametrize(
    "factor",
    [
        1e-100,
        1e-30,
        0.03,
        70,
        1e30,
        1e100,
    ],
)
def test_only_directions_count(factor: float) -> None:
    """Also of rows beyond float32."""
    X = gaussian(3, 8).astype(np.float64)
    step = Dictionary(6, bits=4).fit(X)
    assert abs(step.transform(X) - step.transform(factor * X)).max() <= 1
    assert abs(step.encode_queries(X, "text") - step.encode_queries(factor * X, "text")).max() <= 1


def test_a_vector_without_direction_has_no_terms() -> None:
    step = Dictionary(4).fit(gaussian(0, 10))
    X = np.stack([np.zeros(5, np.float32), gaussian(1, 1)[0]])
    assert np.diff(step.transform(X).indptr).tolist() == [0, 2]
    assert np.diff(step.encode_queries(X, "text").indptr).tolist() == [0, 4]
    assert step.encode_queries(X[:1], "text").nnz == 0
    assert step.encode_queries(X[1:], "text").nnz == 4


def test_vocabularies_grow_with_the_collection() -> None:
    sizes = [vocabulary_size(n) for n in (1, 12, 1000, 10_000, 100_000, 10**6, 10**9)]
    assert sizes == [
        1,
        4,
        256,
        2048,
        8192,
        65_536,
        262_144,
    ]
    assert len(Dictionary().fit(gaussian(0, 1000)).centroids_) == 256


def test_never_more_terms_than_distinct_directions() -> None:
    X = np.repeat(
        gaussian(0, 7),
        5,
        axis=0,
    )
    assert len(Dictionary(1000).fit(X).centroids_) == 7


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"terms": 0}, "terms must be a whole number between 1 and 262144, got 0"),
        ({"terms": 2**18 + 1}, "terms must be a whole number between 1 and 262144, got 262145"),
        ({"z": 0}, "z must be a whole number between 1 and 16, got 0"),
        ({"z": 17}, "z must be a whole number between 1 and 16, got 17"),
        ({"query_z": 0}, "query_z must be a whole number between 1 and 2147483648, got 0"),
        ({"bits": 16}, "bits must be a whole number between 1 and 15, got 16"),
        ({"temperature": 0}, "temperature must be a number greater than 0, got 0"),
        ({"temperature": math.nan}, "temperature must be a number greater than 0, got nan"),
    ],
)
def test_parameters_out_of_range_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dictionary(**wrong).fit(gaussian(0, 10))


def test_the_vocabulary_follows_from_the_collection_not_from_the_sample() -> None:
    assert Dictionary().sample_rows(1_000_000) == 12 * 65_536
    assert Dictionary(terms=7).sample_rows(1_000_000) == 12 * 7
    sample = Embeddings("image", gaussian(0, 200))
    for steps, n_items, expected in (
        (dictionary_steps(), None, 64),
        (dictionary_steps(), 400, 128),
        (dictionary_steps(terms=7), 400, 7),
    ):
        codec = SurrogateCodec(steps)
        before = [step.get_params() for step in codec.steps]
        assert codec.fit(sample, n_items=n_items).n_terms == expected
        assert [step.get_params() for step in codec.steps] == before


def test_what_is_learned_does_not_depend_on_the_blocks(monkeypatch) -> None:
    samples = Embeddings("image", gaussian(0, 90)), Embeddings("text", gaussian(1, 60))
    whole = global_code("dictionary", terms=16).fit(*samples)
    monkeypatch.setattr("boc.types.BLOCK", 7)
    assert sum(len(block) for block in samples[0].blocks()) == 90
    parts = global_code("dictionary", terms=16).fit(*samples)
    for step, other in zip(
        whole.steps,
        parts.steps,
        strict=True,
    ):
        for name in step.learned:
            assert same_matrix(getattr(step, name), getattr(other, name))
