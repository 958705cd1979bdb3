"""Reads the published checkpoints of TERN, TERAN and VSRN. Nothing is executed, and every tensor
must be used."""

import argparse
import re
import shutil
import tarfile
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy._core.multiarray import scalar
from torch import Tensor
from transformers import BertConfig

from boc.errors import EncoderError

from ..networks.base import Network
from ..networks.foreign import reading_model
from ..networks.tern import BOX_CODE
from ..networks.text_towers import describe
from ..runtime.model_folder import make

PREFIX = "img_txt_enc."
BERT = "txt_enc.bert_model."
WORDS = f"{BERT}embeddings.word_embeddings.weight"
ALIAS = "txt_enc.word_embeddings.weight"
# Weights that do not affect the output: heads of other aggregations, BERT's pooler, and a list of
# positions.
UNUSED = re.compile(
    r"txt_enc\.map\.|img_enc\.fc\.|txt_enc\.bert_model\.(pooler\.|embeddings\.position_ids$)",
)
# which the first torch versions did not write, and evaluation does not read
COUNTERS = "num_batches_tracked"
ATTENTION_HEADS = 12  # of BERT; the tensors do not show it
SETTINGS = {
    ("model", "text-aggregation"): ("first",),
    ("model", "image-aggregation"): ("first",),
    ("text-model", "layers"): (0, None),
    ("image-model", "pos-encoding"): ("concat-and-process",),
    ("training", "measure"): ("dot", "cosine"),
}
"""Supported settings by section and key of a published configuration; other values are errors."""


