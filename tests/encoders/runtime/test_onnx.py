"""Networks in ONNX give what torch gives, belong to their weights, and need no torch."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from boc import plugins  # noqa: E402
from boc.errors import EncoderError  # noqa: E402
from boc.types import Embeddings, Regions, Runtime  # noqa: E402
from encoders.networks import text_towers  # noqa: E402
from encoders.runtime import model_folder, set_encoder  # noqa: E402
from encoders.runtime.model_config import parts  # noqa: E402
from encoders.runtime.onnx_export import export  # noqa: E402
from encoders.runtime.onnx_record import read_record  # noqa: E402
from tests.helpers import boc  # noqa: E402

pytestmark = pytest.mark.slow

CAPTIONS = ["a red dog runs in the snow", "two dogs and a boat", "the dog is left of a boat"] * 5
WIDTH = 108
TERN = {
    "visual_width": 16,
    "joint_width": 16,
    "feedforward": 32,
    "visual_layers": 1,
    "joint_layers": 1,
}
GATHERED = {
    **TERN,
    "visual_layers": 0,
    "joint_layers": 0,
    "stop_words": False,
    "vector": "gathered",
    "last_word": True,
}
NETWORKS: dict[str, tuple[str, dict[str, Any], str]] = {
    "tern": (
        "tern",
        {
            **TERN,
            "scaled": True,
            "residual": 1.0,
            "region_power": 0.5,
        },
        "small",
    ),
    "teran": ("teran", GATHERED, "small-gru"),
    "vsrn": ("vsrn", {"width": 16}, "words"),
    "vsrnpp": ("vsrnpp", {"width": 16}, "small"),
}
SENTENCES = [
    "a dog",
    "the dog is red",
    "",
    "boat",
    "two dogs and a boat " * 9,
    "a dog",
]


def model(
    folder: Path,
    kind: str,
    sizes: dict[str, Any],
    tower: str,
) -> str:
    """A model folder with random weights; its spec."""
    torch.manual_seed(0)
    text = text_towers.load_tower(tower, 1, CAPTIONS)
    described = {**text.text, "stop_ids": text_towers.stop_ids(text.tokens)}
    network = model_folder.make(
        kind,
        {"region_dim": WIDTH, **sizes},
        described,
    )
    folder.mkdir()
    model_folder.save_weights(folder, network.state_dict())
    model_folder.create_folder(
        folder,
        kind,
        network,
        text.tokens,
        plugins.region_source("grid"),
    )
    return f"{kind}:{folder}"


def on_cpu(spec: str) -> Any:
    return plugins.encoder(spec, runtime=Runtime("cpu"))


def assert_equal(
    one: Embeddings,
    other: Embeddings,
) -> None:
    assert one.words == other.words
    assert np.abs(one.vectors - other.vectors).max() <= 1e-4
    assert one.concepts is not None
    assert other.concepts is not None
    assert np.array_equal(one.concepts.offsets, other.concepts.offsets)
    assert np.abs(one.concepts.values - other.concepts.values).max(initial=0) <= 1e-4


@pytest.mark.parametrize("name", NETWORKS)
def test_both_runtimes_give_one_result(
    name: str,
    tmp_path: Path,
    monkeypatch,
):
    """For texts of any length, and pictures with any number of regions, alone and in batches."""
    spec = model(tmp_path / "model", *NETWORKS[name])
    reference = on_cpu(spec)
    alone = on_cpu(f"{spec}?alone").encode_texts(SENTENCES)
    assert list(export(tmp_path / "model")) == ["writing text.onnx", "writing image.onnx"]
    assert list(export(tmp_path / "model")) == []
    monkeypatch.setattr(
        set_encoder,
        "import_for_torch",
        lambda name: pytest.fail(f"{name} is imported"),
    )
    encoder = on_cpu(spec)
    assert encoder.identity == reference.identity
    assert_equal(encoder.encode_texts(SENTENCES), reference.encode_texts(SENTENCES))
    assert_equal(encoder.encode_texts(SENTENCES[1:2]), reference.encode_texts(SENTENCES[1:2]))
    rng = np.random.default_rng(1)
    corners = [
        np.sort(rng.random((count, 2, 2), np.float32), axis=1).reshape(count, 4)
        for count in (5, 1, 46, 0, 5)
    ]
    prepared = [Regions(rng.random((len(boxes), WIDTH), np.float32), boxes) for boxes in corners]
    assert_equal(encoder.encode_images(prepared), reference.encode_images(prepared))
    assert_equal(encoder.encode_images(prepared[3:4]), reference.encode_images(prepared[3:4]))
    assert_equal(on_cpu(f"{spec}?alone").encode_texts(SENTENCES), alone)


def test_an_operation_that_onnx_lacks_is_left_to_torch(tmp_path: Path):
    spec = model(
        tmp_path / "model",
        "vsrn",
        {"width": 16, "region_order": "size"},
        "words",
    )
    regions = plugins.region_source("grid").identity.dim
    prepared = [
        Regions(
            np.ones((3, regions), np.float32),
            np.tile(np.array([0, 0, 1, 1], np.float32), (3, 1)),
        ),
    ]
    expected = on_cpu(spec).encode_images(prepared)
    lines = list(export(tmp_path / "model"))
    assert any(line.startswith("image.onnx still runs on torch: ") for line in lines)
    assert not (tmp_path / "model" / "image.onnx").exists()
    assert_equal(on_cpu(spec).encode_images(prepared), expected)


def test_networks_belong_to_their_weights(tmp_path: Path):
    folder = tmp_path / "model"
    spec = model(folder, *NETWORKS["teran"])
    assert boc(f"convert {folder}").exit_code == 0
    assert read_record(folder, parts(folder)) is not None
    assert (
        "omit the options"
        in boc(
            f"convert {folder} --regions grid",
        ).output
    )
    network = model_folder.load_network(folder, model_folder.read_config(folder))
    with torch.no_grad():
        network.img_proj.bias += 1
    whole = (folder / "onnx.json").read_bytes()
    model_folder.save_weights(folder, network.state_dict())
    assert not (folder / "onnx.json").exists()
    (folder / "onnx.json").write_bytes(whole)  # as a copy of an older one would leave it
    os.utime(folder / "onnx.json", ns=(0, 0))
    assert read_record(folder, parts(folder)) is None
    assert boc(f"convert {folder}").exit_code == 0
    assert on_cpu(spec).identity.digest == parts(folder).digest()
    (folder / "text.onnx").write_bytes((folder / "text.onnx").read_bytes()[:-1])
    with pytest.raises(
        EncoderError,
        match=r"text.onnx: missing or damaged; recreate it with boc convert",
    ):
        on_cpu(spec).encode_texts(["a dog"])
    assert boc(f"convert {folder}").exit_code == 0
    assert len(on_cpu(spec).encode_texts(["a dog"])) == 1
    weights = folder / parts(folder).weights[0]
    weights.write_bytes(weights.read_bytes()[:-3] + b"abc")
    os.utime(weights, ns=(0, 0))  # as a copy of an older file of the same size leaves it
    assert read_record(folder, parts(folder)) is None
