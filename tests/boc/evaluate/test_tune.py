"""Tuning: ranks and choices against a slow loop; targets met on held-out queries."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse

from boc import plugins
from boc.codecs import Code, parse_code
from boc.errors import BocError
from boc.evaluate.tune import Candidate, Interval, Sample, Setting, cheapest, draw, ranks_of, tune
from boc.evaluate.tune import settings as tune_settings
from boc.types import Embeddings
from tests.helpers import boc
from tests.oracles import term_matrices


@given(documents=term_matrices((7, 5), 3), queries=term_matrices((4, 5), 3), data=st.data())
def test_ranks_are_those_of_a_sorted_list(
    documents: sparse.csr_array, queries: sparse.csr_array, data: st.DataObject
) -> None:
    truth = np.array([data.draw(st.permutations(range(7)))[:3] for _ in range(4)])
    found = ranks_of(documents, queries, truth)
    scores = (queries.toarray().astype(int) @ documents.toarray().astype(int).T).tolist()
    for i, row in enumerate(scores):
        order = sorted((j for j in range(7) if row[j] > 0), key=lambda j: (-row[j], j))
        assert found[i].tolist() == [order.index(j) if j in order else 7 for j in truth[i].tolist()]


@given(ranks=st.lists(st.lists(st.integers(0, 150), min_size=2, max_size=2), min_size=1, max_size=6),
       target=st.floats(0.01, 0.99))  # fmt: skip
def test_cheapest_takes_the_fewest_candidates(ranks: list[list[int]], target: float) -> None:
    k = 2
    chosen = np.array(ranks)
    nothing = sparse.csr_array((1, 1), dtype=np.int32)
    setting = Setting({}, nothing, (nothing, nothing), (chosen, chosen), 1.0)
    best = cheapest(setting, chosen, target)
    reached = [r for r in range(k, 50 * k + 1) if np.mean(chosen < r) >= target]
    if reached:
        assert best is not None
        assert best.candidates == reached[0]
        assert best.recall == pytest.approx(np.mean(chosen < reached[0]))
    else:
        assert best is None


def test_interval() -> None:
    values = np.array([0.0, 0.5, 1.0, 0.5])
    half = 1.96 * math.sqrt(sum((v - 0.5) ** 2 for v in values) / 3 / 4)
    assert Interval.of(values) == Interval(0.5, pytest.approx(0.5 - half), pytest.approx(0.5 + half))
    assert Interval.of(np.array([1.0])) == Interval(1.0, 0.0, 1.0)


def clustered(seed: int, rows: int) -> NDArray[np.float32]:
    """Unit vectors around sixty directions, the same for every seed."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((60, 16))
    X = centres[rng.integers(60, size=rows)] + 0.5 * rng.standard_normal((rows, 16))
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def sample() -> Sample:
    items, choose, judge = (Embeddings("text", clustered(seed, n)) for seed, n in ((0, 1500), (1, 400), (2, 400)))
    return Sample(items, choose, judge, (items,))


SCALAR = [Candidate(Code("scalar"), (4, 8, 16), (8, 16, 32))]


@pytest.mark.slow
def test_targets_are_met_on_held_out_queries(sample: Sample) -> None:
    tried: list[int] = []
    targets = (0.8, 0.9, 0.95, 0.99)
    best = tune(sample, targets, candidates=SCALAR, tick=tried.append)
    assert sum(tried) == 9
    costs = [best[target].postings + 10 * best[target].rm * 10 for target in targets]
    assert costs == sorted(costs)
    for target in targets:
        assert best[target].recall >= target
        assert best[target].judged.low - 0.01 <= target <= best[target].judged.high + 0.01


@pytest.mark.slow
def test_choice_is_the_cheapest_trial(sample: Sample) -> None:
    reached = [
        chosen
        for setting in tune_settings(sample, SCALAR, 10)
        if (chosen := cheapest(setting, setting.ranks(0), 0.9)) is not None
    ]
    assert len(reached) > 3
    best = tune(sample, (0.9,), candidates=SCALAR)[0.9]
    least = min(reached, key=lambda chosen: chosen.cost)
    assert (best.code, best.rm, best.recall) == (least.setting.code, least.candidates / 10, least.recall)


def test_what_no_setting_reaches_is_left_out(sample: Sample) -> None:
    poor = [Candidate(Code("scalar"), (1,), (1,))]
    assert tune(sample, (0.99,), candidates=poor) == {}


@pytest.mark.parametrize(("target", "k"), [*((t, 10) for t in (0.0, 1.0, 95.0, -0.5, math.nan)), (0.9, 0), (0.9, 1501)])
def test_values_out_of_range_are_refused(sample: Sample, target: float, k: int) -> None:
    rule = "the target recall must lie between 0 and 1, got" if k == 10 else "k must be between 1 and the 1500 items of"
    with pytest.raises(BocError, match=rule):
        tune(sample, (target,), k=k)


def test_drawn_queries_are_held_out(library: Path) -> None:
    index = plugins.backend(f"file:{library / 'index'}").open("photos")
    one, again, other = (draw(index, "text", None, size=50, n_queries=10, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(one.choose.vectors, again.choose.vectors)
    assert not np.array_equal(one.choose.vectors, other.choose.vectors)
    assert [len(part) for part in (one.items, one.choose, one.judge)] == [50, 5, 5]
    assert one.choose.modality == "image"
    assert {part.modality: len(part) for part in one.fit} == {"image": 30, "text": 50}
    asked = {row.tobytes() for part in (one.choose, one.judge) for row in part.vectors}
    kept = {row.tobytes() for row in next(part for part in one.fit if part.modality == "image").vectors}
    assert not asked & kept
    greedy = draw(index, "text", None, size=50, n_queries=4000, seed=3)
    assert [len(greedy.choose), len(greedy.judge)] == [16, 16]
    assert {part.modality: len(part) for part in greedy.fit} == {"image": 8, "text": 50}


def test_tune_command(library: Path) -> None:
    at = f"file:{library / 'index'}"
    done = boc("tune", "photos", "--at", at, "-k", 2, "--target-recall", 0.5, "--json")
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)
    assert row["target"] == 0.5
    assert row["recall"] >= 0.5
    said = boc("tune", "photos", "--at", at, "-k", 2, "--target-recall", 0.5)
    [advised] = re.findall(r'boc copy photos --code "(.+)" --rm', said.stdout)
    assert str(parse_code(advised)) == advised
    assert "on held-out queries" in said.stdout
    refused = boc("tune", "photos", "--at", at, "-k", 2, "--target-recall", 7)
    assert refused.exit_code == 1
    assert "between 0 and 1, got 7" in refused.output
