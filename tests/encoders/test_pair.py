"""Networks in ONNX as others publish them, against the models of transformers that they come
from."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

from boc import models, plugins
from boc.errors import EncoderError
from boc.types import ImageRef
from encoders.runtime.onnx_pair import pixel_form
from tests.encoders.layouts import LAYOUTS, add_precisions, arrange
from tests.encoders.test_clip import crop, square, tiny_clip, tiny_siglip
from tests.once import once

TEXTS = ["a red box", "box", "two dogs play in the snow", "red red box at the left"]
SIZES = [
    (90, 50),
    (33, 80),
    (32, 32),
    (7, 12),
]
TINY = {"clip": tiny_clip, "siglip": tiny_siglip}


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Callable[[str, str], Path]:
    """Folders of models by kind and layout, made when first asked for."""

    def made(kind, layout):
        def make(folder):
            TINY[kind](folder / "model")
            arrange(folder / "model", layout, kind, folder / "repository")

        name = f"{kind}-{layout}".replace(" ", "-")
        return once(tmp_path_factory, name, make)

    return made


def draw(size: tuple[int, int], seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(
        0,
        256,
        (size[1], size[0], 3),
        dtype=np.uint8,
    )
    return Image.fromarray(pixels)


def expected(model: Path, pictures: list[Image.Image], texts: list[str], kind: str) -> Any:
    """The vectors of pictures and texts by transformers, of unit length."""
    network = AutoModel.from_pretrained(model).eval()
    processor = AutoImageProcessor.from_pretrained(model, backend="pil")
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = []
    with torch.inference_mode():
        for picture in pictures:
            pixels = processor(picture, return_tensors="pt")["pixel_values"]
            rows.append(network.get_image_features(pixels))
        for text in texts:
            padding = "max_length" if kind == "siglip" else False
            ids = tokenizer(
                text.lower(),
                return_tensors="pt",
                padding=padding,
                max_length=12 if kind == "siglip" else 77,
                truncation=True,
            )["input_ids"]
            rows.append(network.get_text_features(ids))
    vectors = [getattr(row, "pooler_output", row).numpy()[0] for row in rows]
    return np.stack([vector / np.linalg.norm(vector) for vector in vectors])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "layout"),
    [(kind, layout) for kind in TINY for layout in LAYOUTS],
)
def test_vectors_equal_those_of_transformers(
    repository: Callable[[str, str], Path],
    tmp_path: Path,
    kind: str,
    layout: str,
):
    folder = repository(kind, layout)
    pictures = [draw(size, seed) for seed, size in enumerate(SIZES)]
    encoder = plugins.encoder(str(folder / "repository"))
    prepared = []
    for number, picture in enumerate(pictures):
        path = tmp_path / f"{number}.png"
        picture.save(path)
        prepared.append(encoder.prepare(ImageRef(path.name, path)))
    vectors = np.concatenate(
        [
            encoder.encode_images(prepared).vectors,
            encoder.encode_texts(TEXTS).vectors,
        ],
    )
    wanted = expected(folder / "model", pictures, TEXTS, kind)
    assert np.abs(vectors - wanted).max() < 1e-4
    # The record of the first use is that of the next one.
    again = plugins.encoder(str(folder / "repository"))
    assert again.identity == encoder.identity


PROCESSORS = {
    "CLIP": crop(),
    "CLIP without a crop": crop(do_center_crop=False),
    "CLIP with a smaller crop": crop(crop_size={"height": 24, "width": 20}),
    "SigLIP": square(),
    "SigLIP, bilinear": square(resample=2),
    "ViT": square("ViTImageProcessor"),
    "CLIP without normalization": crop(do_normalize=False),
}


@given(
    name=st.sampled_from([*PROCESSORS]),
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_pixels_equal_those_of_processors(name: str, size: tuple[int, int], seed: int):
    processor = PROCESSORS[name]
    picture = draw(size, seed)
    written = json.loads(processor.to_json_string())
    ours = pixel_form(written)(picture)["pixel_values"][0]
    theirs = processor(picture, return_tensors="np")["pixel_values"][0]
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < 1e-6


def test_settings_of_older_processors():
    """One number stands for a side, and nothing for the factor."""
    old = json.loads(PROCESSORS["CLIP"].to_json_string())
    old |= {"feature_extractor_type": "CLIPFeatureExtractor", "size": 32, "crop_size": 32}
    del old["image_processor_type"], old["rescale_factor"]
    picture = draw((90, 50), 0)
    theirs = PROCESSORS["CLIP"](picture, return_tensors="np")["pixel_values"][0]
    assert np.abs(pixel_form(old)(picture)["pixel_values"][0] - theirs).max() < 1e-6


@pytest.mark.parametrize(
    "settings_of_others",
    [
        {"image_processor_type": "Siglip2ImageProcessor", "max_num_patches": 256},
        {"image_processor_type": "BeitImageProcessor"},
        {"interpolation": "bicubic", "size": 32, "resize_mode": "longest", "mean": [], "std": []},
    ],
)
def test_other_ways_to_prepare_pictures_are_refused(settings_of_others: dict[str, Any]):
    with pytest.raises((ValueError, KeyError)):
        pixel_form(settings_of_others)


@pytest.mark.slow
def test_precisions_of_numbers(repository: Callable[[str, str], Path], tmp_path: Path):
    """Half of the bits give the same vectors to three digits, 8 bits similar ones."""
    folder = repository("clip", "Xenova")
    shutil.copytree(folder / "repository", tmp_path / "all")
    add_precisions(tmp_path / "all")
    vectors = {}
    for name, endings in models.PRECISIONS.items():
        one = shutil.copytree(tmp_path / "all", tmp_path / name)
        for path in (one / "onnx").iterdir():
            if path.stem not in {f"{tower}_model{endings[0]}" for tower in ("text", "vision")}:
                path.unlink()
        vectors[name] = plugins.encoder(str(one)).encode_texts(TEXTS).vectors
    assert (vectors["full"] * vectors["half"]).sum(axis=1).min() > 0.9999
    assert (vectors["full"] * vectors["8bit"]).sum(axis=1).min() > 0.9


@pytest.mark.slow
def test_networks_that_do_not_fit_are_refused(
    repository: Callable[[str, str], Path],
    tmp_path: Path,
):
    clip = repository("clip", "Xenova") / "repository"
    siglip = repository("siglip", "Xenova") / "repository"

    def refuse(name, data, message):
        folder = shutil.copytree(clip, tmp_path / "changed", dirs_exist_ok=True)
        (folder / "onnx.json").unlink(missing_ok=True)
        (folder / name).write_bytes(data)
        with pytest.raises(EncoderError, match=message):
            plugins.encoder(str(folder))

    other = (siglip / "onnx" / "vision_model.onnx").read_bytes()
    refuse("onnx/vision_model.onnx", other, "instead of one vector per input")
    refuse("onnx/text_model.onnx", b"no network", "damaged network")
    refuse("tokenizer.json", b"{}", "settings that boc cannot use")
    refuse("preprocessor_config.json", b"[]", "settings that boc cannot use")
    with pytest.raises(EncoderError, match="run only on the CPU"):
        plugins.encoder(str(clip), "cuda")
