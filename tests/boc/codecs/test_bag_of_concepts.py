"""Bag of Concepts against literal transcriptions of its equations, and the encoder's kinds of
concept sets."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.random import default_rng

from bench.paper import variants
from boc.clustering import kmeans
from boc.clustering.codebook import Codebook
from boc.clustering.kmeans import nearest
from boc.codecs import concept_code
from boc.codecs.bag_of_concepts import HardAssignment, SoftAssignment
from boc.errors import BocError
from boc.labels import Label, pack_labels
from boc.types import MODALITIES, Embeddings, Identity, Modality, Ragged
from boc.vectors import Floats
from tests.oracles import assert_canonical, same_matrix

WIDTH = 4
SIZES = st.lists(
    st.integers(0, 5),
    min_size=1,
    max_size=6,
)
SEEDS = st.integers(0, 2**16)


def random_sets(sizes: list[int], seed: int, scale: float = 1.0) -> Ragged:
    rng = default_rng(seed)
    return Ragged.from_sets([scale * rng.standard_normal((m, WIDTH)) for m in sizes], WIDTH)


def book(p: int, seed: int = 0) -> Codebook:
    centroids = default_rng(seed).standard_normal((p, WIDTH)).astype(np.float32)
    identity = Identity(
        "tern:somewhere",
        "ab" * 32,
        WIDTH,
    )
    return Codebook(
        centroids,
        identity,
        ("cd",),
        {},
        10,
    )


def distance(v: Floats, c: Floats) -> float:
    return math.sqrt(
        math.fsum(
            (float(a) - float(b)) ** 2
            for a, b in zip(
                v,
                c,
                strict=True,
            )
        ),
    )


def slow_hard(sets: Ragged, C: Floats) -> list[list[int]]:
    rows = [[0] * len(C) for _ in range(len(sets))]
    for i, row in enumerate(rows):
        for v in sets[i]:
            row[min(range(len(C)), key=lambda k: distance(v, C[k]))] += 1
    return rows


def slow_soft(
    sets: Ragged,
    C: Floats,
    kind: str,
    aggregate: str,
    z: int | None,
) -> list[list[float]]:
    result = []
    budget = len(C) if z is None else min(z, len(C))
    for i in range(len(sets)):
        S = []
        for v in sets[i]:
            D = [distance(v, c) for c in C]
            similar = [1 / (1 + d) for d in D]
            if kind == "deviation":
                S.append([s - sum(similar) / len(D) for s in similar])
            else:
                nearest_of = sorted(range(len(C)), key=lambda k: D[k])[:budget]
                S.append([similar[k] if k in nearest_of else 0.0 for k in range(len(C))])
        columns = [[row[k] for row in S] or [0.0] for k in range(len(C))]
        row = [sum(column) if aggregate == "sum" else max(column) for column in columns]
        if kind == "deviation":
            least = sorted(row, reverse=True)[budget - 1]
            row = [value**0.7 if value >= least and value > 1e-6 else 0.0 for value in row]
        result.append(row)
    return result


@settings(max_examples=60)
@given(
    sizes=SIZES,
    p=st.integers(1, 9),
    seed=SEEDS,
    labels=st.none() | st.just(pack_labels([Label(("red",))])),
)
def test_hard_assignment_counts_nearest_centroids(
    sizes: list[int],
    p: int,
    seed: int,
    labels: Any,
):
    sets = random_sets(sizes, seed)
    codebook = book(p, seed + 1)
    step = HardAssignment.from_codebook(replace(codebook, labels=labels))
    assert step.term_labels_.tolist() == ([] if labels is None else labels.tolist())
    terms = step.transform(sets)
    assert_canonical(terms, (len(sizes), p))
    assert terms.toarray().tolist() == slow_hard(sets, codebook.centroids)
    assert terms.sum(axis=1).tolist() == sizes


@pytest.mark.slow
@settings(max_examples=150)
@given(
    sizes=SIZES,
    p=st.integers(1, 9),
    seed=SEEDS,
    kind=st.sampled_from(SoftAssignment.choices["similarity"]),
    aggregate=st.sampled_from(SoftAssignment.choices["aggregate"]),
    z=st.none() | st.integers(1, 10),
)
def test_soft_assignment_aggregates_similarities(
    sizes: list[int],
    p: int,
    seed: int,
    kind: str,
    aggregate: str,
    z: int | None,
):
    sets = random_sets(
        sizes,
        seed,
        2.0,
    )
    codebook = book(p, seed + 1)
    step = SoftAssignment.from_codebook(
        codebook,
        similarity=kind,
        aggregate=aggregate,
        z=z,
    )
    terms = step.transform(sets)
    assert terms.dtype == np.float32
    expected = slow_soft(
        sets,
        codebook.centroids,
        kind,
        aggregate,
        z,
    )
    np.testing.assert_allclose(
        terms.toarray(),
        expected,
        rtol=1e-4,
        atol=1e-6,
    )
    assert terms.has_sorted_indices


@given(
    sizes=SIZES,
    seed=SEEDS,
    modality=st.sampled_from(MODALITIES),
    side=st.sampled_from(["documents", "queries"]),
)
def test_means_and_axes_move_concepts(
    sizes: list[int],
    seed: int,
    modality: Modality,
    side: str,
):
    sets = random_sets(sizes, seed)
    codebook = book(5, seed + 1)
    means = default_rng(seed).standard_normal((2, codebook.identity.dim)).astype(np.float32)
    axes = default_rng(seed + 2).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    for scaled in (None, axes):
        moved = sets.values - means[MODALITIES.index(modality)]
        shifted = Ragged(moved if scaled is None else moved @ scaled, sets.offsets)
        for kind in (HardAssignment, SoftAssignment):
            step = kind.from_codebook(
                replace(
                    codebook,
                    means=means,
                    axes=scaled,
                ),
            )
            terms = getattr(step, f"encode_{side}")(sets, modality)
            assert (
                terms.toarray().tolist()
                == kind.from_codebook(codebook).transform(shifted).toarray().tolist()
            )


def test_soft_query_budget():
    sets = random_sets([3, 2], 0)
    codebook = book(8)
    step = SoftAssignment.from_codebook(
        codebook,
        z=2,
        query_z=5,
    )
    assert same_matrix(step.encode_documents(sets, "image"), step.transform(sets))
    assert same_matrix(
        step.encode_queries(sets, "text"),
        SoftAssignment.from_codebook(codebook, z=5).transform(sets),
    )
    assert same_matrix(
        SoftAssignment.from_codebook(codebook, z=2).encode_queries(sets, "text"),
        step.transform(sets),
    )


@pytest.mark.parametrize("options", [{}, {"z": 3}, {"z": 3, "aggregate": "max"}])
def test_blocks_equal_whole(options: dict[str, Any]):
    sets = random_sets(
        [
            0,
            3,
            9,
            0,
            *[1, 2, 40] * 500,
            0,
        ],
        0,
    )
    codebook = book(8)
    assert len(sets.values) > kmeans.ROWS
    soft = SoftAssignment.from_codebook(codebook, **options)
    hard = HardAssignment.from_codebook(codebook)
    parts = [
        sets.take(range(start, min(start + 100, len(sets))))
        for start in range(
            0,
            len(sets),
            100,
        )
    ]
    for step, exact in ((soft, 1e-5), (hard, 0)):
        np.testing.assert_allclose(
            step.transform(sets).toarray(),
            np.concatenate([step.transform(part).toarray() for part in parts]),
            rtol=exact,
        )


@given(seed=SEEDS, z=st.integers(1, 5))
@settings(max_examples=5)
def test_nearest_of_many_rows_equals_few(seed: int, z: int):
    """faiss is asked for many, numpy for few."""
    rng = default_rng(seed)
    X, C = (
        rng.standard_normal((n, WIDTH)).astype(np.float32) + 3 for n in (kmeans.SMALL // 6 + 1, 6)
    )
    few = nearest(
        X[:30],
        C,
        z,
    )
    many = nearest(
        X,
        C,
        z,
    )
    for (columns, squared), (others, _) in ((few, many), (many, few)):
        assert np.array_equal(np.sort(columns[:30], axis=1), np.sort(others[:30], axis=1))
        np.testing.assert_allclose(
            squared[:30],
            ((X[:30, None, :] - C[columns[:30]]) ** 2).sum(axis=2),
            rtol=1e-4,
            atol=1e-4,
        )


def test_spherical_ignores_length():
    sets = random_sets([2, 3], 0)
    longer = Ragged(sets.values * 7, sets.offsets)
    for kind in (SoftAssignment, HardAssignment):
        fitted = kind.from_codebook(replace(book(5), options={"spherical": True}))
        np.testing.assert_allclose(
            fitted.transform(longer).toarray(),
            fitted.transform(sets).toarray(),
            rtol=1e-4,
            atol=1e-5,
        )


def test_kmeans_finds_clusters():
    rng = default_rng(0)
    centres = 10 * np.eye(WIDTH, dtype=np.float32)
    X = (
        np.repeat(
            centres,
            50,
            axis=0,
        )
        + rng.standard_normal((200, WIDTH)) / 10
    ).astype(np.float32)
    centroids = kmeans.kmeans(
        X,
        WIDTH,
        seed=3,
    )
    order = centroids.argmax(axis=1)
    assert sorted(order.tolist()) == [
        0,
        1,
        2,
        3,
    ]
    np.testing.assert_allclose(
        centroids,
        X.reshape(
            WIDTH,
            50,
            WIDTH,
        ).mean(axis=1)[order],
        atol=1e-4,
    )
    assert np.array_equal(
        centroids,
        kmeans.kmeans(
            X,
            WIDTH,
            seed=3,
        ),
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"z": 0}, "z must be at least 1, got 0"),
        ({"query_z": -1}, "query_z must be at least 1, got -1"),
        ({"similarity": "cosine"}, "inverse, deviation; got 'cosine'"),
        ({"aggregate": "mean"}, "sum, max; got 'mean'"),
    ],
)
def test_soft_parameters_out_of_range(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        SoftAssignment.from_codebook(book(3), **options)


@pytest.mark.parametrize("assignment", ["hard", "soft"])
def test_chain_fit_keeps_codebook(assignment: str):
    codebook = book(6)
    items = embedded(
        "image",
        [3, 0, 2],
        0,
    )
    codec = concept_code(codebook, assignment).fit(items)
    assert np.array_equal(codec.arrays()["0.centroids_"], codebook.centroids)
    assert_canonical(codec.encode_documents(items), (3, 6))


def embedded(modality: Any, sizes: list[int], seed: int) -> Embeddings:
    return Embeddings(
        modality,
        np.ones((len(sizes), WIDTH), np.float32),
        random_sets(sizes, seed),
    )


def test_unknown_assignment_or_option():
    with pytest.raises(BocError, match="'fuzzy'; known: hard, soft"):
        concept_code(book(3), "fuzzy")
    with pytest.raises(BocError, match="omit z and query_z"):
        concept_code(
            book(3),
            "hard",
            z=3,
        )


def test_items_without_concepts():
    codec = concept_code(book(3)).fit(
        embedded(
            "image",
            [2],
            0,
        ),
    )
    with pytest.raises(
        BocError,
        match=r"the items have no concept vectors; .*boc extract --set concepts=true",
    ):
        codec.encode_documents(Embeddings("image", np.ones((1, WIDTH), np.float32)))


def test_bench_drops_stopwords():
    words = [
        [
            "a",
            "dog",
            "is",
            "in",
            "##side",
        ],
        ["the"],
        [],
    ]
    texts = Embeddings(
        "text",
        np.ones((3, WIDTH), np.float32),
        random_sets([5, 1, 0], 0),
        words=words,
    )
    pictures = embedded(
        "image",
        [2],
        1,
    )
    step = variants.WithoutStopwords.from_codebook(book(4))
    concepts = step.read(texts)
    assert concepts.offsets.tolist() == [
        0,
        3,
        3,
        3,
    ]
    assert texts.concepts is not None
    assert np.array_equal(concepts.values, texts.concepts.values[[1, 3, 4]])
    assert step.read(pictures) is pictures.concepts


def test_the_largest_printed_similarity_is_that_of_the_formula_with_its_sign():
    codebook = Codebook(
        3 * np.eye(3, dtype=np.float32),
        Identity(
            "",
            "",
            3,
        ),
        (),
        {},
        0,
    )
    sets = Ragged(
        default_rng(0).standard_normal((4, 3)).astype(np.float32) - 2,
        np.array([0, 4]),
    )
    D = np.linalg.norm(sets.values[:, None] - codebook.centroids, axis=2)
    assert (D > 1).all()
    step = variants.PrintedSimilarity.from_codebook(codebook, aggregate="max")
    np.testing.assert_allclose(
        -step.transform(sets).toarray()[0],
        (1 / (1 - D)).max(axis=0),
        rtol=1e-5,
    )
