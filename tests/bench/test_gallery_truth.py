"""The truth of a gallery: queries, their right pictures, and the measures, against slow loops over all of it."""

from __future__ import annotations

import json
import math
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.datasets.gallery_truth import (
    DEPTH,
    FAMILIES,
    Picture,
    Query,
    Sentence,
    holds,
    judge,
    lies_on,
    queries,
    read_gallery,
)
from boc.scenes import boxes, draw_gallery, sample_scene
from boc.scenes.scene import RELATIONS


def draw_picture(seed: int) -> Picture:
    rng = np.random.default_rng(seed)
    scene = sample_scene(rng)
    return Picture(scene, tuple(boxes(scene, rng)))


GALLERIES = st.lists(st.integers(0, 10**6), min_size=1, max_size=25).map(lambda seeds: [draw_picture(s) for s in seeds])


def has_all(sentence: Sentence, picture: Picture) -> bool:
    """Whether some things of the picture, taken in order, are those asked for, and stand as asked."""
    things = picture.scene.things
    for order in permutations(range(len(things)), min(len(sentence.things), len(things))):
        named = [things[k].kind == kind and colour in ("", things[k].colour) for k, (kind, colour) in
                 zip(order, sentence.things, strict=False)]  # fmt: skip
        if len(order) < len(sentence.things) or not all(named):
            continue
        if sentence.background not in ("", picture.scene.background):
            continue
        if not sentence.relation:
            return True
        a, b = (picture.boxes[k] for k in order)
        apart = {"left of": b[0] - a[2], "right of": a[0] - b[2], "above": b[1] - a[3], "below": a[1] - b[3]}
        if apart[sentence.relation] >= 0:
            return True
    return False


@pytest.mark.slow
@settings(max_examples=30)
@given(GALLERIES)
def test_right_pictures_are_those_of_the_slow_loop(gallery: list[Picture]) -> None:
    for query in queries(gallery, 20):
        right = [has_all(query.sentence, picture) for picture in gallery]
        assert (query.relevance == 1).tolist() == right
        assert any(right)
        assert ((query.relevance >= 0) & (query.relevance <= 1)).all()


@settings(max_examples=30)
@given(GALLERIES, st.integers(0, 99))
def test_queries_are_few_different_and_decided_by_the_seed(gallery: list[Picture], seed: int) -> None:
    found = queries(gallery, 3, seed)
    assert [q.sentence for q in found] == [q.sentence for q in queries(gallery, 3, seed)]
    for family in FAMILIES:
        texts = [query.sentence.text for query in found if query.family == family]
        assert len(texts) == len(set(texts)) <= 3
    assert [query.family for query in found] == sorted((q.family for q in found), key=FAMILIES.index)


def test_a_sentence_says_what_it_asks() -> None:
    rocket, fish = ("rocket", "red"), ("fish", "")
    assert Sentence((rocket,)).text == "a red rocket"
    assert Sentence((rocket,), "desert").text == "a red rocket over the desert"
    assert Sentence((("umbrella", ""),)).text == "an umbrella"
    assert Sentence((("cat", "orange"),), "snow").text == "an orange cat in the snow"
    assert Sentence((rocket, ("fish", "blue"))).text == "a red rocket and a blue fish"
    assert Sentence((("lighthouse", ""), fish), relation="left of").text == "a lighthouse to the left of a fish"


@given(st.integers(0, 10**6))
def test_a_relation_that_a_scene_has_holds_of_its_boxes(seed: int) -> None:
    picture = draw_picture(seed)
    for relation in RELATIONS:
        for a in picture.boxes:
            for b in picture.boxes:
                assert holds(relation, a, b) == holds(RELATIONS[relation], b, a)
                assert a != b or not holds(relation, a, b)
    if picture.scene.relation:
        assert holds(picture.scene.relation, *picture.boxes)


@settings(max_examples=20)
@given(GALLERIES, st.integers(0, 99))
def test_the_best_ranking_is_judged_best_and_chance_is_the_mean_of_all(gallery: list[Picture], seed: int) -> None:
    for family in FAMILIES:
        mine = [query for query in queries(gallery, 4) if query.family == family]
        if not mine:
            continue
        best = judge(mine, [np.argsort(-query.relevance, kind="stable").tolist() for query in mine])
        assert all(measure.value == pytest.approx(1) for measure in best.values())
        assert all(measure.count == len(mine) for measure in best.values())
        none = judge(mine, [[] for _ in mine])
        assert all(measure.value == 0 for measure in none.values())
        assert [m.chance for m in none.values()] == [m.chance for m in best.values()]


