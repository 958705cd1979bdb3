"""Near-duplicates under one hit."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from boc.search.near_duplicates import collapse
from boc.search.searcher import Searcher
from boc.types import Hit
from tests.oracles import picture

ROUNDING = 1e-6  # of the cosine of equal vectors, whose sums libraries form in different orders
TEXT = "a red box at the left"


def some(n: int, seed: int) -> tuple[list[Hit], np.ndarray]:
    """Hits, best first, and their unit vectors, some nearly equal."""
    rng = np.random.default_rng(seed)
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
    shown = collapse(hits, vectors, threshold)
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
