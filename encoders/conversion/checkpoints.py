"""Read the published checkpoints of TERN, TERAN and VSRN. No code in a checkpoint is executed, and
every tensor must be used."""

import argparse
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
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
# These weights have no effect on the output: unused heads, BERT's pooler, a list of positions.
UNUSED = re.compile(
    r"txt_enc\.map\.|img_enc\.fc\.|txt_enc\.bert_model\.(pooler\.|embeddings\.position_ids$)",
)
PLAIN: list[Any] = [
    argparse.Namespace,
    np.dtype,
    np.dtypes.Float64DType,
    np.dtypes.Float32DType,
    np.dtypes.Int64DType,
    (scalar, "numpy.core.multiarray.scalar"),
    (scalar, "numpy._core.multiarray.scalar"),
]
"""Types that published files contain besides tensors and containers: options, and scores as NumPy
scalars, whose module was renamed in NumPy 2."""
SETTINGS = {
    ("model", "text-aggregation"): ("first",),
    ("model", "image-aggregation"): ("first",),
    ("text-model", "layers"): (0, None),
    ("image-model", "pos-encoding"): ("concat-and-process",),
    ("training", "measure"): ("dot", "cosine"),
}
"""Supported settings by section and key of a published configuration; other values are errors."""


def read_published(path: Path) -> dict[str, Any]:
    """Read a published checkpoint without changes, with its tensors on the CPU. The checkpoint
    contains ``model``, one or two mappings from names to tensors, and either ``config`` (TERN,
    TERAN) or ``opt`` (VSRN).

    No code in the file is executed, because torch's restricted unpickler accepts only tensors and
    plain types. Raises EncoderError for any other type.
    """
    if not path.is_file():
        raise EncoderError(
            f"{path}: file does not exist; name a checkpoint, for example model_best_ndcg.pth",
        )
    with (
        reading_model(
            lambda reason: (
                f"{path}: not a checkpoint that can be read safely ({reason}); download it again, "
                "and unpack archives"
            ),
        ),
        torch.serialization.safe_globals(PLAIN),
        warnings.catch_warnings(),
    ):
        # Unusual files cause warnings as well as errors.
        warnings.simplefilter("ignore")
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    states = isinstance(content, dict) and content.get("model")
    if not isinstance(states, (list, tuple)):
        states = [states]
    for state in states:
        if not (isinstance(state, dict) and state) or not all(
            isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in state.items()
        ):
            raise EncoderError(
                f"{path}: not a published checkpoint (its entry 'model' must map names to tensors)",
            )
    return content


def kind_of(checkpoint: Mapping[str, Any]) -> str:
    """Return the kind of a checkpoint: ``tern``, ``teran`` or ``vsrn``. Raises EncoderError for
    other checkpoints.

    Only TERAN has two separate last layers. A TERAN with shared last layers has the same tensors as
    a TERN, so the configuration decides.
    """
    if isinstance(checkpoint["model"], (list, tuple)):
        return "vsrn"
    names = {name.removeprefix(PREFIX) for name in checkpoint["model"]}
    if WORDS not in names or not any(name.startswith("transformer_encoder_1.") for name in names):
        raise EncoderError(
            f"not a TERN or TERAN (no {WORDS} or no transformer_encoder_1), nor a VSRN",
        )
    name = str(_setting(checkpoint, "model", "name", "")).lower()
    if any(name.startswith("transformer_encoder_2.") for name in names) or name == "teran":
        return "teran"
    aligned = _section(checkpoint, "training").keys() & {"loss-type", "alignment-mode"}
    if aligned and name != "tern":
        return "teran"
    return "tern"


