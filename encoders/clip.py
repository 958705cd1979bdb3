"""Load CLIP, SigLIP and other dual encoders, which are named ``clip:NAME_OR_FOLDER``.

The encoder runs two published ONNX networks (``runtime.onnx_pair``), or a ``transformers`` model on
torch (``runtime.dual_network``). On torch, ``transformers`` computes the vectors
(``get_image_features``, ``get_text_features``), which are then scaled to unit length. This module
never downloads files and never runs code from a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boc import models
from boc.errors import EncoderError
from boc.types import Embeddings, Identity, Runtime

from .runtime.device import import_for_torch
from .runtime.dual_encoder import DualEncoder
from .runtime.onnx_pair import PairOnnx, describe
from .runtime.onnx_record import ModelFiles, read_record

CONFIG = "config.json"


@dataclass
class ClipEncoder(DualEncoder):
    """Encoder that runs the ``towers`` of a published model, without concept sets."""

    towers: Any

    def encode_images(self, prepared: Sequence[Any]) -> Embeddings:
        return Embeddings("image", self.towers.images(prepared))

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        return Embeddings("text", self.towers.texts(self.tokens.encode(texts)))


def load(argument: str, runtime: Runtime) -> ClipEncoder:
    """Load a dual encoder from a folder, or by name from the downloads of ``boc model get`` or the
    Hugging Face cache.

    The function never downloads files. Weights are read from safetensors files, or from torch files
    that contain only weights. Raises EncoderError if parts of the model are missing or the model is
    unusable; the message explains how to get missing parts.
    """
    name, folder = find(argument)
    pair = models.pair_in(folder)
    if pair is None:
        contents = digest(name, folder)
        towers = import_for_torch("dual_network").read_model(name, folder, runtime)
    elif runtime.device == "cuda":
        raise EncoderError(
            f"{name}: this model consists of ONNX networks, which run only on the CPU",
            "leave out <--device>, or get a transformers model for the GPU: "
            "<boc model get google/siglip2-base-patch16-256>",
        )
    else:
        files = parts(name, folder)
        if read_record(folder, files) is None:
            digest(name, folder)
        record = describe(folder, pair, files)
        contents = record.digest
        towers = PairOnnx(folder, record, runtime.batch, pair)
    identity = Identity(f"clip:{name}", contents, towers.dim)
    return ClipEncoder(identity, towers.form, lambda: towers.preparer, towers)


def parts(name: str, folder: Path) -> ModelFiles:
    """Return the files on which a model's ONNX networks depend. Raises EncoderError if the weights
    are missing."""
    weights = models.weights(folder)
    if not weights:
        raise EncoderError(
            f"{name}: no weights in {folder} (model.safetensors); copy the whole model there",
        )
    return ModelFiles(models.settings(folder), weights, lambda: models.contents(folder, weights))


def digest(name: str, folder: Path) -> str:
    """Return a model's digest. Raises EncoderError if the files differ from the download."""
    contents = parts(name, folder).digest()
    got = models.read(folder)
    if got is not None and got.contents != contents:
        changed = ", ".join(models.verify(got)) or "a file that was added"
        raise EncoderError(
            f"{name}: files differ from the download ({changed})",
            f"get it again: <boc model get {got.repository}>",
        )
    return contents


def find(argument: str) -> tuple[str, Path]:
    """Return the name and the folder of the model."""
    folder = Path(argument)
    if folder.is_dir():
        if not (folder / CONFIG).is_file() and models.pair_in(folder) is None:
            raise EncoderError(
                f"{folder}: contains neither a transformers model (config.json) nor two ONNX "
                "networks; choose a model folder",
            )
        return str(folder.resolve()), folder
    name = argument
    if argument in models.CATALOGUE:
        name = models.CATALOGUE[argument].repository
    got = models.find(name)
    if got is not None:
        return name, got.folder
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, CONFIG)
    except HFValidationError:
        raise EncoderError(
            f"{argument}: folder does not exist; give an existing folder, or a name such as clip",
        ) from None
    # For a file that is known to be absent, the cache returns a value that is not a path.
    if not isinstance(cached, str):
        raise EncoderError(
            f"{argument}: neither a folder nor a model on this machine",
            f"download it with <boc model get {argument}>, then try again",
        )
    return name, Path(cached).parent
