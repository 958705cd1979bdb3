"""The strongest relations between regions, their figure, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from boc import plugins
from boc.explain.relations import ARROW, BOX, Relation, Relations, draw_relations, strongest
from boc.types import ImageRef
from encoders import regions
from encoders.networks import text_towers
from encoders.runtime.model_folder import create_folder, make, save_weights
from tests.helpers import boc


@given(size=st.integers(2, 6), seed=st.integers(0, 99), count=st.integers(1, 40))
def test_they_are_the_largest_affinities_of_two_regions(size: int, seed: int, count: int) -> None:
    R = np.random.default_rng(seed).integers(-3, 4, (size, size)).astype(np.float32)
    pairs = [(i, j) for i in range(size) for j in range(size) if i != j]
    expected = sorted(pairs, key=lambda pair: -R[pair])[:count]
    found = strongest(R, count)
    assert [(relation.to, relation.of) for relation in found] == expected
    assert [relation.weight for relation in found] == [R[pair] for pair in expected]


def test_an_arrow_ends_with_its_head_where_it_gives_to() -> None:
    boxes = np.array([[0, 0, 0.2, 0.4], [0.6, 0.5, 1, 1], [0.4, 0, 0.5, 0.1]], dtype=np.float32)
    photo = Image.new("RGB", (500, 250), (255, 255, 255))
    drawn = np.asarray(draw_relations(photo, Relations([Relation(0, 1, 0.5)], boxes)))
    assert drawn[0, 50].tolist() == list(BOX)  # upper edge of the first box
    assert drawn[249, 499].tolist() == list(BOX)  # the last pixel of the second
    assert (drawn[:26, 200:250] == 255).all()  # the third is in no relation
    blue = (drawn == ARROW).all(axis=2)

    def near(x: int, y: int) -> int:
        return int(blue[y - 12 : y + 12, x - 12 : x + 12].sum())

    assert (drawn[3:20, 4:16] == BOX).all(axis=2).any()  # its number
    assert near(400, 187) > near(50, 50) > 0
    assert (np.asarray(photo) == 255).all()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A VSRN of random weights over the cells of a picture."""
    folder = tmp_path_factory.mktemp("model")
    source = regions.load("grid")
    tower = text_towers.load_tower("words", 1, ["a red box"])
    torch.manual_seed(0)
    network = make("vsrn", {"region_dim": source.identity.dim, "width": 8}, tower.text)
    create_folder(folder, "vsrn", network, tower.tokens, source)
    save_weights(folder, network.state_dict())
    return folder


def test_the_command_tells_and_draws_them(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    photo = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8)).save(photo)
    told = boc("show-relations", photo, "--encoder", f"vsrn:{model}", "-k", 2, "--device", "cpu", "--json")
    assert told.exit_code == 0, told.output
    record = json.loads(told.stdout)
    encoder = plugins.encoder(f"vsrn:{model}", "cpu")
    prepared = encoder.prepare(ImageRef("photo.png", photo))
    expected = strongest(encoder.affinities(prepared), 2)
    assert [(r["from"] - 1, r["to"] - 1, r["affinity"]) for r in record["relations"]] == expected
    assert record["relations"][0]["boxes"] == prepared.boxes[[expected[0].of, expected[0].to]].tolist()
    with Image.open(tmp_path / "photo-relations.png") as figure:
        assert figure.size == (90, 60)
    printed = boc("show-relations", photo, "--encoder", f"vsrn:{model}", "-o", "other.png")
    assert len(printed.stdout.splitlines()) == 3


def test_a_picture_that_is_not_there_is_named(model: Path, tmp_path: Path) -> None:
    told = boc("show-relations", tmp_path / "x.jpg", "--encoder", f"vsrn:{model}", "-o", tmp_path / "f.png")
    assert told.exit_code == 1
    assert "x.jpg: cannot be read (No such file or directory); check its name and folder" in told.stderr


def test_what_relates_no_regions_is_named(library: Path, tmp_path: Path) -> None:
    command = ("show-relations", library / "images" / "003.png", "-o", tmp_path / "figure.png")
    told = boc(*command, "--encoder", f"tern:{library / 'model'}")
    assert "relates no regions to each other; use a vsrn or vsrnpp" in told.stderr
    assert len(told.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())
    assert "--encoder vsrnpp:FOLDER" in boc(*command).stderr
