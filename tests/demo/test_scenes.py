"""The gallery of painted scenes: laws of the drawing and of the captions."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings, strategies as st
from numpy.random import default_rng
from PIL import Image

from demo import (
    Scene,
    Thing,
    boxes,
    captions,
    draw,
    draw_gallery,
    gallery as painter,
    read_scenes,
    sample_scene,
    scene as scenes,
)
from demo.canvas import SKIES
from demo.land import PLACES
from demo.things import ART, COLOURS
from tests.helpers import contents

SEEDS = st.integers(0, 2**32)
SAMPLED = SEEDS.map(lambda seed: sample_scene(default_rng(seed)))
RELATED = SAMPLED.filter(lambda scene: scene.relation is not None)
THINGS = st.builds(
    Thing,
    *(
        st.sampled_from(list(names))
        for names in (
            ART,
            COLOURS,
            scenes.SIZES,
        )
    ),
)
ANY = st.builds(
    Scene,
    st.sampled_from(list(PLACES)),
    st.sampled_from(list(SKIES)),
    st.lists(THINGS, min_size=1, max_size=3).map(tuple),
) | st.builds(
    Scene,
    st.sampled_from(list(PLACES)),
    st.sampled_from(list(SKIES)),
    st.tuples(THINGS, THINGS),
    st.sampled_from(list(scenes.RELATIONS)),
)
KIND_OF = {noun: kind for kind, nouns in scenes.NOUNS.items() for noun in nouns}
SIZE_OF = {word: size for size, words in scenes.SIZE_WORDS.items() for word in words}
RELATION_OF = {
    words: relation for relation, several in scenes.RELATION_WORDS.items() for words in several
}


def _either(words: dict[str, str] | dict[str, tuple[float, float, float]]) -> str:
    return "|".join(
        sorted(
            map(re.escape, words),
            key=len,
            reverse=True,
        ),
    )


NAMED = rf"\ban? (?:({_either(SIZE_OF)}) )?(?:({_either(COLOURS)}) )?({_either(KIND_OF)})\b"
RELATED_NAMES = re.compile(rf"{NAMED} (?:[a-z]+ ){{0,2}}?\b({_either(RELATION_OF)}) {NAMED}")


def _generator(seed: int = 0) -> np.random.Generator:
    return default_rng(seed)


def _fits(name: tuple[str, ...], thing: Thing) -> bool:
    size, colour, noun = name
    sized = not size or SIZE_OF[size] == thing.size
    return KIND_OF[noun] == thing.kind and colour in ("", thing.colour) and sized


def _gallery(folder: Path, count: int, seed: int = 5, size: int = 48) -> Path:
    assert list(
        draw_gallery(
            folder,
            count,
            seed,
            size,
        ),
    ) == list(range(1, count + 1))
    return folder


@pytest.fixture(scope="module")
def gallery(tmp_path_factory) -> Path:
    return _gallery(tmp_path_factory.mktemp("gallery"), 12)


def _captions_of(folder: Path) -> list[list[str]]:
    with (folder / "captions.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_gallery_depends_on_the_seed(gallery: Path, tmp_path: Path):
    again = _gallery(tmp_path / "again", 12)
    other = _gallery(tmp_path / "other", 12, seed=6)
    assert contents(again) == contents(gallery)
    assert contents(other)["images/00000.jpg"] != contents(gallery)["images/00000.jpg"]


def test_fields_are_of_the_scenes(gallery: Path):
    painted = read_scenes(gallery / "scenes.json")
    lines = [f"{k:05d}.jpg,{each.background},{each.sky}" for k, each in enumerate(painted)]
    assert (gallery / "fields.csv").read_text().splitlines() == ["id,landscape,sky", *lines]


def test_table_has_five_captions_per_picture(gallery: Path):
    header, *rows = _captions_of(gallery)
    assert header == ["image", "caption"]
    assert [name for name, _ in rows] == [f"{k:05d}.jpg" for k in range(12) for _ in range(5)]
    for name in {name for name, _ in rows}:
        with Image.open(gallery / "images" / name) as image:
            assert (image.size, image.mode) == ((48, 48), "RGB")


@pytest.mark.slow
@given(scene=ANY, seed=SEEDS)
@settings(max_examples=200, deadline=None)
def test_boxes_are_apart_and_related(scene: Scene, seed: int):
    places = boxes(scene, _generator(seed))
    assert all(
        0 <= left < right <= 1 and 0 <= top < bottom <= 1 for left, top, right, bottom in places
    )
    for k, one in enumerate(places):
        for two in places[:k]:
            assert one[2] <= two[0] or two[2] <= one[0] or one[3] <= two[1] or two[3] <= one[1]
    if scene.relation is not None:
        assert _holds(scene.relation, places[0], places[1])


def _holds(relation: str, one: scenes.Box, two: scenes.Box) -> bool:
    return {
        "left of": one[2] <= two[0],
        "right of": two[2] <= one[0],
        "above": one[3] <= two[1],
        "below": two[3] <= one[1],
    }[relation]


@pytest.mark.slow
@given(scene=SAMPLED | ANY, seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_things_are_visible_in_their_boxes(scene: Scene, seed: int):
    whole = np.asarray(draw(scene, _generator(seed), 96), int)
    for k, box in enumerate(boxes(scene, _generator(seed))):
        without = np.asarray(
            draw(
                scene,
                _generator(seed),
                96,
                hide={k},
            ),
            int,
        )
        changed = np.abs(whole - without).max(axis=2) > 12
        left, top, right, bottom = (round(edge * 96) for edge in box)
        inside = changed[top:bottom, left:right]
        assert inside.mean() > 0.1
        assert changed.sum() < 2.2 * inside.size


@pytest.mark.slow
@given(scene=ANY | SAMPLED, seed=SEEDS)
@settings(max_examples=200, deadline=None)
def test_captions_are_true_and_distinct(scene: Scene, seed: int):
    said = captions(scene, _generator(seed))
    assert len(said) == len(set(said)) == 5
    for caption in said:
        names = re.findall(NAMED, caption)
        assert names
        assert all(any(_fits(name, thing) for thing in scene.things) for name in names)
        assert 3 <= len(caption.split()) <= 24
        assert not re.search(r"\ban [^aeiou]|\ba [aeiou]|  ", caption)


@pytest.mark.slow
@given(scene=RELATED, seed=SEEDS)
@settings(max_examples=150, deadline=None)
def test_relations_match_positions(scene: Scene, seed: int):
    places = dict(
        zip(
            (thing.kind for thing in scene.things),
            boxes(scene, _generator(seed)),
            strict=True,
        ),
    )
    for caption in captions(scene, _generator(seed), 12):
        found = RELATED_NAMES.search(caption)
        assert bool(found) == any(re.search(rf"\b{words}\b", caption) for words in RELATION_OF)
        if found:
            assert _holds(
                RELATION_OF[found[4]],
                places[KIND_OF[found[3]]],
                places[KIND_OF[found[7]]],
            )


def test_gallery_replaces_only_a_gallery(tmp_path: Path):
    paint = CliRunner().invoke
    assert paint(painter.main, [str(tmp_path / "new"), "--count", "3"]).exit_code == 0
    assert paint(painter.main, [str(tmp_path / "new"), "--count", "1"]).exit_code == 0
    assert [path.name for path in (tmp_path / "new" / "images").iterdir()] == ["00000.jpg"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "captions.csv").write_text("my only copy")
    result = paint(painter.main, [str(tmp_path / "mine"), "--count", "1"])
    assert "choose another folder" in result.stderr
    assert contents(tmp_path / "mine") == {"captions.csv": b"my only copy"}
