"""Models of ``transformers`` on this disk: a folder, or a name in the local cache. Nothing is downloaded, no code
beside the weights is executed, and no weight keeps its random value."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from PIL import Image
from torch import nn

from boc.atomic_files import sha256
from boc.errors import EncoderError, ImageError
from boc.foreign import parse_json

from ..networks.foreign import reading_model
from ..runtime.device import pick

UNUSED = "pooler"  # part of AutoModel that many published backbones lack; its output is not used


@dataclass(frozen=True)
class Backbone:
    """A network for inference with its picture processor.

    ``name`` finds it again: the absolute folder, or the name in the cache. ``digest`` (SHA-256) covers its weights and
    configuration files.
    """

    name: str
    digest: str
    network: nn.Module
    processor: Any
    device: str

    def inputs(self, picture: Image.Image) -> dict[str, Any]:
        """Return the inputs of the network for one picture, on its device. ImageError if it cannot be resized."""
        try:
            made: Mapping[str, Any] = self.processor(images=picture, return_tensors="pt")
        except ValueError as error:
            raise ImageError(
                f"a picture of {picture.width} x {picture.height} pixels cannot be prepared for {self.name} ({error}); "
                "leave it out"
            ) from error
        return {name: value.to(self.device) for name, value in made.items() if isinstance(value, torch.Tensor)}


def load(name: str, auto: Any, kind: str) -> Backbone:
    """Load the model ``name`` with ``auto`` (AutoModel or a variant) in float32; ``kind`` is for messages.

    Raises EncoderError for a model that is missing or damaged, lacks weights, or would execute code or download files.
    """
    folder, place = _folder(name, kind)
    described, weights = _files(folder)
    arguments = {"local_files_only": True, "trust_remote_code": False}
    with reading_model(lambda reason: f"{name}: no model that {auto.__name__} can load safely ({reason})"):
        try:
            # Pillow resizes, so that pixels do not depend on whether torchvision is installed.
            processor = transformers.AutoImageProcessor.from_pretrained(folder, **arguments, backend="pil")
            network, info = auto.from_pretrained(
                folder,
                config=_config(folder),
                use_safetensors=weights[0].suffix == ".safetensors",
                output_loading_info=True,
                **arguments,
            )
        except ImportError as error:
            reason = str(error).strip().splitlines()[0]
            raise EncoderError(f"{name}: needs another package ({reason}); pip install 'boc[detectors]'") from error
    missing = sorted(key for key in info["missing_keys"] if UNUSED not in key)
    if missing:
        raise EncoderError(f"{name}: {len(missing)} weights are missing (such as {missing[0]}); fetch the model again")
    digest = hashlib.sha256("\n".join(f"{p.name} {sha256(p)}" for p in described + weights).encode()).hexdigest()
    device = pick("auto")
    return Backbone(place, digest, network.float().eval().to(device), processor, device)


def _folder(name: str, kind: str) -> tuple[Path, str]:
    """Return the folder of a model and the name to find it again."""
    if name and Path(name).is_dir():
        folder = Path(name).resolve()
        if not (folder / "config.json").is_file():
            raise EncoderError(f"{name}: no model of transformers in this folder (no config.json)")
        return folder, str(folder)
    try:
        cached = try_to_load_from_cache(name, "config.json") if name else None
    except HFValidationError:
        cached = None
    if not isinstance(cached, str):
        raise EncoderError(
            f"{name or kind}: no such folder, and not in the cache of transformers; write {kind}:FOLDER, or fetch it "
            f"where there is internet: hf download {name or 'NAME'}"
        )
    return Path(cached).parent, name


def _files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the configuration files and weight files. EncoderError if either is missing."""
    described = [folder / name for name in ("config.json", "preprocessor_config.json", "processor_config.json")]
    described = [path for path in described if path.is_file()]
    weights = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if len(described) < 2 or not weights:
        lacks = "weights (model.safetensors)" if not weights else "preprocessor_config.json"
        raise EncoderError(f"{folder}: no {lacks}; fetch the whole model: hf download NAME --local-dir {folder}")
    return described, weights


def _config(folder: Path) -> Any:
    """Return the configuration, without pretrained parts that would be downloaded separately."""
    stored = parse_json((folder / "config.json").read_bytes())
    backbone = stored.get("backbone")
    if backbone is not None and not stored.get("backbone_config") and not stored.get("use_timm_backbone", True):
        raise ValueError(f"its backbone {backbone!r} is described elsewhere; save the model with a newer transformers")
    config: Any = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    part: Any
    for part in (config, getattr(config, "backbone_config", None)):
        if getattr(part, "use_pretrained_backbone", False):
            part.use_pretrained_backbone = False
    return config
