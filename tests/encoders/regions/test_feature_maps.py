"""Regions of a network in ONNX: its cells and crops against a slow loop, and networks of another
form."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings, strategies as st
from numpy.random import default_rng
from onnx import TensorProto, helper
from PIL import Image

from boc import plugins
from boc.errors import EncoderError
from boc.types import ImageRef
from boc.vectors import Floats
from encoders.regions._shared import cell_boxes
from encoders.regions.feature_maps import SPARE, _averages

# pixels of the input, and of a cell
SIDE = 32
CELL = 8


def make_network(
    path: Path,
    shape: tuple[object, ...] = ("B", 3, SIDE, SIDE),
    type_: int = TensorProto.FLOAT,
    operator: str = "cells",
) -> Path:
    """Write a network whose map is the mean colour of each cell; or one that no source takes."""
    node = helper.make_node
    pooling = {"kernel_shape": [CELL] * 2, "strides": [CELL] * 2}
    nodes = {
        "cells": [
            node(
                "AveragePool",
                ["x"],
                ["y"],
                **pooling,
            ),
        ],
        "vector": [
            node(
                "ReduceMean",
                ["x"],
                ["y"],
                axes=[2, 3],
                keepdims=0,
            ),
        ],
        "same": [node("Identity", ["x"], ["y"])],
        "two": [node("Identity", ["x"], ["y"]), node("Identity", ["x"], ["z"])],
        "failing": [
            node(
                "Constant",
                [],
                ["s"],
                value_ints=[1, 1, 7, 7],
            ),
            node("Reshape", ["x", "s"], ["y"]),
        ],
    }[operator]
    inputs = [helper.make_tensor_value_info("x", type_, shape)]
    names = "yz" if operator == "two" else "y"
    outputs = [helper.make_tensor_value_info(name, type_, None) for name in names]
    graph = helper.make_graph(
        nodes,
        "network",
        inputs,
        outputs,
    )
    versions = [helper.make_opsetid("", 13)]
    onnx.save(helper.make_model(graph, opset_imports=versions, ir_version=8), path)
    return path


def draw(
    path: Path,
    size: tuple[int, int],
    seed: int = 0,
) -> ImageRef:
    """Draw a smooth picture of random colours."""
    pixels = default_rng(seed).integers(
        0,
        256,
        (6, 6, 3),
        dtype=np.uint8,
    )
    Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(path, quality=95)
    return ImageRef(path.name, path)


def cell_means(picture: Image.Image) -> Floats:
    """Return the mean colours (16, 3) of the cells of a picture."""
    square = np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR), np.float32)
    corners = [(y, x) for y in range(0, SIDE, CELL) for x in range(0, SIDE, CELL)]
    return np.array([square[y : y + CELL, x : x + CELL].mean(axis=(0, 1)) for y, x in corners])


def test_regions_are_cells_and_crops(tmp_path: Path):
    source = plugins.region_source(f"onnx:{make_network(tmp_path / 'n.onnx')}?crops=2")
    image = draw(tmp_path / "one.png", (90, 60))
    found = source(image)
    with Image.open(image.path) as picture:
        parts = [picture.crop((x, y, x + 60, y + 40)) for y in (0, 20) for x in (0, 30)]
        cells = cell_means(picture)
        crops = [cell_means(part).mean(axis=0) for part in parts]
    assert np.allclose(found.features[:16], cells, atol=1e-3)
    # The resized edge reads pixels beside the crop.
    assert np.allclose(found.features[16:], crops, atol=0.2)
    assert np.allclose(found.boxes[[0, 15]], [[0, 0, 0.25, 0.25], [0.75, 0.75, 1, 1]])
    assert np.allclose(found.boxes[16:], cell_boxes(2, 2, 2))
    assert source.identity.dim == 3


@pytest.mark.slow
@pytest.mark.parametrize("crops", [0, 2])
def test_large_photographs_keep_their_colours(
    tmp_path: Path,
    crops: int,
):
    """A JPEG is decoded at a smaller size, which changes the means of cells by less than one of
    255."""
    network = make_network(tmp_path / "n.onnx")
    side = SPARE * SIDE * (crops + 1) // 2 * 8
    for seed in range(3):
        image = draw(
            tmp_path / "large.jpg",
            (side + 64, side),
            seed,
        )
        with Image.open(image.path) as picture:
            picture.save(tmp_path / "large.png")
        source = plugins.region_source(f"onnx:{network}?crops={crops}")
        exact = source(ImageRef("large.png", tmp_path / "large.png"))
        assert np.abs(source(image).features - exact.features).max() < 1


@settings(max_examples=50)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 99))
def test_averages(
    size: int,
    count: int,
    seed: int,
):
    values = default_rng(seed).random(size, dtype=np.float32)
    bounds = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
    means = [values[first:end].mean() for first, end in bounds]
    assert np.allclose(_averages(size, count) @ values, means, atol=1e-6)


@pytest.mark.parametrize("side", [1, 2, 5])
def test_crop_boxes(side: int):
    boxes = cell_boxes(side, side, 2)
    assert boxes.shape == (side * side, 4)
    assert np.allclose(boxes[:, 2:] - boxes[:, :2], 2 / (side + 1))
    assert boxes[:, :2].min() == 0
    assert boxes[:, 2:].max() == 1
    if side > 1:
        assert np.allclose(boxes[1, 0] - boxes[0, 0], (boxes[0, 2] - boxes[0, 0]) / 2)


def test_the_file_and_the_options_are_the_digest(tmp_path: Path):
    network = make_network(tmp_path / "n.onnx")
    (tmp_path / "copy.onnx").write_bytes(network.read_bytes())
    other = make_network(tmp_path / "other.onnx", operator="same")
    copy = tmp_path / "copy.onnx"
    arguments = (network, copy, f"{network}?cells=2", f"{network}?crops=1", other)
    sources = [plugins.region_source(f"onnx:{argument}") for argument in arguments]
    first, same, *others = (source.identity.digest for source in sources)
    assert first == same
    assert len({first, *others}) == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"type_": TensorProto.INT32, "operator": "same"}, r"reads tensor\(int32\)"),
        ({"shape": ("B", 3, "S", "S")}, "fixed S"),
        ({"shape": ("B", 1, SIDE, SIDE)}, r"B, C, rows, columns"),
        ({"shape": ("B", 3, SIDE, 2 * SIDE)}, "fixed S"),
        ({"operator": "vector"}, "one map"),
        ({"operator": "two"}, "one map"),
        ({"operator": "failing"}, "cannot be run"),
        ({"shape": (1, 3, SIDE, SIDE)}, "free B"),
    ],
)
def test_networks_of_another_form_are_refused(
    tmp_path: Path,
    change: dict[str, object],
    words: str,
):
    network = make_network(tmp_path / "n.onnx", **change)  # type: ignore[arg-type]
    with pytest.raises(EncoderError, match=rf"onnx:{network}.*{words}"):
        plugins.region_source(f"onnx:{network}?crops=2")


def test_missing_and_damaged_files(tmp_path: Path):
    (tmp_path / "rubbish").write_bytes(b"no network")
    for name, words in {
        "rubbish": "recreate it",
        "nowhere": "cannot be read as a network",
        "": "cannot be read as a network",
    }.items():
        with pytest.raises(EncoderError, match=words):
            plugins.region_source(f"onnx:{tmp_path / name}")
