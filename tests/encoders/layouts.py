"""Small models of random weights as others publish them: two networks in ONNX, and settings."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import onnx
import torch
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.transformers.float16 import convert_float_to_float16
from torch import Tensor, nn

LAYOUTS = ("Xenova", "Immich", "Qdrant")


class Tower(nn.Module):
    """One tower of a model of transformers, with one input and its vector."""

    def __init__(self, model: Any, name: str) -> None:
        super().__init__()
        self.model = model.eval()
        self.name = name

    def forward(self, values: Tensor) -> Tensor:
        features = getattr(self.model, f"get_{self.name}_features")(values)
        vectors = getattr(features, "pooler_output", features)
        return vectors if isinstance(vectors, Tensor) else vectors[0]


def write_tower(
    path: Path,
    tower: Tower,
    example: Tensor,
    names: tuple[str, str],
    *,
    fixed: bool,
) -> None:
    """Write a network with an input and an output of these names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    free = {} if fixed else {names[0]: {0: "batch", **({1: "length"} if example.ndim == 2 else {})}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # This exporter takes a second, where that of boc takes many.
        torch.onnx.export(
            tower,
            (example,),
            path,
            input_names=[names[0]],
            output_names=[names[1]],
            dynamic_axes=free,
            dynamo=False,
        )


def arrange(model: Path, layout: str, kind: str, to: Path) -> Path:
    """Arrange the model of transformers in the folder ``model`` in ``layout``: the folder of a
    repository, or of two, ``text`` and ``vision``."""
    from transformers import AutoModel

    network = AutoModel.from_pretrained(model).float()
    length = 12 if kind == "siglip" else 9
    ids = torch.randint(1, 20, (2, length))
    pixels = torch.rand(2, 3, 32, 32)
    text = Tower(network, "text")
    image = Tower(network, "image")
    settings = [
        *(each for each in model.iterdir() if each.suffix == ".json"),
        *model.glob("*.txt"),
    ]
    if layout == "Qdrant":
        for folder, tower, example, names in (
            ("text", text, ids, ("input_ids", "text_embeds")),
            ("vision", image, pixels, ("pixel_values", "image_embeds")),
        ):
            write_tower(to / folder / "model.onnx", tower, example, names, fixed=False)
            for each in settings:
                shutil.copy(each, to / folder)
        return to
    if layout == "Immich":
        limit = 12 if kind == "siglip" else 77
        example = torch.ones(1, limit, dtype=torch.int32)
        names = ("text", "embedding")
        write_tower(to / "textual" / "model.onnx", text, example, names, fixed=True)
        names = ("image", "embedding")
        write_tower(to / "visual" / "model.onnx", image, pixels[:1], names, fixed=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(model / name, to / "textual")
        processor = json.loads((model / "preprocessor_config.json").read_text())
        whole = kind == "siglip"
        preprocessing = {
            "size": [32, 32],
            "mode": "RGB",
            "mean": processor["image_mean"],
            "std": processor["image_std"],
            "interpolation": {2: "bilinear", 3: "bicubic"}[processor["resample"]],
            "resize_mode": "squash" if whole else "shortest",
            "fill_color": 0,
        }
        (to / "visual" / "preprocess_cfg.json").write_text(json.dumps(preprocessing))
        config = {"embed_dim": 12, "text_cfg": {"context_length": limit}}
        if whole:
            config["text_cfg"]["tokenizer_kwargs"] = {"clean": "canonicalize"}
        (to / "config.json").write_text(json.dumps(config))
        return to
    to.mkdir(parents=True)
    for each in settings:
        shutil.copy(each, to)
    outputs = {"clip": ("text_embeds", "image_embeds"), "siglip": ("pooler_output",) * 2}[kind]
    names = ("input_ids", outputs[0])
    write_tower(to / "onnx" / "text_model.onnx", text, ids, names, fixed=False)
    names = ("pixel_values", outputs[1])
    write_tower(to / "onnx" / "vision_model.onnx", image, pixels, names, fixed=False)
    return to


def add_precisions(folder: Path) -> None:
    """Write the networks of a repository with numbers of 16 and 8 bits, too."""
    for name in ("text_model", "vision_model"):
        path = folder / "onnx" / f"{name}.onnx"
        half = convert_float_to_float16(onnx.load(path), keep_io_types=True)
        onnx.save(half, path.with_name(f"{name}_fp16.onnx"))
        quantize_dynamic(path, path.with_name(f"{name}_quantized.onnx"))
