"""Patch grids: the states are the network's, and each box is where its cell looked in the upright picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from boc import plugins
from boc.errors import EncoderError
from boc.types import ImageRef
from tests.helpers import refuse_connections

VIT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
STAGES = {"hidden_sizes": [8, 8, 8, 16], "depths": [1, 1, 1, 1]}


def make(folder: Path, network: Any, processor: Any) -> str:
    network.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


def square(side: int) -> dict[str, int]:
    return {"height": side, "width": side}


def make_dinov2(folder: Path, registers: int = 0) -> str:
    t = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 7}
    if registers:
        config = t.Dinov2WithRegistersConfig(**sizes, num_register_tokens=registers)
        network = t.Dinov2WithRegistersModel(config)
    else:
        network = t.Dinov2Model(t.Dinov2Config(**sizes))
    return make(folder, network, t.BitImageProcessor(size={"shortest_edge": 32}, crop_size=square(28)))


def make_registers(folder: Path) -> str:
    return make_dinov2(folder, registers=4)


def make_vit(folder: Path) -> str:
    t = pytest.importorskip("transformers")
    network = t.ViTModel(t.ViTConfig(**VIT, image_size=30, patch_size=8))  # 30 pixels: the last 6 belong to no patch
    return make(folder, network, t.ViTImageProcessor(size=square(30)))


def make_swin(folder: Path) -> str:
    t = pytest.importorskip("transformers")
    sizes = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4}
    return make(folder, t.SwinModel(t.SwinConfig(**sizes)), t.ViTImageProcessor(size=square(32)))


def make_convnext(folder: Path) -> str:
    t = pytest.importorskip("transformers")
    processor = t.ConvNextImageProcessor(size={"shortest_edge": 96}, crop_pct=0.875)
    return make(folder, t.ConvNextModel(t.ConvNextConfig(**STAGES)), processor)


def make_clip(folder: Path) -> str:
    t = pytest.importorskip("transformers")
    tower = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    text = tower | {"vocab_size": 20, "bos_token_id": 0, "eos_token_id": 1}
    config = t.CLIPConfig(text_config=text, vision_config=VIT | {"image_size": 32, "patch_size": 8}, projection_dim=8)
    processor = t.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=square(32))
    return make(folder, t.CLIPModel(config), processor)


BACKBONES: dict[str, tuple[Callable[[Path], str], int, int]] = {
    "dinov2": (make_dinov2, 4, 7),
    "dinov2-registers": (make_registers, 4, 7),
    "vit": (make_vit, 3, 8),
    "swin": (make_swin, 8, 4),
    "convnext": (make_convnext, 3, 32),
    "clip": (make_clip, 4, 8),
}
"""Maker of a model, cells a side, and pixels a cell."""


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_connections(monkeypatch)


def ramps(folder: Path, width: int, height: int) -> ImageRef:
    """A picture whose red says x and whose green says y."""
    y, x = np.mgrid[0:height, 0:width]
    red, green = (x + 0.5) / width * 255, (y + 0.5) / height * 255
    Image.fromarray(np.stack([red, green, 0 * red], axis=-1).round().astype(np.uint8)).save(folder / "a.png")
    return ImageRef("a.png", folder / "a.png")


@pytest.mark.parametrize(("maker", "side", "pixels"), BACKBONES.values(), ids=BACKBONES.keys())
def test_boxes_are_where_the_cells_looked(maker: Callable[[Path], str], side: int, pixels: int, tmp_path: Path) -> None:
    from transformers import AutoImageProcessor

    folder = maker(tmp_path / "model")
    source = plugins.region_source(f"patches:{folder}")
    processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil")
    for size in ((400, 300), (250, 500), (64, 64)):
        image = ramps(tmp_path, *size)
        regions = source(image)
        assert regions.features.shape == (side * side, 16)
        view = processor(Image.open(image.path), return_tensors="np", do_normalize=False)["pixel_values"][0]
        for i, (x1, y1, x2, y2) in enumerate(regions.boxes):
            row, column = divmod(i, side)
            cell = view[:, row * pixels : (row + 1) * pixels, column * pixels : (column + 1) * pixels]
            assert cell[0].mean() == pytest.approx((x1 + x2) / 2, abs=0.02)
            assert cell[1].mean() == pytest.approx((y1 + y2) / 2, abs=0.02)
            step = (cell[0, 0, -1] - cell[0, 0, 0]) * pixels / (pixels - 1)
            assert step == pytest.approx(x2 - x1, abs=0.03)


@pytest.mark.parametrize("name", ["dinov2", "dinov2-registers", "clip"])
def test_patch_features(name: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoImageProcessor, AutoModel

    maker, side, _ = BACKBONES[name]
    folder = maker(tmp_path / "model")
    image = ramps(tmp_path, 50, 40)
    regions = plugins.region_source(f"patches:{folder}")(image)
    network = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    network = network.vision_model if name == "clip" else network
    processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil")
    with torch.inference_mode():
        states = network(**processor(Image.open(image.path), return_tensors="pt")).last_hidden_state[0]
    specials = {"dinov2": 1, "dinov2-registers": 5, "clip": 1}[name]
    assert len(states) == specials + side * side
    np.testing.assert_allclose(regions.features, states[specials:].numpy(), atol=1e-5)


def test_other_weights_have_another_digest(tmp_path: Path) -> None:
    sources = [plugins.region_source(f"patches:{make_vit(tmp_path / name)}") for name in "ab"]
    assert len({source.identity.digest for source in sources}) == 2


def test_cells_that_saw_only_padding_are_left_out() -> None:
    pytest.importorskip("transformers")
    from encoders.regions.patches import visible_window

    padded = SimpleNamespace(do_resize=False, do_center_crop=True, crop_size=square(40))
    assert visible_window(padded, (40, 20), (40, 40), "x").tolist() == [0, -0.5, 1, 1.5]


def test_padding_has_no_region(tmp_path: Path) -> None:
    t = pytest.importorskip("transformers")
    network = t.ViTModel(t.ViTConfig(**VIT, image_size=32, patch_size=8))
    processor = t.CLIPImageProcessor(do_resize=False, crop_size=square(32))
    source = plugins.region_source(f"patches:{make(tmp_path / 'model', network, processor)}")
    regions = source(ramps(tmp_path, 32, 16))
    assert len(regions) == 8
    assert regions.boxes[0].tolist() == [0, 0, 0.25, 0.5]
    assert regions.boxes[-1].tolist() == [0.75, 0.5, 1, 1]


def test_backbone_without_pooler(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = Path(make_vit(tmp_path / "model"))
    state = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in state.items() if "pooler" not in name}
    assert len(kept) < len(state)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    image = ramps(tmp_path, 50, 40)
    found = [plugins.region_source(f"patches:{folder}")(image) for _ in range(2)]
    assert np.array_equal(found[0].features, found[1].features)


def test_what_has_no_grid_is_refused(tmp_path: Path) -> None:
    t = pytest.importorskip("transformers")
    masked = t.ViTMAEModel(t.ViTMAEConfig(**VIT, image_size=32, patch_size=8))
    with pytest.raises(EncoderError, match="make no grid"):
        plugins.region_source(f"patches:{make(tmp_path / 'mae', masked, t.ViTImageProcessor(size=square(32)))}")
    reader = t.BertModel(t.BertConfig(**VIT, vocab_size=9))
    with pytest.raises(EncoderError, match="no vision backbone"):
        plugins.region_source(f"patches:{make(tmp_path / 'bert', reader, t.ViTImageProcessor(size=square(32)))}")
    with pytest.raises(EncoderError, match="hf download facebook/dinov2-base"):
        plugins.region_source("patches:facebook/dinov2-base")
    with pytest.raises(EncoderError, match="write patches:FOLDER"):
        plugins.region_source("patches")
