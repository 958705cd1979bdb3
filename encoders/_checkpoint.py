"""Weights on the disk: our folders (safetensors, JSON), and the files that the authors published.

A model folder holds ``config.json``, ``model.safetensors``, ``tokenizer.json``, and the weights of the region source
where it has any: all that is needed to encode, wherever the folder is moved.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import BertConfig

from boc.errors import EncoderError
from boc.files import check_writable, replacing, write_text
from boc.types import Identity, RegionSource

from . import _device, regions
from .tern import Tern, TernConfig, TernEncoder

FORMAT = 1
PREFIX = "img_txt_enc."
ALIAS = "txt_enc.word_embeddings.weight"
WORDS = "txt_enc.bert_model.embeddings.word_embeddings.weight"
UNUSED = re.compile(r"txt_enc\.map\.|img_enc\.fc\.|txt_enc\.bert_model\.(pooler\.|embeddings\.position_ids$)")
PARTS = {"tern", "bert", "regions"}
ATTENTION_HEADS = 12  # of every bert-base; a checkpoint's tensors do not tell


def create_folder(folder: Path, model: Tern, tokenizer: Tokenizer, source: RegionSource) -> None:
    """Write all of a model folder but the weights, which ``save_weights`` adds and replaces."""
    check_writable(folder / "config.json")
    spec, weights = source.identity.spec, getattr(source, "weights", None)
    if weights is not None:
        spec = f"{spec.partition(':')[0]}:regions{weights.suffix}"
        with replacing(folder / f"regions{weights.suffix}") as temporary:
            shutil.copyfile(weights, temporary)
    config = {
        "format": FORMAT,
        "kind": "tern",
        "tern": asdict(model.config),
        "bert": model.txt_enc.bert_model.config.to_diff_dict(),
        "regions": {"spec": spec, "digest": source.identity.digest},
    }
    write_text(folder / "tokenizer.json", tokenizer.to_str())
    write_text(folder / "config.json", json.dumps(config, indent=1, sort_keys=True))


def save_weights(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Replace the weights in a model folder at once."""
    with replacing(folder / "model.safetensors") as temporary:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}, temporary)


def load_folder(folder: Path, device: str) -> TernEncoder:
    """The encoder in a model folder. EncoderError names what is missing or damaged."""
    config = _read_config(folder)
    bert = BertConfig.from_dict(config["bert"])
    model = Tern(TernConfig(**config["tern"]), bert)
    try:
        model.load_state_dict(load_file(folder / "model.safetensors"))
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise EncoderError(f"{folder}: damaged model ({error}); train it anew with boc train") from error
    source = regions.load(config["regions"]["spec"], base=folder)
    if source.identity.digest != config["regions"]["digest"]:
        raise EncoderError(f"{folder}: its region source {config['regions']['spec']} has changed; restore the old one")
    identity = Identity(f"tern:{folder.resolve()}", folder_digest(folder), model.config.joint_width)
    return TernEncoder(model, tokenizer, source, identity, _device.pick(device))


def folder_digest(folder: Path) -> str:
    """SHA-256 over what decides the output: configuration, weights, tokenizer."""
    digest = hashlib.sha256()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        with (folder / name).open("rb") as handle:
            while block := handle.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def read_published(path: Path) -> dict[str, Any]:
    """A published checkpoint: at least ``model`` (tensors by name, on the CPU) and ``config``.

    Nothing in the file is executed: torch's restricted unpickler admits tensors and a fixed list of plain types.
    Raises EncoderError for a file that holds anything else.
    """
    multiarray = np._core.multiarray if hasattr(np, "_core") else np.core.multiarray
    allowed: list[Any] = [argparse.Namespace, np.dtype, np.dtypes.Float64DType, multiarray.scalar]
    allowed.append((multiarray.scalar, "numpy.core.multiarray.scalar"))
    try:
        with torch.serialization.safe_globals(allowed):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, UnpicklingError, RuntimeError, EOFError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise EncoderError(f"{path}: not a checkpoint that can be read safely ({first})") from error
    if not isinstance(found, dict) or "model" not in found or "config" not in found:
        raise EncoderError(f"{path}: no TERN checkpoint (entries model and config are missing)")
    return found


def tern_from_published(checkpoint: Mapping[str, Any]) -> Tern:
    """The network of a published TERN, every tensor accounted for; sizes are read off the tensors.

    EncoderError lists tensors that are missing or left over.
    """
    state = {name.removeprefix(PREFIX): tensor for name, tensor in checkpoint["model"].items()}
    if any(name.startswith("transformer_encoder_2.") for name in state):
        raise EncoderError("this checkpoint has two joint encoders: it is an unshared TERAN, not a TERN")
    alias = state.pop(ALIAS, None)
    if alias is not None and not torch.equal(alias, state[WORDS]):
        raise EncoderError(f"{ALIAS} differs from {WORDS}, of which it should be a copy; the file is damaged")
    state = {name: tensor for name, tensor in state.items() if not UNUSED.match(name)}
    model = Tern(_tern_sizes(state), _bert_sizes(state))
    result = model.load_state_dict(state, strict=False)
    if result.missing_keys or result.unexpected_keys:
        raise EncoderError(f"tensors missing: {result.missing_keys[:3]}, left over: {result.unexpected_keys[:3]}")
    return model.eval()


def _tern_sizes(state: Mapping[str, Tensor]) -> TernConfig:
    fused, region = state["img_enc.pos_encoding_image.map.0.weight"].shape
    return TernConfig(
        region_dim=region - 5,
        visual_width=fused,
        visual_layers=_count(state, r"img_enc\.transformer_encoder\.layers\.(\d+)\."),
        joint_width=len(state["img_proj.weight"]),
        joint_layers=_count(state, r"transformer_encoder_1\.layers\.(\d+)\."),
        feedforward=len(state["transformer_encoder_1.layers.0.linear1.bias"]),
    )


def _bert_sizes(state: Mapping[str, Tensor]) -> BertConfig:
    vocabulary, width = state[WORDS].shape
    name = "txt_enc.bert_model.embeddings.{}_embeddings.weight"
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=_count(state, r"txt_enc\.bert_model\.encoder\.layer\.(\d+)\."),
        num_attention_heads=ATTENTION_HEADS,
        intermediate_size=len(state["txt_enc.bert_model.encoder.layer.0.intermediate.dense.bias"]),
        max_position_embeddings=len(state[name.format("position")]),
        type_vocab_size=len(state[name.format("token_type")]),
    )


def _count(state: Mapping[str, Tensor], pattern: str) -> int:
    return 1 + max(int(match[1]) for match in map(re.compile(pattern).match, state) if match)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise EncoderError(
            f"{folder}: no model folder (no config.json); train one with boc train, "
            "or say where it is now: --encoder tern:FOLDER"
        )
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EncoderError(f"{path}: damaged ({error}); train the model anew with boc train") from error
    if config.get("kind") != "tern" or not isinstance(config.get("format"), int) or not set(config) >= PARTS:
        raise EncoderError(f"{path}: not the configuration of a TERN; train one with boc train SOURCE -o FOLDER")
    if config["format"] > FORMAT:
        raise EncoderError(f"{path}: model format {config['format']}, this boc reads up to {FORMAT}; upgrade boc")
    if not (folder / "model.safetensors").is_file():
        raise EncoderError(f"{folder}: no weights yet; repeat the boc train command, it goes on where it stopped")
    return config