def read_published(path: Path) -> dict[str, Any]:
    """Read a published checkpoint unchanged, tensors on the CPU: ``model``, one or two mappings of
    names to tensors, and either ``config`` (TERN, TERAN) or ``opt`` (VSRN). From a tar archive, the
    single checkpoint in it.

    Nothing in it is executed: torch's restricted unpickler takes tensors and plain types.
    EncoderError for others.
    """
    if not path.is_file():
        raise EncoderError(
            f"{path}: no such file; name a checkpoint, for example model_best_ndcg.pth",
        )
    with (
        reading_model(
            lambda reason: (
                f"{path}: not a checkpoint that can be read safely ({reason}); download it again"
            ),
        ),
        _unpack(path) as file,
        torch.serialization.safe_globals(_plain_types()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # warnings about unusual files, which raise errors as well
        content = torch.load(file, map_location="cpu", weights_only=True)
    parts = content.get("model") if isinstance(content, dict) else None
    states = parts if isinstance(parts, (list, tuple)) else [parts]
    named = (
        (name, tensor)
        for state in states
        if isinstance(state, dict)
        for name, tensor in state.items()
    )
    whole = all(isinstance(state, dict) and state for state in states)
    if not whole or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in named
    ):
        raise EncoderError(
            f"{path}: no published checkpoint (its entry 'model' must hold tensors by name)",
        )
    checkpoint: dict[str, Any] = content
    return checkpoint


def kind_of(checkpoint: Mapping[str, Any]) -> str:
    """Return ``tern``, ``teran`` or ``vsrn``. EncoderError if a checkpoint is none of them.

    Only TERAN has two separate last layers. One that shares them has TERN's tensors: its
    configuration decides.
    """
    if isinstance(checkpoint["model"], (list, tuple)):
        return "vsrn"
    names = {name.removeprefix(PREFIX) for name in checkpoint["model"]}
    if WORDS not in names or not any(name.startswith("transformer_encoder_1.") for name in names):
        raise EncoderError(
            f"neither a TERN nor a TERAN (no {WORDS} or no transformer_encoder_1) nor a VSRN",
        )
    name = str(_setting(checkpoint, "model", "name", "")).lower()
    if any(name.startswith("transformer_encoder_2.") for name in names) or name == "teran":
        return "teran"
    aligned = _section(checkpoint, "training").keys() & {"loss-type", "alignment-mode"}
    return "teran" if aligned and name != "tern" else "tern"


def pooling(checkpoint: Mapping[str, Any]) -> str | None:
    """Return the pooling of the published network, as in ``networks.alignment``; None without
    alignment."""
    mode = _setting(checkpoint, "training", "alignment-mode", None)
    return None if mode is None else str(mode).lower().replace("scan-sentences", "scan")


def network_from(kind: str, checkpoint: Mapping[str, Any]) -> Network:
    """Return the TERN or TERAN in a checkpoint from ``read_published``; its sizes, and whether its
    last layers are shared, are read from the tensors.

    EncoderError for unsupported settings, and for missing or unused tensors.
    """
    for (section, key), known in SETTINGS.items():
        value = _setting(checkpoint, section, key, known[0])
        if value not in known:
            raise EncoderError(
                f"{section}.{key} of this checkpoint is {value!r}; only {known[0]!r} is known here",
            )
    state = _state(checkpoint["model"])
    bert = _bert_sizes(state)
    layer = _setting(checkpoint, "text-model", "extraction-hidden-layer", bert.num_hidden_layers)
    if layer != bert.num_hidden_layers:
        raise EncoderError(
            f"this checkpoint says {layer} layers of BERT and has {bert.num_hidden_layers}",
        )
    options = _sizes(state)
    if kind == "teran":
        options["shared"] = not any(name.startswith("transformer_encoder_2.") for name in state)
        options["stop_words"] = not _setting(checkpoint, "model", "exclude-stopwords", False)
    network = make(kind, options, describe(bert))
    load_whole(network, state)
    return network.eval()


def load_whole(network: Network, state: Mapping[str, Tensor]) -> None:
    """Load the tensors of a checkpoint. EncoderError for missing, unused and misshapen ones."""
    expected = network.state_dict()
    misshapen = [
        name for name in state.keys() & expected.keys() if state[name].shape != expected[name].shape
    ]
    missing = {name for name in expected.keys() - state.keys() if not name.endswith(COUNTERS)}
    for what, names in (
        ("missing", missing),
        ("left over", state.keys() - expected.keys()),
        ("of another shape than the rest asks for", misshapen),
    ):
        if names:
            raise EncoderError(
                f"{len(names)} tensors are {what}, for example {min(names)}; is the checkpoint "
                "whole?",
            )
    network.load_state_dict(state)


def _state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the network, by the names used here."""
    state = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    alias = state.pop(ALIAS, None)
    if alias is not None and not torch.equal(alias, state[WORDS]):
        raise EncoderError(
            f"{ALIAS} differs from {WORDS}, of which it should be a copy; the file is damaged",
        )
    return {name: tensor for name, tensor in state.items() if not UNUSED.match(name)}


def _sizes(state: Mapping[str, Tensor]) -> dict[str, Any]:
    fused, region = shape_of(state, "img_enc.pos_encoding_image.map.0.weight")
    return {
        "region_dim": region - BOX_CODE,
        "visual_width": fused,
        "visual_layers": _count(state, "img_enc.transformer_encoder.layers."),
        "joint_width": shape_of(state, "img_proj.weight")[0],
        "joint_layers": _count(state, "transformer_encoder_1.layers."),
        "feedforward": shape_of(state, "transformer_encoder_1.layers.0.linear1.weight")[0],
    }


def _bert_sizes(state: Mapping[str, Tensor]) -> BertConfig:
    vocabulary, width = shape_of(state, WORDS)
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=_count(state, f"{BERT}encoder.layer."),
        num_attention_heads=ATTENTION_HEADS,
        intermediate_size=shape_of(state, f"{BERT}encoder.layer.0.intermediate.dense.weight")[0],
        max_position_embeddings=shape_of(state, f"{BERT}embeddings.position_embeddings.weight")[0],
        type_vocab_size=shape_of(state, f"{BERT}embeddings.token_type_embeddings.weight")[0],
    )


def shape_of(state: Mapping[str, Tensor], name: str) -> tuple[int, int]:
    """Return the rows and columns of a matrix. EncoderError if it is missing."""
    if name not in state or state[name].ndim != 2:
        raise EncoderError(f"the matrix {name} is missing; is the checkpoint whole?")
    rows, columns = state[name].shape
    return rows, columns


def _count(state: Mapping[str, Tensor], start: str) -> int:
    """Return the number of layers: tensor names are ``start``, the number of the layer, and a
    suffix."""
    return len(
        {name.removeprefix(start).partition(".")[0] for name in state if name.startswith(start)},
    )


def _section(checkpoint: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    config = checkpoint.get("config")
    if not isinstance(config, dict):
        raise EncoderError(
            "its entry 'config' is missing, without which a TERN is not told from a TERAN",
        )
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _setting(checkpoint: Mapping[str, Any], section: str, key: str, default: Any) -> Any:
    """Return a setting of the published configuration, or ``default`` in older files that lack
    it."""
    return _section(checkpoint, section).get(key, default)


def _plain_types() -> list[Any]:
    """Return types in published files beside tensors and containers: options, and scores as numpy
    scalars."""
    dtypes = [np.dtypes.Float64DType, np.dtypes.Float32DType, np.dtypes.Int64DType]
    scalars = [
        (scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")
    ]  # numpy 2 renamed it
    return [argparse.Namespace, np.dtype, *dtypes, *scalars]


@contextmanager
def _unpack(path: Path) -> Iterator[Path]:
    """Yield ``path`` itself, or for a tar archive a temporary copy of the single checkpoint in it.

    The suffix does not decide: VSRN's files end in .tar and are no archives.
    """
    if not tarfile.is_tarfile(path):
        yield path
        return
    with tarfile.open(path) as archive, tempfile.NamedTemporaryFile() as temporary:
        members = [
            m
            for m in archive
            if m.isfile() and re.search(r"/[^.][^/]*\.pth(\.tar)?$", f"/{m.name}")
        ]
        if len(members) != 1:
            names = ", ".join(PurePosixPath(m.name).name for m in members) or "none"
            raise EncoderError(
                f"{path}: an archive with several checkpoints or none ({names}); unpack it and "
                "name one",
            )
        content = archive.extractfile(members[0])
        assert content is not None
        shutil.copyfileobj(content, temporary, 1 << 20)
        temporary.flush()
        yield Path(temporary.name)
