"""The truth of a gallery: queries, their right pictures, and the measures, against slow loops over
all of it."""

import json
import math
from itertools import combinations, groupby, permutations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.random import default_rng

from bench.datasets.gallery_truth import (
    DEPTH,
    FAMILIES,
    Picture,
    Sentence,
    holds,
    judge,
    queries,
    read_gallery,
)
from demo import boxes, draw_gallery, sample_scene
from demo.scene import RELATIONS

Box = tuple[float, float, float, float]


def draw_picture(seed: int) -> Picture:
    rng = default_rng(seed)
    scene = sample_scene(rng)
    return Picture(scene, tuple(boxes(scene, rng)))


GALLERIES = st.lists(
    st.integers(0, 10**6),
    min_size=1,
    max_size=25,
).map(
    lambda seeds: [draw_picture(s) for s in seeds],
)


def apart(a: Box, b: Box) -> dict[str, float]:
    """Return how far ``a`` is from ``b`` in each direction."""
    return {
        "left of": b[0] - a[2],
        "right of": a[0] - b[2],
        "above": b[1] - a[3],
        "below": a[1] - b[3],
    }


def has_all(sentence: Sentence, picture: Picture) -> bool:
    """Return whether some things of the picture, taken in order, are those of the sentence, and
    stand as it says."""
    if sentence.background not in ("", picture.scene.background):
        return False
    things = list(
        zip(
            picture.scene.things,
            picture.boxes,
            strict=True,
        ),
    )
    return any(
        all(
            t.kind == kind and colour in ("", t.colour)
            for (t, _), (kind, colour) in zip(order, sentence.things, strict=True)
        )
        and (not sentence.relation or apart(order[0][1], order[1][1])[sentence.relation] >= 0)
        for order in permutations(things, len(sentence.things))
    )


@pytest.mark.slow
@settings(max_examples=30)
@given(GALLERIES)
def test_parts_slow_loop(gallery: list[Picture]):
    for query in queries(gallery, 20):
        sentence = query.sentence
        for number, picture in enumerate(gallery):
            things = [(thing.kind, thing.colour) for thing in picture.scene.things]
            everything = has_all(sentence, picture)
            parts = {
                "kind": [any(kind == other for other, _ in things) for kind, _ in sentence.things],
                "colour": [(kind, colour) in things for kind, colour in sentence.things if colour],
                "place": [picture.scene.background == sentence.background]
                * bool(sentence.background),
                "relation": [everything] * bool(sentence.relation),
            }
            share = np.mean([flag for flags in parts.values() for flag in flags])
            assert query.relevance[number] == pytest.approx(share)
            assert (share == 1) == everything
            expected = {f"first: {name}": all(flags) for name, flags in parts.items() if flags}
            measures = judge([query], [[number]])
            assert {name: measures[name].value for name in expected} == expected
            assert measures["first: everything"].value == everything
        assert query.relevance.max() == 1


@settings(max_examples=30)
@given(GALLERIES, st.integers(0, 99))
def test_queries_distinct_seeded(gallery: list[Picture], seed: int):
    drawn = queries(gallery, 3, seed)
    assert [q.sentence for q in drawn] == [q.sentence for q in queries(gallery, 3, seed)]
    for family in FAMILIES:
        texts = [query.sentence.text for query in drawn if query.family == family]
        assert len(texts) == len(set(texts)) <= 3
    assert [query.family for query in drawn] == sorted(
        (q.family for q in drawn),
        key=FAMILIES.index,
    )


def test_sentence_text():
    rocket = ("rocket", "red")
    fish = ("fish", "")
    assert Sentence((rocket,)).text == "a red rocket"
    assert Sentence((rocket,), "desert").text == "a red rocket over the desert"
    assert Sentence((("umbrella", ""),)).text == "an umbrella"
    assert Sentence((("cat", "orange"),), "snow").text == "an orange cat in the snow"
    assert Sentence((rocket, ("fish", "blue"))).text == "a red rocket and a blue fish"
    assert (
        Sentence(
            (("lighthouse", ""), fish),
            relation="left of",
        ).text
        == "a lighthouse to the left of a fish"
    )


@given(st.integers(0, 10**6))
def test_relation_of_boxes(seed: int):
    picture = draw_picture(seed)
    for a, b in product(picture.boxes, repeat=2):
        for relation, distance in apart(a, b).items():
            assert holds(relation, a, b) == (distance >= 0) == holds(RELATIONS[relation], b, a)
    if picture.scene.relation:
        assert holds(
            picture.scene.relation,
            *picture.boxes,
        )


@settings(max_examples=20)
@given(GALLERIES, st.integers(0, 99))
def test_judge_best_and_empty_ranking(gallery: list[Picture], seed: int):
    for _, group in groupby(
        queries(gallery, 4, seed),
        lambda query: query.family,
    ):
        mine = list(group)
        best = judge(
            mine,
            [np.argsort(-query.relevance, kind="stable").tolist() for query in mine],
        )
        assert all(measure.value == pytest.approx(1) for measure in best.values())
        assert all(measure.count == len(mine) for measure in best.values())
        none = judge(mine, [[] for _ in mine])
        assert all(measure.value == 0 for measure in none.values())
        assert [m.chance for m in none.values()] == [m.chance for m in best.values()]


@pytest.mark.slow
def test_chance_mean_of_orders():
    """Each pair of pictures is left out once, and each of the others is once at every rank."""
    gallery = [draw_picture(seed) for seed in (3, 14, 15, 92)] * 3
    orders = []
    for last in combinations(range(12), 2):
        first = [number for number in range(12) if number not in last]
        orders += [[*first[k:], *first[:k], *last] for k in range(DEPTH)]
    for query in queries(gallery, 2):
        results = [judge([query], [order]) for order in orders]
        for name, measure in results[0].items():
            assert measure.chance == pytest.approx(np.mean([each[name].value for each in results]))


def test_ndcg_formula():
    gallery = [draw_picture(seed) for seed in range(14)]
    query = next(q for q in queries(gallery) if q.family == "place")
    order = default_rng(1).permutation(14).tolist()
    gains = query.relevance.tolist()

    def dcg(ranked):
        return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(ranked[:DEPTH], 1))

    expected = dcg([gains[k] for k in order]) / dcg(sorted(gains, reverse=True))
    assert judge([query], [order])[f"NDCG@{DEPTH}"].value == pytest.approx(expected)


def test_gallery_without_boxes(tmp_path: Path):
    for _ in draw_gallery(tmp_path, 2, seed=4, size=32):
        pass
    path = tmp_path / "scenes.json"
    entries = json.loads(path.read_text(encoding="utf-8"))
    del entries[0]["boxes"]
    path.write_text(
        json.dumps(entries),
        encoding="utf-8",
    )
    with pytest.raises(
        ValueError,
        match="lacks the positions of some things; paint the gallery again",
    ):
        read_gallery(path)