@pytest.mark.slow
def test_chance_is_what_all_orders_have_on_average() -> None:
    gallery = [draw_picture(seed) for seed in (3, 14, 15, 92)]
    many = gallery * 3  # more than are looked at
    rng = np.random.default_rng(0)
    for pictures, orders in (
        (gallery, list(permutations(range(4)))),
        (many, [rng.permutation(12) for _ in range(4000)]),
    ):
        for query in queries(pictures, 2):
            found = [judge([query], [list(order)]) for order in orders]
            for name, measure in found[0].items():
                mean = np.mean([each[name].value for each in found])
                exact = len(pictures) == 4
                assert measure.chance == pytest.approx(mean, abs=1e-9 if exact else 0.04)


def test_ndcg_is_the_sum_that_its_paper_prints() -> None:
    gallery = [draw_picture(seed) for seed in range(14)]
    query = next(q for q in queries(gallery) if q.family == "place")
    order = np.random.default_rng(1).permutation(14).tolist()
    gains = query.relevance.tolist()

    def dcg(ranked: list[float]) -> float:
        return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(ranked[:DEPTH], 1))

    expected = dcg([gains[k] for k in order]) / dcg(sorted(gains, reverse=True))
    assert judge([query], [order])[f"NDCG@{DEPTH}"].value == pytest.approx(expected)


@pytest.mark.slow
def test_the_first_hit_is_judged_in_each_respect() -> None:
    gallery = [draw_picture(seed) for seed in range(60)]
    for query in queries(gallery, 10):
        for number, picture in enumerate(gallery):
            found = {name: measure.value for name, measure in judge([query], [[number]]).items()}
            things = [(thing.kind, thing.colour) for thing in picture.scene.things]
            kinds = {kind for kind, _ in things}
            assert found["first: everything"] == has_all(query.sentence, picture)
            assert found["first: kind"] == all(kind in kinds for kind, _ in query.sentence.things)
            if "first: colour" in found:
                assert found["first: colour"] == all(each in things for each in query.sentence.things)
            if "first: place" in found:
                assert found["first: place"] == (picture.scene.background == query.sentence.background)


def test_boxes_of_a_gallery_are_where_the_things_are(tmp_path: Path) -> None:
    """Where a thing is hidden, the picture changes inside its box, a little tilt and shadow aside."""
    from boc.scenes import draw

    for _ in draw_gallery(tmp_path, 6, seed=4, size=64):
        pass
    for number, picture in enumerate(read_gallery(tmp_path / "scenes.json")):
        rngs = [np.random.default_rng([4, number]) for _ in range(2)]
        assert [sample_scene(rng) for rng in rngs] == [picture.scene] * 2
        whole, without = (
            np.asarray(draw(picture.scene, rng, 64, hide), dtype=float)
            for rng, hide in zip(rngs, ((), (0,)), strict=True)
        )
        changed = np.abs(whole - without).sum(axis=2)
        y, x = (np.arange(64) + 0.5)[:, None] / 64, (np.arange(64) + 0.5)[None, :] / 64
        left, top, right, bottom = picture.boxes[0]
        inside = (x >= left - 0.08) & (x <= right + 0.08) & (y >= top - 0.08) & (y <= bottom + 0.08)
        assert changed[inside].sum() > 0
        assert changed[~inside].sum() < 0.1 * changed.sum()


def test_a_gallery_without_boxes_is_refused(tmp_path: Path) -> None:
    for _ in draw_gallery(tmp_path, 2, seed=4, size=32):
        pass
    path = tmp_path / "scenes.json"
    entries = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps([{k: v for k, v in e.items() if k != "boxes"} for e in entries]), encoding="utf-8")
    with pytest.raises(ValueError, match="does not tell where all things are: draw the gallery again"):
        read_gallery(path)


def test_a_region_lies_on_a_thing_by_its_centre() -> None:
    assert lies_on((0.1, 0.1, 0.3, 0.3), (0.15, 0.15, 0.5, 0.5))
    assert not lies_on((0.0, 0.0, 0.2, 0.2), (0.15, 0.15, 0.5, 0.5))


def test_a_query_tells_the_share_of_what_it_asks() -> None:
    gallery = [draw_picture(seed) for seed in range(40)]
    for query in queries(gallery, 5):
        assert isinstance(query, Query)
        sentence = query.sentence
        for share, picture in zip(query.relevance, gallery, strict=True):
            things = [(thing.kind, thing.colour) for thing in picture.scene.things]
            parts = [any(kind == k for k, _ in things) for kind, _ in sentence.things]
            parts += [(kind, colour) in things for kind, colour in sentence.things if colour]
            parts += [picture.scene.background == sentence.background] * bool(sentence.background)
            parts += [has_all(sentence, picture)] * bool(sentence.relation)
            assert share == pytest.approx(sum(parts) / len(parts))
