"""The confidence of hits, from the scores of a sample of the index."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boc.search.background import confidences
from boc.search.queries import Query
from boc.search.searcher import Searcher

TEXT = "a red box at the left"
SCORES = st.lists(st.floats(-5, 5), min_size=1, max_size=20)


@given(scores=SCORES, usual=SCORES, total=st.integers(1, 10**6))
def test_a_better_hit_is_no_less_sure(scores: list[float], usual: list[float], total: int) -> None:
    values = confidences(sorted(scores, reverse=True), np.array(usual), total)
    assert ((values >= 0) & (values <= 1)).all()
    assert (np.diff(values) <= 1e-12).all()


@given(seed=st.integers(0, 99), shift=st.floats(-3, 3), factor=st.floats(0.01, 100))
def test_only_differences_and_their_ratios_count(seed: int, shift: float, factor: float) -> None:
    rng = np.random.default_rng(seed)
    usual = rng.standard_normal(300)
    scores = np.sort(rng.normal(6, 1, 9))[::-1]
    moved = confidences((shift + factor * scores).tolist(), shift + factor * usual, 500)
    assert moved == pytest.approx(confidences(scores.tolist(), usual, 500), abs=1e-6)


@pytest.mark.parametrize("total", [300, 10**4, 10**6])
def test_what_stands_out_is_sure_and_the_best_of_chance_seldom(total: int) -> None:
    wrong = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        usual = rng.standard_normal(1000)
        assert confidences([9.0, 4.0], usual, total).round(2).tolist() == [1, 0]
        wrong += confidences([float(rng.standard_normal(total).max())], usual, total)[0] >= 0.5
    assert wrong <= 3


def test_hits_below_the_line_are_left_out(searcher: Searcher) -> None:
    every = searcher.search(TEXT, k=40, min_confidence=0)
    assert [(hit.item, hit.score) for hit in every] == [
        (hit.item, hit.score) for hit in searcher.search(TEXT, k=40)
    ]
    sure = [hit.confidence for hit in every if hit.confidence is not None]
    assert len(sure) == len(every)
    line = float(np.median(sure))
    assert searcher.search(TEXT, k=40, min_confidence=line) == [
        hit for hit in every if (hit.confidence or 0) >= line
    ]
    batch = searcher.search_texts([TEXT, "green"], k=40, min_confidence=0)
    # the rounding of a batch is another one
    assert [hit.confidence for hit in batch[0]] == pytest.approx(sure, abs=1e-4)


def test_what_is_like_an_item_is_not_judged_beside_the_item(searcher: Searcher) -> None:
    hits = searcher.search_query(Query.of(like=["003.png"]), k=9, min_confidence=0)
    assert "003.png" not in {hit.id for hit in hits}
    usual = searcher.background("image").scores(searcher.embeddings("003.png"), "dot")
    deviation = float(usual.std(dtype=np.float64))
    expected = confidences(
        [hit.score * deviation for hit in hits],
        usual,
        searcher.index.manifest.items["image"],
    )
    assert [hit.confidence for hit in hits] == pytest.approx(expected.tolist(), abs=1e-3)
