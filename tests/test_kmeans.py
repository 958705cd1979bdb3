"""Centroids: the search against a full comparison, and what training promises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from boc import kmeans
from boc.kmeans import FLAT, Centroids, spherical_kmeans, unit

PATHS = ["numpy"] if kmeans._dots is None else [*kmeans._dots.paths(), "numpy"]


@contextmanager
def computing_by(path: str) -> Iterator[None]:
    """By one of the instruction sets of ``boc._dots``, or "numpy", without it."""
    with pytest.MonkeyPatch.context() as patch:
        if path == "numpy":
            patch.setattr(kmeans, "_dots", None)
            yield
        else:
            kmeans._dots.use(path)
            try:
                yield
            finally:
                kmeans._dots.use(PATHS[0])


def clustered(seed: int, clusters: int, rows: int, width: int, noise: float = 0.3) -> NDArray[np.float32]:
    """Unit vectors around random directions."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((clusters, width))
    return unit(centres[rng.integers(clusters, size=rows)] + noise * rng.standard_normal((rows, width)))


@st.composite
def in_cells(draw: st.DrawFn) -> Centroids:
    """Centroids in cells of all sizes, drawn, not learned."""
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=12))
    dtype = draw(st.sampled_from([np.float16, np.float32]))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    vectors, heads = (unit(rng.standard_normal((n, 4))).astype(dtype) for n in (sum(sizes), len(sizes)))
    return Centroids(vectors, heads, np.concatenate([[0], np.cumsum(sizes)]))


@pytest.mark.parametrize("path", PATHS)
@given(
    centroids=in_cells(), z=st.integers(1, 60), cells=st.integers(1, 14), n=st.integers(1, 5), seed=st.integers(0, 99)
)
def test_nearest_is_a_loop_over_the_cells_of_the_nearest_heads(
    path: str, centroids: Centroids, z: int, cells: int, n: int, seed: int
) -> None:
    X = unit(np.random.default_rng(seed).standard_normal((n, 4)))
    with computing_by(path):
        numbers, dots = centroids.nearest(X, z, cells)
    sizes = sorted(np.diff(centroids.starts).tolist())
    while sum(sizes[:cells]) < min(z, len(centroids)):
        cells += 1
    assert numbers.shape == dots.shape == (n, min(z, len(centroids)))
    for x, row, found in zip(X, numbers, dots, strict=True):
        heads = sorted(range(len(centroids.heads)), key=lambda i: -float(centroids.heads[i] @ x))[:cells]
        seen = [j for i in heads for j in range(centroids.starts[i], centroids.starts[i + 1])]
        expected = sorted((float(centroids.vectors[j] @ x) for j in seen), reverse=True)[: min(z, len(centroids))]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found, centroids.vectors[row] @ x, rtol=1e-5, atol=1e-6)
        assert (np.diff(found) <= 0).all()
        assert len(set(row.tolist())) == len(row)


@pytest.mark.skipif(kmeans._dots is None, reason="not built here")
@pytest.mark.parametrize("path", PATHS)
@given(values=arrays(np.float32, st.integers(1, 300), elements=st.integers(-3, 3).map(float)), data=st.data())
def test_of_equal_centroids_the_lower_numbers_are_taken(
    path: str, values: NDArray[np.float32], data: st.DataObject
) -> None:
    """By the extension, that is; the order of all others is the same as without it."""
    z = data.draw(st.integers(1, len(values)))
    centroids = Centroids(values[:, None], np.ones((1, 1), np.float32), np.array([0, len(values)]))
    with computing_by(path):
        numbers, dots = centroids.nearest(np.ones((1, 1), np.float32), z, 1)
    assert dots[0].tolist() == np.sort(values)[::-1][:z].tolist()
    if path != "numpy":
        assert numbers[0].tolist() == np.argsort(-values, kind="stable")[:z].tolist()


@pytest.mark.parametrize("path", PATHS)
def test_a_vector_that_is_no_number_finds_some_centroids_all_the_same(path: str) -> None:
    centroids = spherical_kmeans(clustered(0, 30, 500, 8), 100, 0)
    for value in (np.nan, np.inf, -np.inf):
        with computing_by(path), np.errstate(invalid="ignore"):
            numbers, _ = centroids.nearest(np.full((2, 8), value, np.float32), 10, 5)
        assert ((numbers >= 0) & (numbers < len(centroids))).all()


