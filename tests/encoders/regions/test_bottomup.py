"""The detector of bottom-up attention: names and shapes of its published weights, and its parts
against slow loops."""

import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from numpy.random import default_rng
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from boc.vectors import Floats

pytest.importorskip("torchvision")

from boc.errors import EncoderError
from boc.types import ImageRef
from encoders import regions
from encoders.regions import bottomup
from encoders.regions.bottomup import (
    BottomUpOptions,
    Detector,
    anchors_of,
    move_boxes,
    prepare_pixels,
    read_network,
)

PUBLISHED = {"stem": 64, "width": 64, "hidden": 512, "classes": 1600, "attributes": 400}
BLOCKS = {"backbone.res2": 3, "backbone.res3": 4, "backbone.res4": 23, "roi_heads.res5": 3}
TINY = {"stem": 4, "width": 2, "hidden": 6, "classes": 5, "attributes": 3}
FEW = {"backbone.res2": 1, "backbone.res3": 1, "backbone.res4": 2, "roi_heads.res5": 1}


def normed(
    name: str,
    outputs: int,
    inputs: int,
    size: int,
) -> dict[str, tuple[int, ...]]:
    """The shapes of a convolution and its normalisation."""
    parts = ("weight", "bias", "running_mean", "running_var")
    norm = {f"{name}.norm.{part}": (outputs,) for part in parts}
    return {f"{name}.weight": (outputs, inputs, size, size), **norm}


