"""Folders of the open_clip library: against the library itself, on tiny models of random
weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from boc import plugins
from boc.errors import EncoderError
from boc.types import ImageRef
from encoders.runtime.dual_encoder import DualEncoder
from tests.encoders.test_clip import TEXTS, clip_tokenizer

open_clip = pytest.importorskip(
    "open_clip",
    reason="the open_clip library is the oracle: pip install open_clip_torch",
)

CLOSE = 2e-6
VISION = {"image_size": 32, "layers": 2, "width": 16, "patch_size": 8, "head_width": 8}
PIXELS = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.25, 0.3]}


def make(folder: Path, weights: str = "open_clip_model.safetensors", **network: Any) -> Any:
    """A folder as open_clip publishes them; the network itself."""
    texts = clip_tokenizer(folder)
    context = texts["max_position_embeddings"]
    text = {
        "context_length": context,
        "vocab_size": texts["vocab_size"],
        "width": 24,
        "heads": 3,
        "layers": 2,
    }
    sizes = {"embed_dim": 12, "vision_cfg": VISION, "text_cfg": text} | network
    torch.manual_seed(0)
    model = open_clip.model.CLIP(**sizes).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.2 * torch.randn(tensor.shape))
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if weights.endswith(".safetensors"):
        save_file(state, folder / weights)
    else:
        torch.save(state, folder / weights)
    config = {"model_cfg": sizes, "preprocess_cfg": PIXELS}
    (folder / "open_clip_config.json").write_text(json.dumps(config), encoding="utf-8")
    return model


def load_encoder(folder: Path) -> Any:
    encoder = plugins.encoder(f"clip:{folder}", "cpu")
    assert isinstance(encoder, DualEncoder)
    return encoder


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("weights", ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"])
def test_texts_have_the_vectors_of_the_library(
    tmp_path: Path,
    quick: bool,
    weights: str,
) -> None:
    model = make(tmp_path, weights, quick_gelu=quick)
    encoder = load_encoder(tmp_path)
    ids = torch.zeros(
        len(TEXTS),
        encoder.tokens.limit,
        dtype=torch.int64,
    )
    for row, each in enumerate(encoder.tokens.encode(TEXTS)):
        ids[row, : len(each)] = torch.tensor(each.ids)
    with torch.inference_mode():
        expected = model.encode_text(ids, normalize=True).numpy()
    assert np.abs(encoder.encode_texts(TEXTS).vectors - expected).max() <= CLOSE
    assert np.abs(expected - expected[0]).max() > 1e-3


@pytest.mark.parametrize("size", [(32, 32), (90, 50), (33, 80), (200, 64), (5, 3)])
def test_pictures_have_the_vectors_of_the_library(
    tmp_path: Path,
    size: tuple[int, int],
) -> None:
    model = make(tmp_path)
    encoder = load_encoder(tmp_path)
    pixels = np.random.default_rng(0).integers(
        0,
        256,
        (size[1], size[0], 3),
        dtype=np.uint8,
    )
    path = tmp_path / "picture.png"
    Image.fromarray(pixels).save(path)
    prepared = encoder.prepare(ImageRef("picture.png", path))
    transform = open_clip.transform.image_transform(
        32,
        is_train=False,
        **PIXELS,
    )
    expected = transform(Image.open(path))
    odd = (max(round(32 * size[0] / min(size)), round(32 * size[1] / min(size))) - 32) % 2
    if (
        not odd
    ):  # else open_clip rounds the middle to an even number, and the crop may be a pixel beside
        assert np.abs(prepared.inputs["pixel_values"] - expected.numpy()).max() <= 1e-5
    with torch.inference_mode():
        vector = model.encode_image(
            torch.from_numpy(prepared.inputs["pixel_values"])[None],
            normalize=True,
        ).numpy()
    assert np.abs(encoder.encode_images([prepared]).vectors - vector).max() <= CLOSE


@pytest.mark.slow
def test_every_weight_matters(tmp_path: Path) -> None:
    """No tensor is left out, or read as another: a change of any of them changes the vectors."""
    make(tmp_path)
    path = tmp_path / "open_clip_model.safetensors"
    picture = tmp_path / "picture.png"
    Image.radial_gradient("L").convert("RGB").save(picture)

    def vectors() -> np.ndarray[Any, Any]:
        encoder = load_encoder(tmp_path)
        prepared = [encoder.prepare(ImageRef("picture.png", picture))]
        return np.concatenate(
            [encoder.encode_texts(["a red box"]).vectors, encoder.encode_images(prepared).vectors],
        )

    before = vectors()
    state = load_file(path)
    names = [name for name in state if name != "logit_scale" and "attn.in_proj_bias" not in name]
    for name in [*names[::3], "visual.proj", "text_projection", "positional_embedding"]:
        generator = torch.Generator().manual_seed(1)
        changed = state[name] + 0.5 * torch.randn(state[name].shape, generator=generator)
        save_file(state | {name: changed}, path)
        assert np.abs(vectors() - before).max() > 1e-5, name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["model_cfg"].update(custom_text=True), "model_cfg.custom_text"),
        (
            lambda c: c["model_cfg"]["vision_cfg"].update(timm_model_name="vit"),
            "vision_cfg.timm_model_name",
        ),
        (
            lambda c: c["model_cfg"]["text_cfg"].update(hf_model_name="xlm-roberta-base"),
            "text_cfg.hf_model_name",
        ),
        (lambda c: c["preprocess_cfg"].update(resize_mode="squash"), "resized in another way"),
        (
            lambda c: c["preprocess_cfg"].update(interpolation="bilinear"),
            "not interpolated bicubically",
        ),
        (lambda c: c["model_cfg"]["text_cfg"].update(width=36), "size mismatch"),
        (lambda c: c["model_cfg"].pop("text_cfg"), "text_cfg"),
        (lambda c: c.clear(), "model_cfg"),
    ],
)
def test_unsupported_networks(
    tmp_path: Path,
    change: Callable[[dict[str, Any]], None],
    message: str,
) -> None:
    make(tmp_path)
    path = tmp_path / "open_clip_config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    with pytest.raises(EncoderError, match="no dual encoder that can be used") as caught:
        load_encoder(tmp_path)
    assert message in str(caught.value.__cause__)


def test_an_unknown_tensor_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / "open_clip_model.safetensors"
    save_file(
        load_file(path) | {"visual.transformer.resblocks.0.extra.weight": torch.ones(2)},
        path,
    )
    with pytest.raises(EncoderError, match="the tensor"):
        load_encoder(tmp_path)


def test_a_folder_without_its_tokenizer_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    for path in tmp_path.iterdir():
        if path.name.startswith(("token", "vocab", "merges", "special")):
            path.unlink()
    with pytest.raises(EncoderError, match="no dual encoder that can be used"):
        load_encoder(tmp_path)
