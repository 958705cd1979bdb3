"""Read and write model folders, which contain weights (safetensors), configuration (JSON) and
tokens. Model folders can be moved."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from boc.atomic_files import check_writable, replacing, write_text
from boc.errors import EncoderError
from boc.outputs import check_folder
from boc.plugins import RegionSource
from boc.remarks import COUNTS

from ..networks.base import Network
from ..networks.teran import Teran
from ..networks.tern import Tern
from ..networks.tokens import Tokens
from ..networks.vsrn import Vsrn
from ..networks.vsrnpp import VsrnPlusPlus
from ..regions.feature_maps import MapRegions
from .model_config import FORMAT, HUBS, REGIONS, SETTINGS, WEIGHTS, read_config, reading_damaged
from .onnx_record import IMAGE, RECORD, TEXT

NETWORKS: dict[str, type[Network]] = {
    "tern": Tern,
    "teran": Teran,
    "vsrn": Vsrn,
    "vsrnpp": VsrnPlusPlus,
}
NAMES = (
    *SETTINGS,
    WEIGHTS,
    TEXT,
    IMAGE,
    REGIONS,
    HUBS,
    RECORD,
    COUNTS,
    "training.json",
    "history.json",
    "training",
)
"""Names of the files in a model folder, including temporary files of training."""


def make(
    kind: str,
    config: Mapping[str, Any],
    text: Mapping[str, Any],
) -> Network:
    """Create a network of ``kind`` with random weights. Raises EncoderError for an unknown setting
    or an invalid value."""
    network = NETWORKS[kind]
    unknown = sorted(set(config) - {f.name for f in fields(network.Config)})
    if unknown:
        raise EncoderError(
            f"{kind} has no setting {unknown[0]!r}; the model needs another version of boc",
        )
    try:
        return network(network.Config(**config), text)
    except (TypeError, ValueError) as error:
        raise EncoderError(f"this {kind} cannot be created: {error}") from error


def check_model_folder(folder: Path) -> None:
    """Raise BocError if writing a model to ``folder`` would replace other files."""
    check_folder(folder, NAMES, is_model)


def is_model(folder: Path) -> bool:
    """Return whether ``folder`` contains a boc model with weights."""
    try:
        return read_config(folder)["kind"] in NETWORKS
    except EncoderError:
        return False


def check_boxes(kind: str, source: RegionSource) -> None:
    """Raise EncoderError if networks of ``kind`` need boxes but the source has no boxes."""
    if NETWORKS[kind].reads_boxes and not getattr(source, "boxes", True):
        raise EncoderError(
            f"{source.identity.spec}: has no boxes, but a {kind} needs region positions; use a "
            "source with boxes, such as files:, or a vsrn",
        )


def create_folder(
    folder: Path,
    kind: str,
    network: Network,
    tokens: Tokens,
    source: RegionSource,
) -> None:
    """Write a model folder without weights, which ``save_weights`` adds or replaces. Raises
    EncoderError if the network needs boxes but the source has no boxes."""
    check_boxes(kind, source)
    check_writable(folder / "config.json")
    (folder / REGIONS).unlink(missing_ok=True)
    if isinstance(source, MapRegions):
        source.save_onnx(folder / REGIONS)
    # The path is relative, so that the folder can be moved.
    spec = re.sub("^onnx:[^?]*", f"onnx:{REGIONS}", source.identity.spec)
    config = {
        "format": FORMAT,
        "kind": kind,
        "network": asdict(network.config),
        "text": network.text,
        "regions": {"spec": spec, "digest": source.identity.digest},
    }
    write_text(folder / "tokenizer.json", tokens.dump())
    write_text(folder / "config.json", json.dumps(config, indent=1, sort_keys=True))


def save_weights(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Atomically replace the weights in a model folder. ONNX networks and a query bank from the old
    weights become invalid."""
    for old in (RECORD, HUBS):
        (folder / old).unlink(missing_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    with replacing(folder / WEIGHTS) as temporary:
        save_file(tensors, temporary)


def load_network(folder: Path, config: Mapping[str, Any]) -> Network:
    """Load the network in a model folder with this configuration. Raises EncoderError if the
    network is damaged."""
    with reading_damaged(folder):
        network = make(config["kind"], config["network"], config["text"])
        # The safetensors library reports every error as a missing file.
        (folder / WEIGHTS).open("rb").close()
        network.load_state_dict(load_file(folder / WEIGHTS))
    return network
