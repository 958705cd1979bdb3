"""Models as the open_clip library publishes them (``open_clip_config.json``), as a CLIP of the
transformers library.

Both are the same networks: a vision transformer with class token and a causal text transformer. In
open_clip tensors have other names, the three projections of an attention are one matrix, and the
last projections are transposed.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from PIL.Image import Resampling
from torch import Tensor

from boc.foreign import read_json

from ..networks.foreign import read_tensors

CONFIG = "open_clip_config.json"
KNOWN = {
    "model_cfg": {"embed_dim", "vision_cfg", "text_cfg", "quick_gelu"},
    "vision_cfg": {"image_size", "layers", "width", "patch_size", "head_width", "mlp_ratio"},
    "text_cfg": {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"},
    "preprocess_cfg": {"size", "mode", "mean", "std", "interpolation", "resize_mode", "fill_color"},
}

BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
    "attn.out_proj": "self_attn.out_proj",
}
WHOLE = {
    "logit_scale": "logit_scale",
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.ln_pre.weight": "vision_model.pre_layrnorm.weight",
    "visual.ln_pre.bias": "vision_model.pre_layrnorm.bias",
    "visual.ln_post.weight": "vision_model.post_layernorm.weight",
    "visual.ln_post.bias": "vision_model.post_layernorm.bias",
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final.weight": "text_model.final_layer_norm.weight",
    "ln_final.bias": "text_model.final_layer_norm.bias",
}
PROJECTIONS = {
    "visual.proj": "visual_projection.weight",
    "text_projection": "text_projection.weight",
}


def load(folder: Path, weights: str) -> tuple[Any, Any, Any]:
    """Return the network, the tokenizer and the image processor. ValueError for another
    architecture."""
    config = read_json(folder / CONFIG)
    network = config["model_cfg"]
    pictures = config.get("preprocess_cfg", {})
    check(network, pictures)
    # The library makes its names on first use.
    library: Any = transformers
    tokenizer = library.CLIPTokenizerFast.from_pretrained(folder, local_files_only=True)
    if len(tokenizer) != network["text_cfg"]["vocab_size"]:
        raise ValueError(
            f"its tokenizer has {len(tokenizer)} tokens, its network "
            f"{network['text_cfg']['vocab_size']}",
        )
    tokenizer.model_max_length = network["text_cfg"].get("context_length", 77)
    model = transformers.CLIPModel(configure(network, tokenizer))
    model.load_state_dict(rename(read_tensors(folder / weights)), assign=True)
    return model, tokenizer, processor(network["vision_cfg"]["image_size"], pictures)


def check(network: Mapping[str, Any], pictures: Mapping[str, Any]) -> None:
    """ValueError for settings that would change the output and are not carried over."""
    parts = {"model_cfg": network, "preprocess_cfg": pictures}
    parts |= {name: network.get(name, {}) for name in ("vision_cfg", "text_cfg")}
    odd = sorted(
        f"{name}.{key}" for name, part in parts.items() for key in part.keys() - KNOWN[name]
    )
    if odd:
        raise ValueError(
            f"an open_clip network with {', '.join(odd)}, of which the transformers library has "
            "none",
        )
    mode = pictures.get("mode", "RGB"), pictures.get("resize_mode", "shortest")
    if mode != ("RGB", "shortest"):
        raise ValueError(
            "an open_clip network whose pictures are resized in another way than to the shorter "
            "side",
        )
    if pictures.get("interpolation", "bicubic") != "bicubic":
        raise ValueError("an open_clip network whose pictures are not interpolated bicubically")


def configure(network: Mapping[str, Any], tokenizer: Any) -> Any:
    """Return the settings of the same network in the transformers library."""
    vision = network["vision_cfg"]
    text = network["text_cfg"]

    def sizes(tower: Mapping[str, Any], heads: int) -> dict[str, Any]:
        return {
            "hidden_act": "quick_gelu" if network.get("quick_gelu") else "gelu",
            "projection_dim": network["embed_dim"],
            "hidden_size": tower["width"],
            "intermediate_size": int(tower["width"] * tower.get("mlp_ratio", 4.0)),
            "num_hidden_layers": tower["layers"],
            "num_attention_heads": heads,
        }

    vision_sizes = sizes(vision, vision["width"] // vision.get("head_width", 64))
    text_sizes = sizes(text, text["heads"])
    return transformers.CLIPConfig(
        projection_dim=network["embed_dim"],
        vision_config={
            **vision_sizes,
            "image_size": vision["image_size"],
            "patch_size": vision["patch_size"],
        },
        text_config={
            **text_sizes,
            "vocab_size": text["vocab_size"],
            "max_position_embeddings": text.get("context_length", 77),
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
    )


def rename(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under the names of the transformers library. ValueError for an unknown
    one."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name in WHOLE:
            renamed[WHOLE[name]] = tensor
        elif name in PROJECTIONS:
            renamed[PROJECTIONS[name]] = tensor.T.contiguous()
        elif name != "attn_mask":
            # Either library makes the mask again.
            renamed |= _block(name, tensor)
    return renamed


def _block(name: str, tensor: Tensor) -> dict[str, Tensor]:
    match = re.fullmatch(r"(visual\.)?transformer\.resblocks\.(\d+)\.(.+?)[._](weight|bias)", name)
    if match is None or match[3] not in {"attn.in_proj", *BLOCK}:
        raise ValueError(
            f"an open_clip network with the tensor {name!r}, which the transformers library has "
            "not",
        )
    tower, layer, part, kind = match.groups()
    prefix = f"{'vision' if tower else 'text'}_model.encoder.layers.{layer}"
    if part == "attn.in_proj":
        thirds = zip("qkv", tensor.chunk(3), strict=True)
        return {
            f"{prefix}.self_attn.{third}_proj.{kind}": rows.contiguous() for third, rows in thirds
        }
    return {f"{prefix}.{BLOCK[part]}.{kind}": tensor}


def processor(side: int, pictures: Mapping[str, Any]) -> Any:
    """Return the image processor: the shorter side to ``side`` pixels by Pillow, then the middle of
    it."""
    kind = getattr(transformers, "CLIPImageProcessorPil", None) or transformers.CLIPImageProcessor
    size = pictures.get("size", side)
    side = size if isinstance(size, int) else size[0]
    return kind(
        size={"shortest_edge": side},
        crop_size={"height": side, "width": side},
        image_mean=list(pictures.get("mean", (0.48145466, 0.4578275, 0.40821073))),
        image_std=list(pictures.get("std", (0.26862954, 0.26130258, 0.27577711))),
        resample=Resampling.BICUBIC,
    )
