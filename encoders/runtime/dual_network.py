"""Dual encoders of the ``transformers`` library, and CLIPs of ``open_clip``, on torch: the
reference, and on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from tokenizers import normalizers
from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoConfig, AutoImageProcessor, AutoTokenizer

from boc.errors import EncoderError
from boc.types import Ragged, Runtime

from ..conversion import open_clip
from ..networks.dual_tower import Tower
from ..networks.foreign import quiet_transformers, reading_model
from . import device
from .batching import in_batches, to_device
from .dual_inputs import ClipInput, Inputs, Preparer, TextForm

WORKS = (
    "CLIP, SigLIP, SigLIP 2, MetaCLIP 2, Chinese-CLIP, AltCLIP, CLIPSeg, ALIGN, AIMv2, "
    "VisionTextDualEncoder"
)
LONGEST = 512  # ids per text, if neither tokenizer nor network has a limit


class DualNetwork:
    """The two towers of a model, on a device, with the forms of their inputs.

    ``form`` says how sentences become ids, ``preparer`` how pictures become pixels, ``dim`` is the
    width of the joint space. ValueError if the towers do not belong together.
    """

    def __init__(self, model: Any, tokenizer: Any, processor: Any, runtime: Runtime) -> None:
        self.device = device.pick(runtime.device)
        self.model = model.float().eval().to(self.device)
        self.image = Tower(
            model.get_image_features,
            model.vision_model,
            getattr(model, "visual_projection", None),
        )
        self.text = Tower(
            model.get_text_features,
            model.text_model,
            getattr(model, "text_projection", None),
        )
        self.form = self._form(tokenizer)
        self._masked = not self.form.full and "attention_mask" in tokenizer.model_input_names
        self.dim, self.preparer = self._probe(processor)
        self._in_batches = partial(
            in_batches,
            self.device,
            runtime.precision,
            self.dim,
            size=runtime.batch,
        )
        if runtime.compile:
            self.image.compile()
            self.text.compile()

    def images(self, prepared: Sequence[ClipInput]) -> tuple[NDArray[np.float32], Ragged]:
        def encode(batch: Sequence[ClipInput]) -> tuple[Tensor, list[Tensor]]:
            vectors, hidden = self.image(**self._stack([each.inputs for each in batch]))
            if self.preparer.grid is None:
                return vectors, [vectors[:0]] * len(batch)
            before = 0 if "spatial_shapes" in batch[0].inputs else hidden.shape[1] - len(batch[0])
            tokens = self.image.joint(hidden[:, before:])
            return vectors, [rows[: len(each)] for rows, each in zip(tokens, batch, strict=True)]

        return self._in_batches(prepared, [len(each) for each in prepared], encode)

    def texts(self, encodings: Sequence[Any]) -> tuple[NDArray[np.float32], Ragged]:
        def encode(batch: Sequence[Any]) -> tuple[Tensor, list[Tensor]]:
            ids, attended, words = self.form.arrays(batch)
            vectors, hidden = self.text(**self._ids(ids, attended))
            if self.preparer.grid is None:
                return vectors, [vectors[:0]] * len(batch)
            masks = to_device(torch.from_numpy(words), self.device)
            return vectors, [
                rows[mask] for rows, mask in zip(self.text.joint(hidden), masks, strict=True)
            ]

        return self._in_batches(encodings, [len(each) for each in encodings], encode)

    def _form(self, tokenizer: Any) -> TextForm:
        backend = tokenizer.backend_tokenizer
        # SigLIP was trained with lower-case texts padded to full length, and reads the padding.
        full = self.model.config.text_config.model_type.startswith("siglip")
        if full:
            others = [] if backend.normalizer is None else [backend.normalizer]
            backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *others])
        left = full and tokenizer.padding_side == "left"
        limit = _limit(tokenizer, self.model.text_model)
        return TextForm(backend, limit, tokenizer.pad_token_id or 0, full, left)

    @torch.inference_mode()
    def _probe(self, processor: Any) -> tuple[int, Preparer]:
        """Run a picture and a sentence through the towers, to learn their widths, the grid of
        patches, and the token maps."""
        inputs = Preparer(processor, None).inputs(Image.radial_gradient("L").convert("RGB"))
        image, patches = self.image(**self._stack([inputs]))
        ids, attended, _ = self.form.arrays(self.form.encode(["a photo"]))
        text, tokens = self.text(**self._ids(ids, attended))
        if image.ndim != 2 or image.shape != text.shape:
            raise ValueError(
                f"vectors of pictures {tuple(image.shape)} and texts {tuple(text.shape)} do not "
                "compare",
            )
        ways = self.image.learn_pool(image, patches), self.text.learn_pool(text, tokens)
        grid = _grid(
            inputs,
            patches.shape[1],
            getattr(self.model.config.vision_config, "patch_size", None),
        )
        return image.shape[1], Preparer(processor, grid if all(ways) else None)

    def _stack(self, inputs: Sequence[Inputs]) -> dict[str, Tensor]:
        stacked = {
            name: torch.from_numpy(np.stack([each[name] for each in inputs])) for name in inputs[0]
        }
        return {name: to_device(tensor, self.device) for name, tensor in stacked.items()}

    def _ids(self, ids: NDArray[np.int64], attended: NDArray[np.int64]) -> dict[str, Tensor]:
        inputs = {"input_ids": ids} | ({"attention_mask": attended} if self._masked else {})
        return {
            name: to_device(torch.from_numpy(array), self.device) for name, array in inputs.items()
        }


def read_model(name: str, folder: Path, weights: list[str], runtime: Runtime) -> DualNetwork:
    """Read the model in a folder, whose weights have these names. EncoderError for one that cannot
    be used."""
    again = f"get it again, or take one of {WORKS}"
    unusable = f"{name}: no dual encoder that can be used"
    with quiet_transformers(), reading_model(lambda reason: f"{unusable} ({reason}); {again}"):
        if weights[0].startswith("open_clip"):
            model, tokenizer, processor = open_clip.load(folder, weights[0])
        else:
            model, tokenizer, processor = _transformers(name, folder)
        if not tokenizer.is_fast:
            raise ValueError("its tokenizer needs transformers 5: pip install -U transformers")
        return DualNetwork(model, tokenizer, processor, runtime)


def _transformers(name: str, folder: Path) -> tuple[Any, Any, Any]:
    """Return the network, the tokenizer and the image processor of a folder of the transformers
    library."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    kind: Any = MODEL_MAPPING.get(type(config), None)
    if not (hasattr(kind, "get_image_features") and hasattr(kind, "get_text_features")):
        raise EncoderError(
            f"{name}: a model of type {config.model_type!r} has no vectors of pictures and of "
            "texts, each on "
            f"its own; take one of {WORKS}",
        )
    model, info = kind.from_pretrained(
        folder,
        config=config,
        local_files_only=True,
        output_loading_info=True,
    )
    absent = sorted(info["missing_keys"])
    if absent:
        raise ValueError(f"{len(absent)} weights are missing, such as {absent[0]}")
    tokenizer = AutoTokenizer.from_pretrained(
        folder,
        local_files_only=True,
        trust_remote_code=False,
    )
    # Pillow resizes as the models' authors did; torchvision, the default where it is installed,
    # differs a little.
    return (
        model,
        tokenizer,
        AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil"),
    )


def _limit(tokenizer: Any, tower: nn.Module) -> int:
    """Return the largest number of ids per text for the text tower."""
    limits: list[int] = [LONGEST, tokenizer.model_max_length]
    for name, table in tower.named_modules():
        if isinstance(table, nn.Embedding) and name.endswith(
            ("position_embedding", "position_embeddings"),
        ):
            # RoBERTa counts positions from the one after the padding id.
            limits.append(
                table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1),
            )
    return min(limits)


def _grid(inputs: Inputs, tokens: int, patch: Any) -> tuple[int, int] | None:
    """Return the rows and columns of patches among the tokens of a picture, None without a grid."""
    if "spatial_shapes" in inputs:
        rows, columns = inputs["spatial_shapes"].tolist()
        return rows, columns
    height, width = inputs["pixel_values"].shape[-2:]
    if patch:
        down, across = patch if isinstance(patch, (list, tuple)) else (patch, patch)
        rows = height // down
        columns = width // across
        if rows * columns <= tokens <= rows * columns + 16:  # [CLS] and registers come before them
            return rows, columns
    side = round(tokens**0.5)
    return (side, side) if side * side == tokens and height == width else None
