"""Near-duplicates under one hit."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.random import default_rng

from boc.search.near_duplicates import DEEPEST, POOL, collapse, select_distinct
from boc.search.searcher import Searcher
from boc.types import Hit
from tests.oracles import picture

ROUNDING = 1e-6  # of the cosine of equal vectors, whose sums libraries form in different orders
TEXT = "a red box at the left"


def some(n: int, seed: int) -> tuple[list[Hit], np.ndarray]:
    """Hits, best first, and their unit vectors, some nearly equal."""
    rng = default_rng(seed)
    vectors = rng.standard_normal((4, 6))[rng.integers(0, 4, n)] + rng.choice(
        [0, 0.02, 0.5],
        (n, 1),
    ) * (rng.standard_normal((n, 6)))
    scores = sorted(
        rng.integers(0, 8, n).tolist(),
        reverse=True,
    )
    vectors /= np.linalg.norm(
        vectors,
        axis=1,
        keepdims=True,
    )
    return [
        Hit(picture(f"{i:02d}"), float(score)) for i, score in enumerate(scores)
    ], vectors.astype(np.float32)


@given(
    n=st.integers(0, 14),
    seed=st.integers(0, 99),
    threshold=st.floats(0.5, 1),
)
def test_kept_hits_are_far_apart_and_others_are_under_a_near_better_one(
    n: int,
    seed: int,
    threshold: float,
) -> None:
    hits, vectors = some(n, seed)
    shown = collapse(hits, vectors, threshold, n)
    row = {hit.item.id: i for i, hit in enumerate(hits)}
    for i, one in enumerate(shown):
        assert all(
            vectors[row[one.item.id]] @ vectors[row[other.item.id]] < threshold + ROUNDING
            for other in shown[:i]
        )
        for id in one.duplicates:
            assert row[id] > row[one.item.id]
            assert vectors[row[id]] @ vectors[row[one.item.id]] >= threshold - ROUNDING
    assert sorted(row) == sorted(
        [
            *(hit.item.id for hit in shown),
            *(id for hit in shown for id in hit.duplicates),
        ],
    )


def slow(hits: list[Hit], vectors: np.ndarray, threshold: float) -> list[tuple[str, list[str]]]:
    """What remains, and the ids under it, by one comparison after the other."""
    remain = []
    for i, hit in enumerate(hits):
        for row, ids in remain:
            if vectors[i] @ vectors[row] >= threshold:
                ids.append(hit.id)
                break
        else:
            remain.append((i, []))
    return [(hits[row].id, ids) for row, ids in remain]


@pytest.mark.parametrize("most", [1, 7, 40, 300])
def test_the_first_that_remain_are_those_of_a_slow_loop(most: int) -> None:
    """Of several blocks; the vectors are whole numbers, so that no sum is rounded."""
    vectors = default_rng(most).integers(-1, 2, (300, 6)).astype(np.float32)
    hits = [Hit(picture(f"{i:03d}"), 1.0) for i in range(300)]
    shown = collapse(hits, vectors, 4.0, most)
    expected = slow(hits, vectors, 4.0)
    assert [(hit.id, list(hit.duplicates)) for hit in shown] == expected[:most]


class Library:
    """A library of ``vectors``, and a search of it that keeps its answers: the first items, by a
    ``step`` of -1 the last of them first."""

    def __init__(self, vectors: np.ndarray, step: int = 1) -> None:
        self.hits = [Hit(picture(str(i)), 1.0) for i in range(len(vectors))]
        self.rows = vectors
        self.asked: list[list[Hit]] = []
        self.step = step

    def ask(self, depth: int) -> list[Hit]:
        self.asked.append(self.hits[:depth][:: self.step])
        return self.asked[-1]

    def vectors(self, ids: list[str]) -> np.ndarray:
        return self.rows[list(map(int, ids))]


@pytest.mark.parametrize("k", [1, 40, 1000, 2000])
def test_a_library_of_copies_is_searched_to_a_bound(k: int) -> None:
    alike = Library(np.ones((10_000, 1), np.float16))
    (hit,) = select_distinct(alike.ask, alike, k, 0.9)  # type: ignore[arg-type]
    depths = list(map(len, alike.asked))
    assert depths == sorted(set(depths))
    assert depths[-1] == max(DEEPEST, POOL * k) == len(hit.duplicates) + 1


@pytest.mark.parametrize("step", [1, -1])
def test_deeper_lists_give_the_hits_of_a_slow_loop(step: int) -> None:
    """Also where a deeper list begins otherwise, as budgets set by hand make it."""
    vectors = default_rng(5).choice([-1, 1], (DEEPEST, 5)).astype(np.float32)
    library = Library(vectors, step)
    shown = select_distinct(library.ask, library, 40, 2.0)  # type: ignore[arg-type]
    last = library.asked[-1]
    expected = slow(last, library.vectors([hit.id for hit in last]), 2.0)
    assert len(library.asked) == 4
    assert [(hit.id, list(hit.duplicates)) for hit in shown] == expected


def test_collapsing_fills_up(searcher: Searcher) -> None:
    plain = searcher.search(TEXT, k=6)
    every = searcher.search(TEXT, k=40)
    hits = searcher.search(TEXT, k=6, collapse=True)
    assert hits[0].item == plain[0].item
    hidden = {id for hit in hits for id in hit.duplicates}
    assert not hidden & {hit.item.id for hit in hits}
    if hidden:
        assert len(hits) == min(
            6,
            len(searcher.search(TEXT, k=40, collapse=True)),
        )
    assert [hit.score for hit in every] == sorted(
        (hit.score for hit in every),
        reverse=True,
    )