@pytest.mark.skipif(kmeans._dots is None, reason="not built here")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"starts": [0, 2, 9]}, "do not rise within 5 vectors"),
        ({"starts": [0, 4, 2]}, "do not rise"),
        ({"starts": [-1, 2, 5]}, "do not rise"),
        ({"starts": [0, 5]}, "starts for another number of heads"),
        ({"cells": 0}, "cells: 0 of 2"),
        ({"cells": 3}, "cells: 3 of 2"),
        ({"cells": 1, "numbers": np.empty((1, 4), np.int64), "dots": np.empty((1, 4), np.float32)}, "search more"),
        ({"numbers": np.empty((2, 1), np.int64)}, "numbers for another"),
        ({"dots": np.empty((1, 2), np.float32)}, "dots for another"),
        ({"numbers": np.empty((1, 1), np.int32)}, "numbers must have"),
        ({"heads": np.ones((2, 2), np.float32)}, "heads for queries of another width"),
        ({"vectors": np.ones((5, 4), np.float16)}, "vectors for queries of another width"),
        ({"vectors": np.ones((5, 3))}, "vectors must have"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(wrong: dict[str, Any], message: str) -> None:
    given = {
        "queries": np.ones((1, 3), np.float32),
        "heads": np.ones((2, 3), np.float16),
        "starts": [0, 2, 5],
        "vectors": np.ones((5, 3), np.float16),
        "cells": 2,
        "numbers": np.empty((1, 1), np.int64),
        "dots": np.empty((1, 1), np.float32),
    } | wrong
    given["starts"] = np.array(given["starts"])
    with pytest.raises(ValueError, match=message):
        kmeans._dots.nearest(*given.values())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@given(n=st.integers(0, 4), m=st.integers(1, 5), d=st.integers(1, 70), seed=st.integers(0, 99))
def test_gram_is_the_products_of_the_chosen_with_each_other(
    path: str, dtype: Any, n: int, m: int, d: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    vectors = (rng.standard_normal((9, d)) * 10.0 ** rng.integers(-7, 1, (9, 1))).astype(dtype)  # subnormals too
    centroids = Centroids(vectors, np.ones((1, d), np.float32), np.array([0, 9]))
    numbers = rng.integers(9, size=(n, m))
    with computing_by(path):
        found = centroids.gram(numbers)
    for products, chosen in zip(found, vectors[numbers].astype(np.float64), strict=True):
        slow = [[sum(x * y for x, y in zip(a, b, strict=True)) for b in chosen] for a in chosen]
        np.testing.assert_allclose(products, slow, rtol=1e-5, atol=1e-5 * float(np.abs(slow).max()))


@pytest.mark.skipif(kmeans._dots is None, reason="not built here")
def test_gram_and_largest_refuse_arrays_that_do_not_fit() -> None:
    rows, sets = np.ones((3, 2), np.float16), np.zeros((2, 2), np.int64)
    with pytest.raises(IndexError, match="no row 3 among 3"):
        kmeans._dots.gram(rows, sets + 3, np.empty((2, 2, 2), np.float32))
    with pytest.raises(ValueError, match="sets of another size"):
        kmeans._dots.gram(rows, sets, np.empty((2, 2, 3), np.float32))
    with pytest.raises(ValueError, match="another number of sets"):
        kmeans._dots.gram(rows, sets, np.empty((1, 2, 2), np.float32))
    for places in (0, 3):
        with pytest.raises(ValueError, match=f"{places} places in rows of 2"):
            kmeans._dots.largest(np.ones((1, 2), np.float32), np.empty((1, places), np.int32))
    with pytest.raises(ValueError, match="places for another number"):
        kmeans._dots.largest(np.ones((1, 2), np.float32), np.empty((2, 1), np.int32))


@pytest.fixture(scope="module")
def points() -> NDArray[np.float32]:
    return clustered(0, 300, 12_000, 16)


@pytest.fixture(scope="module")
def many(points: NDArray[np.float32]) -> Centroids:
    """More centroids than lie in one cell."""
    return spherical_kmeans(points, 2 * FLAT, seed=0)


def test_centroids_are_distinct_unit_vectors_in_cells(many: Centroids) -> None:
    assert len(np.unique(many.vectors, axis=0)) == len(many) <= 2 * FLAT
    assert len(many) > 1.9 * FLAT
    np.testing.assert_allclose(np.linalg.norm(many.vectors, axis=1), 1, rtol=1e-5)
    assert many.starts[0] == 0
    assert many.starts[-1] == len(many)
    assert (np.diff(many.starts) > 0).all()
    assert len(many.heads) == len(many.starts) - 1 > 1


def test_all_cells_give_the_exact_answer(many: Centroids, points: NDArray[np.float32]) -> None:
    numbers, dots = many.nearest(points[:200], 10, len(many.heads))
    products = points[:200] @ many.vectors.T
    np.testing.assert_allclose(dots, -np.sort(-products, axis=1)[:, :10], rtol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(products, numbers, axis=1), dots, rtol=1e-5)


def test_a_few_cells_give_nearly_the_exact_answer(many: Centroids, points: NDArray[np.float32]) -> None:
    some, all_ = (many.nearest(points[:500], 10, cells)[0] for cells in (16, len(many.heads)))
    shared = [len(set(a) & set(b)) for a, b in zip(some.tolist(), all_.tolist(), strict=True)]
    assert np.mean(shared) > 9.5


def test_rows_are_searched_alone_as_together(many: Centroids, points: NDArray[np.float32]) -> None:
    numbers, dots = many.nearest(points[:50], 5, 8)
    for i in range(50):
        alone, near = many.nearest(points[i : i + 1], 5, 8)
        assert alone[0].tolist() == numbers[i].tolist()
        np.testing.assert_allclose(near[0], dots[i], rtol=1e-5)


@pytest.mark.skipif(kmeans._dots is None, reason="not built here")
@pytest.mark.parametrize("path", [path for path in PATHS if path != "numpy"])
@given(
    width=st.integers(1, 150),
    n=st.integers(1, 11),
    dtype=st.sampled_from([np.float16, np.float32]),
    seed=st.integers(0, 99),
)
def test_what_is_beside_a_row_changes_no_bit_of_its_answer(
    path: str, width: int, n: int, dtype: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    vectors, heads = (unit(rng.standard_normal((m, width))).astype(dtype) for m in (40, 9))
    centroids = Centroids(vectors, heads, np.array([0, 1, 4, 9, 11, 20, 28, 31, 37, 40]))
    X = unit(rng.standard_normal((n, width)))
    with computing_by(path):
        together = centroids.nearest(X, 6, 5)
        alone = [centroids.nearest(x[None], 6, 5) for x in X]
    for i, found in enumerate(together):
        assert found.tobytes() == np.concatenate([one[i] for one in alone]).tobytes()


def test_rows_too_many_to_be_held_together_are_all_answered() -> None:
    rows = np.eye(5, 900_000, dtype=np.float32)  # two of which are held at a time
    numbers, dots = Centroids(rows[::-1].copy(), rows[:1], np.array([0, 5])).nearest(rows, 1, 1)
    assert numbers.ravel().tolist() == [4, 3, 2, 1, 0]
    assert dots.ravel().tolist() == [1] * 5


def test_a_seed_gives_one_result_and_another_seed_another(points: NDArray[np.float32]) -> None:
    first, again, other = (spherical_kmeans(points[:2000], 200, seed).vectors for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@settings(max_examples=20)
@given(n=st.integers(1, 30), k=st.integers(1, 40), copies=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_never_more_centroids_than_asked_for_or_than_distinct_rows(n: int, k: int, copies: int, seed: int) -> None:
    X = np.repeat(unit(np.random.default_rng(n).standard_normal((n, 3))), copies, axis=0)
    found = spherical_kmeans(X, k, seed)
    assert 1 <= len(found) <= k
    if k >= n * copies:
        assert sorted(found.vectors.tolist()) == sorted(X[::copies].tolist())


def test_training_gains_on_random_members(points: NDArray[np.float32]) -> None:
    learned = spherical_kmeans(points, 500, 0)
    drawn = points[np.random.default_rng(0).choice(len(points), 500, replace=False)]
    similarity = [(points @ vectors.T).max(axis=1).mean() for vectors in (learned.vectors, drawn)]
    assert similarity[0] > similarity[1] + 0.02


def test_no_centroid_is_left_with_a_crowd() -> None:
    """Half of all points lie in one narrow cone, and get about half of the centroids."""
    rng = np.random.default_rng(0)
    narrow = np.eye(8)[0] + 0.02 * rng.standard_normal((4000, 8))
    X = unit(np.concatenate([narrow, rng.standard_normal((4000, 8))]))
    found = spherical_kmeans(X, 400, 0)
    lengths = np.bincount((X @ found.vectors.T).argmax(axis=1), minlength=len(found))
    assert lengths.max() < 4 * len(X) / len(found)


def test_unit_rows() -> None:
    assert unit(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist() == [[np.float32(0.6), np.float32(0.8)], [0, 0]]