def shapes(
    sizes: dict[str, int],
    blocks: dict[str, int],
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a checkpoint, as the port of the Caffe model has them."""
    found = normed(
        "backbone.stem.conv1",
        sizes["stem"],
        3,
        7,
    )
    inputs = sizes["stem"]
    width = sizes["width"]
    for stage, count in blocks.items():
        for i in range(count):
            found |= normed(
                f"{stage}.{i}.conv1",
                width,
                inputs,
                1,
            )
            found |= normed(
                f"{stage}.{i}.conv2",
                width,
                width,
                3,
            )
            found |= normed(
                f"{stage}.{i}.conv3",
                4 * width,
                width,
                1,
            )
            if i == 0:
                found |= normed(
                    f"{stage}.{i}.shortcut",
                    4 * width,
                    inputs,
                    1,
                )
            inputs = 4 * width
        width *= 2
    # The fourth stage gives half as many channels as the fifth.
    maps = inputs // 2
    hidden = sizes["hidden"]
    head = "proposal_generator.rpn_head"
    predictor = "roi_heads.box_predictor"
    plain = {
        f"{head}.conv": (hidden, maps, 3, 3),
        f"{head}.objectness_logits": (12, hidden, 1, 1),
        f"{head}.anchor_deltas": (48, hidden, 1, 1),
        f"{predictor}.cls_score": (sizes["classes"] + 1, inputs),
        f"{predictor}.bbox_pred": (4 * sizes["classes"], inputs),
        f"{predictor}.fc_attr": (inputs // 4, inputs + inputs // 8),
        f"{predictor}.attr_score": (sizes["attributes"] + 1, inputs // 4),
    }
    for name, shape in plain.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    found[f"{predictor}.cls_embedding.weight"] = (sizes["classes"] + 1, inputs // 8)
    found["proposal_generator.anchor_generator.cell_anchors.0"] = (12, 4)
    return found


def cells() -> Tensor:
    """The anchors of a cell: four sizes, of each three ratios of height to width."""
    found = []
    for size in (64, 128, 256, 512):
        for ratio in (0.5, 1, 2):
            width = math.sqrt(size**2 / ratio)
            found.append(
                [
                    -width / 2,
                    -ratio * width / 2,
                    width / 2,
                    ratio * width / 2,
                ],
            )
    return torch.tensor(found)


def checkpoint(seed: int = 0) -> dict[str, Tensor]:
    """A small checkpoint of random weights, whose pictures have proposals of many sizes."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes(TINY, FEW).items():
        state[name] = torch.randn(shape, generator=generator) / math.prod(shape[1:]) ** 0.5
        if name.endswith(("running_var", "norm.weight")):
            state[name] = state[name].abs() + 0.5
    state["proposal_generator.anchor_generator.cell_anchors.0"] = cells()
    # No probability is 1.
    state["roi_heads.box_predictor.cls_score.weight"] /= 50
    return state


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.save(checkpoint(), tmp_path / "pytorch_model.bin")
    return tmp_path / "pytorch_model.bin"


def photo(
    path: Path,
    width: int = 200,
    height: int = 150,
    seed: int = 0,
) -> ImageRef:
    shape = (height // 10, width // 10, 3)
    pixels = default_rng(seed).integers(
        0,
        255,
        shape,
        dtype=np.uint8,
    )
    Image.fromarray(pixels).resize((width, height), Image.Resampling.NEAREST).save(path)
    return ImageRef(path.name, path)


def test_every_published_tensor_has_its_place() -> None:
    """The whole ResNet-101, without memory for its numbers."""
    expected = shapes(PUBLISHED, BLOCKS)
    assert len(expected) == 1 + 4 + 5 * (3 * (3 + 4 + 23 + 3) + 4) + 2 * 7 + 2
    with torch.device("meta"):
        network = Detector({name: torch.empty(shape) for name, shape in expected.items()})
    found = {
        name: tuple(t.shape)
        for name, t in network.state_dict().items()
        if not name.endswith("batches_tracked")
    }
    assert found == {
        name: shape for name, shape in expected.items() if not name.startswith(bottomup.UNUSED)
    }
    assert network.width == 2048
    modules = dict(network.named_modules())
    strides = [modules[name].stride for name in modules if name.endswith("conv1")]
    # Of the stem and two stages: with the pooling 16 pixels.
    assert strides.count((2, 2)) == 3
    last = [modules[name] for name in modules if re.fullmatch(r".*res5.*conv2", name)]
    assert {module.dilation for module in last} == {(2, 2)}


@pytest.mark.parametrize("form", ["bin", "safetensors"])
def test_a_checkpoint_is_read_by_name(
    weights: Path,
    form: str,
) -> None:
    path = weights.with_suffix(f".{form}")
    if form == "safetensors":
        save_file(checkpoint(), path)
    network = read_network(path)
    for name, tensor in network.state_dict().items():
        if not name.endswith("batches_tracked"):
            assert torch.equal(tensor, checkpoint()[name]), name
    assert not network.training


@given(rows=st.integers(1, 4), columns=st.integers(1, 4))
def test_anchors_stand_around_every_place(
    rows: int,
    columns: int,
) -> None:
    places = [(16 * x, 16 * y) for y in range(rows) for x in range(columns)]
    expected = torch.cat([cells() + torch.tensor([*place, *place]) for place in places])
    assert torch.allclose(anchors_of(cells(), rows, columns), expected)


@given(
    box=st.tuples(*[st.integers(-50, 50)] * 2, *[st.integers(1, 99)] * 2),
    step=st.lists(st.floats(-6, 6), min_size=4, max_size=4),
)
def test_boxes_are_moved_as_printed(
    box: tuple[int, ...],
    step: list[float],
) -> None:
    x, y, width, height = box
    centre = (x + width / 2 + step[0] * width, y + height / 2 + step[1] * height)
    sides = [
        side * math.exp(min(s, math.log(1000 / 16)))
        for side, s in zip((width, height), step[2:], strict=True)
    ]
    expected = [centre[i] + sign * sides[i] / 2 for sign in (-1, 1) for i in (0, 1)]
    boxes = torch.tensor(
        [
            [
                x,
                y,
                x + width,
                y + height,
            ],
        ],
        dtype=torch.float64,
    )
    result = move_boxes(boxes, torch.tensor([step], dtype=torch.float64))[0].tolist()
    assert result == pytest.approx(expected, abs=1e-6)


def overlap(
    a: list[float],
    b: list[float],
) -> float:
    sides = [max(0.0, min(a[i + 2], b[i + 2]) - max(a[i], b[i])) for i in (0, 1)]
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return sides[0] * sides[1] / (sum(areas) - sides[0] * sides[1])


@settings(max_examples=30)
@given(
    count=st.integers(0, 9),
    seed=st.integers(0, 999),
    least=st.sampled_from([0.1, 0.3, 0.7]),
)
def test_confidence(
    count: int,
    seed: int,
    least: float,
) -> None:
    rng = default_rng(seed)
    corners = np.sort(rng.random((count, 2, 2)), axis=1).reshape(count, 4).astype(np.float32)
    probabilities = rng.permutation(count * 3).reshape(count, 3).astype(np.float32) + 1  # no ties
    expected = np.zeros(count)
    for c in range(3):
        kept = []
        for i in np.argsort(-probabilities[:, c]):
            if all(overlap(corners[i].tolist(), corners[j].tolist()) <= least for j in kept):
                kept.append(int(i))
                expected[i] = max(expected[i], probabilities[i, c])
    result = bottomup.confidence(
        torch.from_numpy(corners),
        torch.from_numpy(probabilities),
        least,
    )
    assert result.tolist() == expected.tolist()


def test_pictures_are_resized_as_published() -> None:
    for width, height, expected in (
        (640, 480, (600, 800)),
        (2000, 500, (250, 1000)),
        (300, 300, (600, 600)),
    ):
        pixels = torch.zeros(
            3,
            height,
            width,
            dtype=torch.uint8,
        )
        pixels[0] = 255  # red
        found, scale = prepare_pixels(pixels)
        assert found.shape[1:] == expected
        assert scale == pytest.approx(expected[0] / height)
        assert torch.allclose(found[:, 0, 0], torch.tensor([-102.9801, -115.9465, 255 - 122.7717]))


def test_features_of_boxes(
    weights: Path,
    tmp_path: Path,
) -> None:
    """Pooled by hand, bin by bin, at the boxes of the regions."""
    source = regions.load(f"bottomup:{weights}?top=5")
    found = source(photo(tmp_path / "photo.png"))
    assert found.features.shape == (5, source.identity.dim) == (5, 64)
    network = read_network(weights)
    with Image.open(tmp_path / "photo.png") as image:
        pixels, _ = prepare_pixels(
            torch.from_numpy(np.asarray(image).copy()).permute(
                2,
                0,
                1,
            ),
        )
    # torch rounds the factors of convolutions to ten bits on a GPU
    tolerance = 1e-3 * found.features.max() if torch.cuda.is_available() else 1e-4
    with torch.inference_mode():
        maps = network.get_submodule("backbone.stem.conv1")(pixels[None]).relu()
        maps = torch.nn.functional.max_pool2d(
            maps,
            3,
            2,
            ceil_mode=True,
        )
        for name in ("res2", "res3", "res4"):
            maps = network.get_submodule(f"backbone.{name}")(maps)
        for box, feature in zip(found.boxes, found.features, strict=True):
            corners = box * np.float32([pixels.shape[2], pixels.shape[1]] * 2)
            x1, y1, x2, y2 = np.floor(corners / 16 + 0.5).astype(int)

            def part(
                first,
                last,
                i,
                most,
            ):
                """The i-th of 14 parts of a side, as far as it is in the map."""
                length = max(last - first + 1, 1) / 14
                ends = math.floor(i * length) + first, math.ceil((i + 1) * length) + first
                return slice(*np.clip(ends, 0, most))

            pooled = torch.zeros(
                1,
                maps.shape[1],
                14,
                14,
            )
            for i, j in np.ndindex(14, 14):
                rows = part(
                    y1,
                    y2,
                    i,
                    maps.shape[2],
                )
                columns = part(
                    x1,
                    x2,
                    j,
                    maps.shape[3],
                )
                pooled[0, :, i, j] = maps[0, :, rows, columns].amax(dim=(1, 2))
            expected = network.get_submodule("roi_heads.res5")(pooled).mean(dim=(2, 3))[0]
            assert np.abs(expected.numpy() - feature).max() < tolerance


def test_options_choose_the_regions(
    weights: Path,
    tmp_path: Path,
) -> None:
    image = photo(tmp_path / "photo.png")
    many, few = (regions.load(f"bottomup:{weights}?top={top}")(image) for top in (20, 3))
    assert np.array_equal(few.features, many.features[:3])
    assert len(regions.load(f"bottomup:{weights}?threshold=1")(image)) == 0
    source = regions.load(f"bottomup:{weights}?top=3")
    again = pickle.loads(pickle.dumps(source))  # noqa: S301
    assert again.identity == source.identity
    assert np.array_equal(again(image).features, few.features)
    queries = ("top=3", "top=4", "top=3&threshold=0.2")
    sources = [regions.load(f"bottomup:{weights}?{query}") for query in queries]
    assert len({source.identity.digest for source in sources}) == 3


@given(
    boxes=arrays(np.float32, (7, 4), elements=st.floats(-1, 2, width=32)),
    confidence=arrays(np.float32, 7, elements=st.sampled_from([0, 0.25, 0.5, 1])),
    top=st.integers(1, 8),
)
def test_kept_boxes_are_those_a_slow_loop_keeps(
    boxes: Floats,
    confidence: Floats,
    top: int,
) -> None:
    kept, rows = bottomup.select(
        boxes,
        confidence,
        BottomUpOptions(top, 0.25),
    )
    expected = []
    for i in sorted(range(7), key=lambda i: (-confidence[i], i)):
        x1, y1, x2, y2 = (min(max(v, 0), 1) for v in boxes[i])
        if confidence[i] >= 0.25 and x1 < x2 and y1 < y2 and len(expected) < top:
            expected.append((i, [x1, y1, x2, y2]))
    assert rows.tolist() == [i for i, _ in expected]
    assert kept.tolist() == [box for _, box in expected]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("size=3", "unknown parameter 'size=3'; known: top=36, threshold=0.0"),
        ("top", "unknown parameter 'top'"),
        ("", "unknown parameter ''"),
        ("top=many", "top is 'many' (expected `int`, got `str`); known: top=36"),
        ("top=3&top=4", "top occurs twice"),
        ("top=0", "top is '0' (expected `int` >= 1)"),
        ("threshold=2", "threshold is '2' (expected `float` <= 1.0)"),
        ("threshold=nan", "threshold is 'nan' (expected `float` >= 0.0)"),
    ],
)
def test_wrong_options(
    query: str,
    words: str,
) -> None:
    with pytest.raises(EncoderError) as caught:
        regions.load(f"bottomup:x?{query}")
    assert words in str(caught.value)


DAMAGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "lacking": lambda state: {
        name: state[name] for name in state if "res4.1.conv2.norm.bias" not in name
    },
    "left over": lambda state: {**state, "stranger": torch.zeros(1)},
    "misshapen": lambda state: {**state, "proposal_generator.rpn_head.conv.bias": torch.zeros(7)},
    "other": lambda state: {"model": [1, 2]},
    "executable": lambda state: {**state, "stranger": Path("x")},
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_wrong_weights(
    weights: Path,
    damage: Any,
) -> None:
    torch.save(damage(checkpoint()), weights)
    with pytest.raises(EncoderError, match=r"download pytorch_model\.bin of unc-nlp") as caught:
        regions.load(f"bottomup:{weights}")
    assert "\n" not in str(caught.value)


def test_missing_weights() -> None:
    with pytest.raises(EncoderError, match="weights do not exist"):
        regions.load("bottomup:absent.bin")
