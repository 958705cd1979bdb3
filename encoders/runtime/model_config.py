"""Read the configuration and digest of a model folder, without torch."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from boc.atomic_files import sha256, text_sha256
from boc.errors import EncoderError, check_system
from boc.foreign import read_json, typed
from boc.models import KINDS
from boc.types import OFFSETS

from ..networks.foreign import reading_model
from .onnx_record import ModelFiles

FORMAT = 2
TRAIN = "train the model again with <boc train>"
PARTS = {"network", "text", "regions"}
SETTINGS = ("config.json", "tokenizer.json")
WEIGHTS = "model.safetensors"
HUBS = "hubs.npz"  # optional query bank that corrects hubs
REGIONS = "regions.onnx"  # optional ONNX network of the region source


def reading_damaged(folder: Path) -> AbstractContextManager[None]:
    """Convert any error to an EncoderError about a damaged model in ``folder``."""
    return reading_model(
        lambda reason: f"{folder}: damaged model ({reason}); train or convert it again",
    )


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 of the files that determine the output (configuration, weights,
    tokenizer)."""
    return sha256(folder / "config.json", folder / WEIGHTS, folder / "tokenizer.json")


def hub_digest(digest: str, folder: Path) -> str:
    """Derive the digest of an encoder whose vectors include offsets from the digest of its
    network."""
    return OFFSETS + text_sha256(f"{digest} {sha256(folder / HUBS)}")


def parts(folder: Path) -> ModelFiles:
    """Return the files on which the ONNX networks in a model folder depend."""
    return ModelFiles(SETTINGS, (WEIGHTS,), lambda: folder_digest(folder))


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise EncoderError(
            f"{folder}: not a model folder (no config.json)",
            "train a model with <boc train>, or name its new folder: <--encoder KIND:FOLDER>",
        )
    try:
        config = typed(read_json(path), dict[str, Any])
    except (OSError, ValueError) as error:
        check_system(path, error, EncoderError)
        raise EncoderError(f"{path}: damaged ({error})", TRAIN) from error
    version = config.get("format")
    if isinstance(version, int) and version != FORMAT:
        raise EncoderError(
            f"{path}: model format {version}, but this version of boc reads format {FORMAT}",
            "upgrade boc" if version > FORMAT else TRAIN,
        )
    if str(config.get("kind")) not in KINDS or version != FORMAT or not set(config) >= PARTS:
        raise EncoderError(
            f"{path}: not an encoder configuration",
            "train an encoder with <boc train SOURCE -o FOLDER>",
        )
    if not (folder / WEIGHTS).is_file():
        raise EncoderError(
            f"{folder}: no weights yet",
            "run the same <boc train> command again to resume the training",
        )
    return config
