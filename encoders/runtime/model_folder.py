"""Model folders: weights (safetensors), configuration (JSON) and tokens. A folder can be moved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from boc.atomic_files import check_writable, replacing, sha256, write_text
from boc.errors import EncoderError, check_system
from boc.foreign import parse_json
from boc.outputs import check_folder
from boc.plugins import RegionSource
from boc.types import Identity

from .. import regions
from ..networks import text_towers
from ..networks.base import Network
from ..networks.foreign import reading_model
from ..networks.teran import Teran
from ..networks.tern import Tern
from ..networks.vsrn import Vsrn
from ..networks.vsrnpp import VsrnPlusPlus

FORMAT = 2
NETWORKS: dict[str, type[Network]] = {"tern": Tern, "teran": Teran, "vsrn": Vsrn, "vsrnpp": VsrnPlusPlus}
NAMES = ("config.json", "tokenizer.json", "model.safetensors", "training.json", "history.json", "training")
"""The contents of a model folder, also while it is trained."""

PARTS = {"network", "text", "regions"}
RETIRED = {
    "covariance": "diagonal", "points": "centre", "units": "picture", "neighbours": "all", "normalised_kernels": True,
    "location_input": "features", "batch_norm": True, "special_words": True,
}  # fmt: skip
"""Settings of VSRN++ that older folders have besides, and the one value of each that is still read."""


def make(kind: str, config: Mapping[str, Any], text: Mapping[str, Any]) -> Network:
    """Return a network of ``kind`` with random weights. EncoderError for an unknown setting or a wrong value."""
    network = NETWORKS[kind]
    config = {name: value for name, value in config.items() if (name, value) not in RETIRED.items()}
    unknown = sorted(set(config) - {f.name for f in fields(network.Config)})
    if unknown:
        raise EncoderError(f"{kind} has no setting {unknown[0]!r}; this boc may be too old for it")
    try:
        return network(network.Config(**config), text)
    except (TypeError, ValueError) as error:
        raise EncoderError(f"this {kind} cannot be made: {error}") from error


def check_model_folder(folder: Path) -> None:
    """BocError if a model in ``folder`` would replace files that are of none."""
    check_folder(folder, NAMES, _is_model)


def _is_model(folder: Path) -> bool:
    try:
        return _read_config(folder)["kind"] in NETWORKS
    except EncoderError:
        return False


def check_boxes(kind: str, source: RegionSource) -> None:
    """EncoderError if networks of ``kind`` read boxes, and the source gives none."""
    if NETWORKS[kind].reads_boxes and not getattr(source, "boxes", True):
        raise EncoderError(
            f"{source.identity.spec}: gives no boxes, and a {kind} reads where regions are; use a source with boxes, "
            "such as files: or tsv:, or a vsrn"
        )


def create_folder(folder: Path, kind: str, network: Network, tokens: text_towers.Tokens, source: RegionSource) -> None:
    """Write a model folder without its weights, which ``save_weights`` adds and replaces. EncoderError if the source
    lacks the boxes that the network reads."""
    check_boxes(kind, source)
    check_writable(folder / "config.json")
    config = {
        "format": FORMAT,
        "kind": kind,
        "network": asdict(network.config),
        "text": network.text,
        "regions": {"spec": source.identity.spec, "digest": source.identity.digest},
    }
    write_text(folder / "tokenizer.json", tokens.dump())
    write_text(folder / "config.json", json.dumps(config, indent=1, sort_keys=True))


def save_weights(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Replace the weights in a model folder atomically."""
    with replacing(folder / "model.safetensors") as temporary:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}, temporary)


def load_folder(folder: Path, kind: str) -> tuple[Network, text_towers.Tokens, RegionSource, Identity]:
    """Load a model folder. EncoderError names what is missing, damaged, or of another ``kind``."""
    config = _read_config(folder)
    if config["kind"] != kind:
        raise EncoderError(f"{folder}: holds a {config['kind']}, not a {kind}; write {config['kind']}:{folder}")
    with reading_model(lambda reason: f"{folder}: damaged model ({reason}); train or convert it again"):
        network = make(kind, config["network"], config["text"])
        (folder / "model.safetensors").open("rb").close()  # its library takes any error for a missing file
        network.load_state_dict(load_file(folder / "model.safetensors"))
        tokens = text_towers.read_tokens(folder / "tokenizer.json", network.text)
        source = regions.load(config["regions"]["spec"])
    if source.identity.digest != config["regions"]["digest"]:
        raise EncoderError(f"{folder}: its region source {config['regions']['spec']} has changed; restore the old one")
    return network, tokens, source, Identity(f"{kind}:{folder.resolve()}", folder_digest(folder), network.dim)


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 over the files that determine the output: configuration, weights, tokenizer."""
    return sha256(*(folder / name for name in ("config.json", "model.safetensors", "tokenizer.json")))


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise EncoderError(
            f"{folder}: no model folder (no config.json); train one with boc train, "
            "or say where it is now: --encoder KIND:FOLDER"
        )
    try:
        config: dict[str, Any] = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        check_system(path, error, EncoderError)
        raise EncoderError(f"{path}: damaged ({error}); train the model again with boc train") from error
    version = config.get("format")
    if isinstance(version, int) and version != FORMAT:
        step = "upgrade boc" if version > FORMAT else "train the model again with boc train"
        raise EncoderError(f"{path}: model format {version}, this boc reads format {FORMAT}; {step}")
    if str(config.get("kind")) not in NETWORKS or version != FORMAT or not set(config) >= PARTS:
        raise EncoderError(f"{path}: not the configuration of an encoder; train one with boc train SOURCE -o FOLDER")
    if not (folder / "model.safetensors").is_file():
        raise EncoderError(f"{folder}: no weights yet; repeat the boc train command, it continues where it stopped")
    return config
