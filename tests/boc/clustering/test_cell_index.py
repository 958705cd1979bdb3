"""Centroids: the search against a full comparison, and what training promises."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from numpy.random import default_rng
from numpy.typing import NDArray

from boc.clustering import cell_index
from boc.clustering.cell_index import (
    ONE_CELL_CENTROIDS,
    Centroids,
    Directions,
    rounded,
    spherical_kmeans,
)
from boc.vectors import Floats, unit_rows

PATHS = ["numpy"] if cell_index._nearest is None else ["compiled", "numpy"]


@contextmanager
def computing_by(path: str) -> Iterator[None]:
    """By ``boc.clustering._nearest``, or "numpy", without it."""
    with pytest.MonkeyPatch.context() as patch:
        if path == "numpy":
            patch.setattr(cell_index, "_nearest", None)
        yield


def clustered(
    seed: int,
    clusters: int,
    rows: int,
    width: int,
    noise: float = 0.3,
) -> Floats:
    """Unit vectors around random directions."""
    rng = default_rng(seed)
    centres = rng.standard_normal((clusters, width))
    return unit_rows(
        centres[rng.integers(clusters, size=rows)] + noise * rng.standard_normal((rows, width)),
    )


def learned(X: Floats, k: int, seed: int) -> Centroids:
    return spherical_kmeans(Directions(*rounded(X)), k, seed)


def slow_rounded(row: list[float]) -> tuple[list[int], np.float32]:
    """Whole numbers to 127, and one over their length."""
    most = max(map(abs, row))
    whole = [round(value * (127 / most)) if most else 0 for value in row]
    length = sum(value * value for value in whole) ** 0.5
    return whole, np.float32(1 / length if length else 0)


def slow_scores(
    query: list[int],
    rows: NDArray[np.int8],
    scales: Floats,
) -> list[np.float32]:
    return [
        np.float32(sum(a * b for a, b in zip(query, row, strict=True))) * scale
        for row, scale in zip(rows.tolist(), scales, strict=True)
    ]


@st.composite
def in_cells(draw: st.DrawFn) -> Centroids:
    """Centroids in cells of all sizes, drawn, not learned; some of them the same."""
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=12))
    width = draw(st.integers(1, 140))
    steps = draw(st.sampled_from([1, 2, 100]))
    rng = default_rng(draw(st.integers(0, 1000)))
    vectors, heads = (
        rng.integers(-steps, steps + 1, (n, width)).astype(np.float32)
        for n in (sum(sizes), len(sizes))
    )
    return Centroids(
        Directions(*rounded(vectors)),
        Directions(*rounded(heads)),
        np.cumsum([0, *sizes]),
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@given(
    centroids=in_cells(),
    z=st.integers(1, 60),
    cells=st.integers(1, 14),
    n=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_nearest_is_a_loop_over_the_cells_of_the_nearest_heads(
    path: str,
    centroids: Centroids,
    z: int,
    cells: int,
    n: int,
    seed: int,
):
    """To the last bit, by number, and of equal ones those of lower number; whatever is beside a
    row."""
    X = default_rng(seed).standard_normal((n, centroids.vectors.rows.shape[1])).astype(np.float32)
    with computing_by(path):
        numbers, cosines = centroids.nearest(X, z, cells)
    sizes = sorted(np.diff(centroids.starts).tolist())
    while sum(sizes[:cells]) < min(z, len(centroids)):
        cells += 1
    assert numbers.shape == cosines.shape == (n, min(z, len(centroids)))
    for x, row, found in zip(
        X.tolist(),
        numbers.tolist(),
        cosines.tolist(),
        strict=True,
    ):
        query, length = slow_rounded(x)
        heads = slow_scores(query, centroids.heads.rows, centroids.heads.scales)
        asked = sorted(range(len(heads)), key=lambda i: (-heads[i], i))[:cells]
        scores = slow_scores(query, centroids.vectors.rows, centroids.vectors.scales)
        seen = [j for i in asked for j in range(centroids.starts[i], centroids.starts[i + 1])]
        expected = sorted(sorted(seen, key=lambda j: (-scores[j], j))[: min(z, len(centroids))])
        assert row == expected
        assert found == [scores[j] * length for j in expected]


@given(
    rows=arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 90)),
        elements=st.floats(-(2.0**60), 2.0**60, width=32)
        | st.sampled_from([1e-44, 0.5, -254.0, 254.0]),
    ),
)
def test_rounding_keeps_directions_whatever_their_size(rows: Floats):
    whole, scales = rounded(rows)
    again = rounded(whole.astype(np.float32) * scales[:, None])[0]
    assert [slow_rounded(row) for row in rows.tolist()] == list(
        zip(whole.tolist(), scales, strict=True),
    )
    assert np.array_equal(again, whole)
    filled = rows.any(axis=1)
    assert (np.abs(whole[filled]).max(axis=1) == 127).all()
    lengths = np.linalg.norm(whole[filled] * scales[filled, None], axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_with_what_is_no_number_has_no_direction(value: float):
    rows = np.ones((2, 70), np.float32)
    rows[0, 69] = value
    whole, scales = rounded(rows)
    assert not whole[0].any()
    assert scales.tolist() == [0, slow_rounded([1.0] * 70)[1]]


@pytest.mark.parametrize("path", PATHS)
def test_a_vector_that_is_no_number_finds_some_centroids_all_the_same(path: str):
    centroids = learned(
        clustered(
            0,
            30,
            500,
            8,
        ),
        100,
        0,
    )
    for value in (np.nan, np.inf, -np.inf):
        with computing_by(path), np.errstate(invalid="ignore"):
            numbers, _ = centroids.nearest(np.full((2, 8), value, np.float32), 10, 5)
        assert ((numbers >= 0) & (numbers < len(centroids))).all()


@pytest.mark.skipif(cell_index._nearest is None, reason="not built here")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"starts": [0, 2, 9]}, "do not rise within 5 vectors"),
        ({"starts": [0, 4, 2]}, "do not rise"),
        ({"starts": [-1, 2, 5]}, "do not rise"),
        ({"starts": [0, 5]}, "starts for another number of heads"),
        ({"cells": 0}, "cells: 0 of 2"),
        ({"cells": 3}, "cells: 3 of 2"),
        (
            {
                "cells": 1,
                "numbers": np.empty((1, 4), np.int64),
                "cosines": np.empty((1, 4), np.float32),
            },
            "search more",
        ),
        ({"numbers": np.empty((2, 1), np.int64)}, "numbers for another"),
        ({"cosines": np.empty((1, 2), np.float32)}, "cosines for another"),
        ({"numbers": np.empty((1, 1), np.int32)}, "numbers must have"),
        ({"heads": np.ones((2, 2), np.int8)}, "heads of another width"),
        ({"head_scales": np.ones(3, np.float32)}, "head_scales for another"),
        ({"vectors": np.ones((5, 4), np.int8)}, "vectors of another width"),
        ({"vectors": np.ones((5, 3))}, "vectors must have"),
        ({"scales": np.ones(4, np.float32)}, "scales for another"),
        ({"queries": np.ones((1, 65537), np.float32)}, "of 65537 numbers; at most .* of 65536"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(wrong: dict[str, Any], message: str):
    given = {
        "queries": np.ones((1, 3), np.float32),
        "heads": np.ones((2, 3), np.int8),
        "head_scales": np.ones(2, np.float32),
        "starts": [0, 2, 5],
        "vectors": np.ones((5, 3), np.int8),
        "scales": np.ones(5, np.float32),
        "numbers": np.empty((1, 1), np.int64),
        "cosines": np.empty((1, 1), np.float32),
        "cells": 2,
    } | wrong
    given["starts"] = np.array(given["starts"])
    with pytest.raises(ValueError, match=message):
        cell_index._nearest.nearest(*given.values())


@given(
    n=st.integers(0, 4),
    m=st.integers(1, 9),
    d=st.integers(1, 140),
    seed=st.integers(0, 99),
)
def test_cosines_are_those_of_the_chosen_with_one_of_them(
    n: int,
    m: int,
    d: int,
    seed: int,
):
    rng = default_rng(seed)
    vectors, scales = rounded(rng.standard_normal((9, d)).astype(np.float32))
    centroids = Centroids.of_arrays(
        vectors[:1],
        scales[:1],
        np.array([0, 9]),
        vectors,
        scales,
    )
    numbers = rng.integers(9, size=(n, m))
    others = rng.integers(9, size=n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cell_index, "BATCH_NUMBERS", 2 * m * d)  # two rows at a time
        found = centroids.cosines(numbers, others)
    for cosines, chosen, other in zip(
        found,
        numbers.tolist(),
        others.tolist(),
        strict=True,
    ):
        expected = slow_scores(
            vectors[other].tolist(),
            vectors[chosen],
            scales[chosen] * scales[other],
        )
        assert cosines.tolist() == expected


@settings(max_examples=30)
@given(
    n=st.integers(1, 40),
    k=st.integers(1, 9),
    d=st.integers(1, 20),
    seed=st.integers(0, 99),
    batch=st.integers(1, 50),
)
def test_means_are_those_of_a_loop_over_the_groups(
    n: int,
    k: int,
    d: int,
    seed: int,
    batch: int,
):
    """And a group without a direction keeps the one before; whatever the batches."""
    rng = default_rng(seed)
    points = Directions(*rounded(rng.standard_normal((n, d)).astype(np.float32)))
    before = Directions(*rounded(rng.standard_normal((k, d)).astype(np.float32)))
    owners = rng.integers(k, size=n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cell_index, "BATCH_ROWS", batch)
        found = points.means(owners, before)
        heads = Directions(*rounded(np.ones((1, d))))
        nearest = Centroids(before, heads, np.array([0, k])).owners(points, 1)
    units = points.units
    for group in range(k):
        members = units[owners == group].sum(axis=0, dtype=np.float64)
        expected = before.units[group]
        if members.any():
            expected = members / np.linalg.norm(members)
        np.testing.assert_allclose(found.units[group], expected, atol=0.02)
    products = units @ before.units.T
    np.testing.assert_allclose(products[np.arange(n), nearest], products.max(axis=1), atol=1e-6)


@pytest.fixture(scope="module")
def points() -> Floats:
    return clustered(
        0,
        300,
        12_000,
        16,
    )


@pytest.fixture(scope="module")
def many(points: Floats) -> Centroids:
    """More centroids than lie in one cell."""
    return learned(points, 2 * ONE_CELL_CENTROIDS, 0)


@pytest.mark.slow
def test_centroids_are_distinct_unit_vectors_in_cells(many: Centroids):
    assert len(np.unique(many.vectors.rows, axis=0)) == len(many) <= 2 * ONE_CELL_CENTROIDS
    assert len(many) > 1.9 * ONE_CELL_CENTROIDS
    np.testing.assert_allclose(np.linalg.norm(many.vectors.units, axis=1), 1, rtol=1e-5)
    assert many.starts[0] == 0
    assert many.starts[-1] == len(many)
    assert (np.diff(many.starts) > 0).all()
    assert len(many.heads) == len(many.starts) - 1 > 1


def test_rows_too_many_to_be_held_together_are_all_answered():
    rows = np.eye(2, dtype=np.float32)[
        np.arange(40_000) % 2
    ]  # some fifty searches of so many are held at a time
    centroids = Centroids(
        Directions(*rounded(rows)),
        Directions(*rounded(rows[:1])),
        np.array([0, 40_000]),
    )
    numbers, cosines = centroids.nearest(rows[:60], 1, 1)
    assert numbers.ravel().tolist() == [0, 1] * 30
    assert cosines.ravel().tolist() == pytest.approx([1] * 60)


def test_a_seed_gives_one_result_and_another_seed_another(points: Floats):
    first, again, other = (learned(points[:2000], 200, seed).vectors.rows for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@settings(max_examples=20)
@given(
    n=st.integers(1, 30),
    k=st.integers(1, 40),
    copies=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_number_of_centroids(n: int, k: int, copies: int, seed: int):
    """Never more than wanted, nor than distinct rows; in one cell, as there are few."""
    X = np.repeat(unit_rows(default_rng(n).standard_normal((n, 3))), copies, axis=0)
    centroids = learned(X, k, seed)
    assert 1 <= len(centroids) <= k
    assert centroids.starts.tolist() == [0, len(centroids)]
    if k >= n * copies:
        assert (
            np.unique(centroids.vectors.rows, axis=0).tolist()
            == np.unique(rounded(X)[0], axis=0).tolist()
        )


def test_training_gains_on_random_members(points: Floats):
    found = learned(points, 500, 0)
    drawn = points[default_rng(0).choice(len(points), 500, replace=False)]
    similarity = [
        (points @ vectors.T).max(axis=1).mean() for vectors in (found.vectors.units, drawn)
    ]
    assert similarity[0] > similarity[1] + 0.02


def test_no_centroid_is_left_with_a_crowd():
    """Half of all points lie in one narrow cone, and get about half of the centroids."""
    rng = default_rng(0)
    narrow = np.eye(8)[0] + 0.02 * rng.standard_normal((4000, 8))
    X = unit_rows(np.concatenate([narrow, rng.standard_normal((4000, 8))]))
    found = learned(X, 400, 0)
    lengths = np.bincount((X @ found.vectors.units.T).argmax(axis=1), minlength=len(found))
    assert lengths.max() < 4 * len(X) / len(found)
