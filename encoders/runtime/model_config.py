"""Description of a model folder: its configuration, its digest, and its networks in ONNX. Nothing here needs torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from boc.atomic_files import sha256, write_text
from boc.errors import EncoderError, check_system
from boc.foreign import parse_json
from boc.types import Identity

FORMAT = 2
KINDS = ("tern", "teran", "vsrn", "vsrnpp")
PARTS = {"network", "text", "regions"}
SETTINGS, WEIGHTS = ("config.json", "tokenizer.json"), "model.safetensors"
TEXT, IMAGE, REGIONS, RECORD = "text.onnx", "image.onnx", "regions.onnx", "onnx.json"


def damaged(folder: Path, error: Exception) -> EncoderError:
    """Return the error for a model that cannot be read; what the system refuses is raised as such."""
    check_system(folder, error, EncoderError)
    return EncoderError(f"{folder}: damaged model ({error}); train or convert it again")


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 over the files that determine the output: configuration, weights, tokenizer."""
    return sha256(folder / "config.json", folder / WEIGHTS, folder / "tokenizer.json")


def read_config(folder: Path) -> dict[str, Any]:
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
    if config.get("kind") not in KINDS or version != FORMAT or not set(config) >= PARTS:
        raise EncoderError(f"{path}: not the configuration of an encoder; train one with boc train SOURCE -o FOLDER")
    if not (folder / WEIGHTS).is_file():
        raise EncoderError(f"{folder}: no weights yet; repeat the boc train command, it continues where it stopped")
    return config


@dataclass(frozen=True)
class OnnxRecord:
    """What the networks in ONNX of a model folder were made of.

    ``digest`` and ``dim`` are those of the model's identity, ``settings`` is the SHA-256 of its configuration and
    tokenizer, ``weights`` the bytes of its weights; ``files`` has the SHA-256 of each network by file name.
    """

    digest: str
    dim: int
    settings: str
    weights: int
    files: dict[str, str]

    @classmethod
    def of(cls, folder: Path, dim: int, names: list[str]) -> OnnxRecord:
        """Describe the networks ``names`` that were just written into ``folder``."""
        settings = sha256(*(folder / name for name in SETTINGS))
        files = {name: sha256(folder / name) for name in names}
        return cls(folder_digest(folder), dim, settings, (folder / WEIGHTS).stat().st_size, files)

    def write(self, folder: Path) -> None:
        write_text(folder / RECORD, json.dumps(asdict(self), indent=1, sort_keys=True))

    def is_whole(self, folder: Path, name: str) -> bool:
        """Return whether a network has the bytes that were written."""
        return (folder / name).is_file() and sha256(folder / name) == self.files[name]

    def identity(self, kind: str, folder: Path) -> Identity:
        return Identity(f"{kind}:{folder.resolve()}", self.digest, self.dim)


def read_record(folder: Path) -> OnnxRecord | None:
    """Return the record of the networks in ONNX, None without one or if the model was changed since: the weights are
    hashed again where they are newer than the record."""
    path, weights = folder / RECORD, folder / WEIGHTS
    try:
        record = OnnxRecord(**parse_json(path.read_bytes()))
        if record.settings != sha256(*(folder / name for name in SETTINGS)):
            return None
        status = weights.stat()
        same = record.weights == status.st_size
        if same and status.st_mtime_ns > path.stat().st_mtime_ns:
            same = record.digest == folder_digest(folder)
    except (OSError, ValueError, TypeError):
        return None
    return record if same else None
