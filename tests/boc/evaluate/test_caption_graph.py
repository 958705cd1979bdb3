"""Objects, attributes and relations of captions, and the relevance by them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boc.errors import BocError
from boc.evaluate.caption_graph import graph_relevance, singular, stem, tuples
from demo.scene import COLOURS, NOUNS, captions, sample_scene
from tests.helpers import boc

PARSED = {
    "A brown and black dog is approaching a red ball.": "dog, ball, dog brown, dog black, ball red, dog approach ball",
    "Two young girls sit in front of a graffiti wall": "girl, wall, girl two, girl young, wall graffiti, "
    "girl sit-in-front-of wall",
    "A man rides his bike through the woods.": "man, bike, wood, man rid bike, bike through wood",
    "The man in a striped shirt jumps over children, quickly": "man, shirt, child, shirt striped, man in shirt, "
    "man jump-over child",
    "a smiling woman with a parked car": "woman, car, woman smiling, car parked, woman with car",
    "a blue cat left of a green balloon": "cat, balloon, cat blue, balloon green, cat left-of balloon",
    "Dogs chase a rabbit": "dog, rabbit, dog chas rabbit",
    "": "",
    "with of the and": "",
}
SENTENCES = st.lists(
    st.lists(st.sampled_from(["a", "red", "dog", "dogs", "runs", "running", "on", "the", "and", "two", "Ж", ""]))
    .map(" ".join),
    min_size=1,
    max_size=8,
)  # fmt: skip


@pytest.mark.parametrize("sentence", PARSED)
def test_captions_are_parsed(sentence: str) -> None:
    expected = [tuple(part.replace("-", " ") for part in one.split()) for one in PARSED[sentence].split(", ") if one]
    assert tuples(sentence) == frozenset(expected)


def test_words_lose_their_endings() -> None:
    plurals = {"dogs": "dog", "women": "woman", "benches": "bench", "ponies": "pony", "leaves": "leaf",
               "grass": "grass", "glasses": "glass", "boxes": "box", "bus": "bus", "buses": "buse"}  # fmt: skip
    assert {word: singular(word) for word in plurals} == plurals
    for verbs in (("ride", "rides", "riding", "rode"), ("run", "runs", "running", "ran"), ("jump", "jumped", "jumps")):
        assert len({stem(verb) for verb in verbs}) == 1, verbs
    assert stem("falling") == "fall"


@given(text=st.text(max_size=80))
def test_any_text_is_parsed(text: str) -> None:
    for found in tuples(text):
        assert 1 <= len(found) <= 3
        assert all(found)
        assert (found[0],) in tuples(text)  # whatever has an attribute or relation is an object


@given(texts=SENTENCES, seed=st.integers(0, 99))
def test_the_relevance_is_the_f1_of_sets(texts: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    owners = rng.permutation(np.arange(len(texts)) % max(1, len(texts) // 2))
    found = graph_relevance(texts, owners)
    graphs = [
        set().union(*(tuples(t) for t, o in zip(texts, owners, strict=True) if o == p)) for p in range(max(owners) + 1)
    ]
    assert found.shape == (len(texts), len(graphs))
    assert found.dtype == np.float32
    for text, row in zip(texts, found, strict=True):
        for graph, value in zip(graphs, row, strict=True):
            both, sizes = len(tuples(text) & graph), len(tuples(text)) + len(graph)
            assert value == pytest.approx(2 * both / sizes if sizes else 0, abs=1e-6)
    order = rng.permutation(len(texts))
    assert np.array_equal(graph_relevance([texts[i] for i in order], owners[order]), found[order])


def test_captions_and_owners_must_fit() -> None:
    with pytest.raises(BocError, match="one owner for each caption, got 1 captions, 2 owners"):
        graph_relevance(["a dog"], np.array([0, 1]))
    with pytest.raises(BocError, match="picture 1 has no caption"):
        graph_relevance(["a dog", "a cat"], np.array([0, 2]))


def test_the_colours_of_painted_scenes_belong_to_their_things() -> None:
    """Every colour that a caption gives to a thing is found at that thing, and no other."""
    rng, found, expected = np.random.default_rng(3), [], []
    for _ in range(200):
        scene = sample_scene(rng)
        for caption in captions(scene, rng):
            named = {(noun.split()[-1], thing.colour) for thing in scene.things for noun in NOUNS[thing.kind]
                     if f"{thing.colour} {noun}" in caption}  # fmt: skip
            expected.append(named)
            found.append({one for one in tuples(caption) if len(one) == 2 and one[1] in COLOURS})
    assert sum(map(len, expected)) > 1000
    right = sum(len(one & other) for one, other in zip(found, expected, strict=True))
    assert right >= 0.98 * sum(map(len, expected))
    assert right >= 0.98 * sum(map(len, found))


@pytest.mark.slow
def test_the_command_takes_it(library: Path) -> None:
    plain, graph = (
        boc("evaluate", library / "photos.h5", "--ndcg", "--json", *more) for more in ((), ("--by", "graph"))
    )
    assert graph.exit_code == 0, graph.output
    (label,) = json.loads(graph.stdout)
    for side in ("text_to_image", "image_to_text"):
        one, other = (json.loads(told.stdout)[label][side] for told in (plain, graph))
        assert one["r10"] == other["r10"]
        assert one["ndcg"] != other["ndcg"]
        assert 0 < other["ndcg"] <= 1
    for wrong in (("--by", "graph"), ("--ndcg", "--by", "graph", "--relevance", "r.f32")):
        told = boc("evaluate", library / "photos.h5", *wrong)
        assert told.exit_code == 2
        assert "--by goes with --ndcg, and without --relevance" in told.stderr
