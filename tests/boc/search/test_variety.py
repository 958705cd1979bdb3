"""Varied hits: maximal marginal relevance by a slow loop, near-duplicates under one hit."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boc.errors import BocError
from boc.search.options import SearchOptions
from boc.search.searcher import Searcher
from boc.search.variety import collapse, diverse
from boc.types import Hit
from tests.helpers import boc, run
from tests.oracles import picture

ROUNDING = 1e-6  # of the cosine of equal vectors, whose sums libraries form in different orders
TEXT = "a red box at the left"


def some(n: int, seed: int) -> tuple[list[Hit], np.ndarray]:
    """Hits, best first, and their unit vectors, some nearly equal."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((4, 6))[rng.integers(0, 4, n)] + rng.choice([0, 0.02, 0.5], (n, 1)) * (
        rng.standard_normal((n, 6))
    )
    scores = sorted(rng.integers(0, 8, n).tolist(), reverse=True)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return [Hit(picture(f"{i:02d}"), float(score)) for i, score in enumerate(scores)], vectors.astype(np.float32)


def slow(hits: list[Hit], vectors: np.ndarray, k: int, balance: float) -> list[int]:
    """Greedy choice by the formula, one pair after the other."""
    scores, cosines = np.array([hit.score for hit in hits]), vectors @ vectors.T

    def scaled(values: np.ndarray, value: float) -> float:
        return float((value - values.min()) / ((values.max() - values.min()) or 1))

    chosen = [0]
    while len(chosen) < min(k, len(hits)):
        worth = {
            i: balance * scaled(scores, hits[i].score)
            - (1 - balance) * max(scaled(cosines, cosines[i, j]) for j in chosen)
            for i in range(len(hits))
            if i not in chosen
        }
        chosen.append(max(worth, key=lambda i: (round(worth[i], 6), -i)))
    return chosen


@given(n=st.integers(1, 12), k=st.integers(1, 14), seed=st.integers(0, 99), balance=st.sampled_from([0, 0.3, 0.7, 1]))
def test_marginal_relevance_is_that_of_a_slow_loop(n: int, k: int, seed: int, balance: float) -> None:
    hits, vectors = some(n, seed)
    order = [hits.index(hit) for hit in diverse(hits, vectors, k, balance)]
    scores = np.array([hit.score for hit in hits])
    assert len(order) == len(set(order)) == min(n, k)
    if balance == 1:
        assert scores[order].tolist() == scores[: min(n, k)].tolist()
    expected = slow(hits, vectors, k, balance)
    first = next((i for i, (a, b) in enumerate(zip(order, expected, strict=True)) if a != b), None)
    if first is not None:  # only where two are worth the same but for rounding
        cosines = vectors @ vectors.T
        spread = (np.ptp(scores) or 1, np.ptp(cosines) or 1)
        worth = [
            balance * scores[i] / spread[0] - (1 - balance) * cosines[i, order[:first]].max() / spread[1]
            for i in (order[first], expected[first])
        ]
        assert worth[0] == pytest.approx(worth[1], abs=1e-5)


@given(n=st.integers(0, 14), seed=st.integers(0, 99), threshold=st.floats(0.5, 1))
def test_kept_hits_are_far_apart_and_others_are_under_a_near_better_one(n: int, seed: int, threshold: float) -> None:
    hits, vectors = some(n, seed)
    shown, places = collapse(hits, vectors, threshold)
    assert [hits[place].item.id for place in places] == [hit.item.id for hit in shown]
    row = {hit.item.id: i for i, hit in enumerate(hits)}
    for i, one in enumerate(shown):
        assert all(
            vectors[row[one.item.id]] @ vectors[row[other.item.id]] < threshold + ROUNDING for other in shown[:i]
        )
        for id in one.duplicates:
            assert row[id] > row[one.item.id]
            assert vectors[row[id]] @ vectors[row[one.item.id]] >= threshold - ROUNDING
    assert sorted(row) == sorted([*(hit.item.id for hit in shown), *(id for hit in shown for id in hit.duplicates)])


def test_a_balance_of_one_is_the_ranking_and_collapsing_fills_up(searcher: Searcher) -> None:
    plain = searcher.search(TEXT, k=6)
    assert searcher.search(TEXT, k=6, mmr=1) == plain
    every = searcher.search(TEXT, k=40)
    hits = searcher.search(TEXT, k=6, collapse=True)
    assert hits[0].item == plain[0].item
    hidden = {id for hit in hits for id in hit.duplicates}
    assert not hidden & {hit.item.id for hit in hits}
    if hidden:
        assert len(hits) == min(6, len(searcher.search(TEXT, k=40, collapse=True)))
    assert [hit.score for hit in every] == sorted((hit.score for hit in every), reverse=True)


def test_the_command_shows_confidence_and_refuses_what_cannot_be(library: Path) -> None:
    at = f"file:{library / 'index'}"
    done = run("search", "photos", TEXT, "--at", at, "--min-confidence", 0, "--collapse", "-k", 3)
    assert all("%" in line for line in done.stdout.splitlines())
    assert '"confidence"' in boc("search", "photos", TEXT, "--at", at, "--min-confidence", 0, "--json").stdout
    none = boc("search", "photos", TEXT, "--at", at, "--min-confidence", 1)
    assert (none.exit_code, none.stdout) == (0, "")
    assert "nothing has a confidence of 1; a smaller --min-confidence shows more" in none.stderr
    for options, message in (
        ({"mmr": 1.5}, "mmr must be from 0 to 1"),
        ({"min_confidence": -1}, "min_confidence must be from 0 to 1"),
        ({"min_confidence": 0, "hybrid": "rrf"}, "leave one of the two out"),
    ):
        with pytest.raises(BocError, match=message):
            SearchOptions(**options)  # type: ignore[arg-type]