def network_from(kind: str, checkpoint: Mapping[str, Any]) -> Network:
    """Return the TERN or TERAN in a checkpoint from ``read_published``. The tensors determine its
    sizes, and whether its last layers are shared.

    Raises EncoderError for unsupported settings, and for missing or unused tensors.
    """
    for (section, key), known in SETTINGS.items():
        value = _setting(checkpoint, section, key, known[0])
        if value not in known:
            raise EncoderError(
                f"{section}.{key} of this checkpoint is {value!r}; only {known[0]!r} is supported",
            )
    state = {name.removeprefix(PREFIX): tensor for name, tensor in checkpoint["model"].items()}
    alias = "txt_enc.word_embeddings.weight"
    if not torch.equal(state.pop(alias, state[WORDS]), state[WORDS]):
        raise EncoderError(
            f"{alias} differs from {WORDS}, although it should be a copy; the file is damaged",
        )
    state = {name: tensor for name, tensor in state.items() if not UNUSED.match(name)}
    vocabulary, width = shape_of(state, WORDS)
    bert = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=_count(state, f"{BERT}encoder.layer."),
        # The number of heads cannot be derived from the tensors.
        num_attention_heads=12,
        intermediate_size=_rows(state, f"{BERT}encoder.layer.0.intermediate.dense.weight"),
        max_position_embeddings=_rows(state, f"{BERT}embeddings.position_embeddings.weight"),
        type_vocab_size=_rows(state, f"{BERT}embeddings.token_type_embeddings.weight"),
    )
    layer = _setting(checkpoint, "text-model", "extraction-hidden-layer", bert.num_hidden_layers)
    if layer != bert.num_hidden_layers:
        raise EncoderError(
            f"this checkpoint declares {layer} BERT layers but contains {bert.num_hidden_layers}",
        )
    fused, region = shape_of(state, "img_enc.pos_encoding_image.map.0.weight")
    options = {
        "region_dim": region - BOX_CODE,
        "visual_width": fused,
        "visual_layers": _count(state, "img_enc.transformer_encoder.layers."),
        "joint_width": _rows(state, "img_proj.weight"),
        "joint_layers": _count(state, "transformer_encoder_1.layers."),
        "feedforward": _rows(state, "transformer_encoder_1.layers.0.linear1.weight"),
    }
    if kind == "teran":
        options["shared"] = not any(name.startswith("transformer_encoder_2.") for name in state)
        options["stop_words"] = not _setting(checkpoint, "model", "exclude-stopwords", False)
    network = make(kind, options, describe(bert))
    load_whole(network, state)
    return network.eval()


def load_whole(network: Network, state: Mapping[str, Tensor]) -> None:
    """Load a checkpoint's tensors. Raises EncoderError for missing, unused or misshapen tensors."""
    expected = network.state_dict()
    both = state.keys() & expected.keys()
    # Early versions of torch did not save batch counters, which evaluation does not need.
    counters = {name for name in expected if name.endswith("num_batches_tracked")}
    faults = {
        "missing": expected.keys() - state.keys() - counters,
        "unused": state.keys() - expected.keys(),
        "of the wrong shape": {name for name in both if state[name].shape != expected[name].shape},
    }
    for what, names in faults.items():
        if names:
            raise EncoderError(
                f"{len(names)} tensors are {what}, for example {min(names)}; download the whole "
                "checkpoint",
            )
    network.load_state_dict(state)


def shape_of(state: Mapping[str, Tensor], name: str) -> tuple[int, int]:
    """Return the number of rows and columns of a matrix. Raises EncoderError if it is missing."""
    if name not in state or state[name].ndim != 2:
        raise EncoderError(f"the matrix {name} is missing; download the whole checkpoint")
    rows, columns = state[name].shape
    return rows, columns


def _rows(state: Mapping[str, Tensor], name: str) -> int:
    return shape_of(state, name)[0]


def _count(state: Mapping[str, Tensor], start: str) -> int:
    """Return the number of layers, derived from tensor names of the form ``start``, layer number,
    suffix."""
    suffixes = [name.removeprefix(start) for name in state if name.startswith(start)]
    return len({suffix.partition(".")[0] for suffix in suffixes})


def _section(checkpoint: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    config = checkpoint.get("config")
    if not isinstance(config, dict):
        raise EncoderError(
            "its entry 'config', which distinguishes a TERN from a TERAN, is missing",
        )
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _setting(checkpoint: Mapping[str, Any], section: str, key: str, default: Any) -> Any:
    """Return a setting from the published configuration, or ``default`` for older files without
    it."""
    return _section(checkpoint, section).get(key, default)
