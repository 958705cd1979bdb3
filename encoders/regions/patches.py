"""Regions from any vision backbone of ``transformers``: one patch, or cell of its last feature map, one region."""

from __future__ import annotations

import hashlib
import inspect
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from transformers import AutoModel

from boc.errors import EncoderError
from boc.inputs.images import read_image
from boc.types import Identity, ImageRef, Regions

from . import _pretrained
from ._cells import cell_boxes
from ._geometry import seen

ARGUMENT = "FOLDER"
EXTRA = "encoders"
SPARE = 2  # tokens that may stand before registers and patches: [CLS], and the distillation token of DeiT


def load(argument: str) -> PatchRegions:
    """The source over the model ``NAME_OR_FOLDER``. EncoderError if it is not on this disk or no vision backbone."""
    return PatchRegions(argument)


class PatchRegions:
    """The last hidden states of the patches, without [CLS] and registers, row by row.

    Of a model with two towers (CLIP, SigLIP) it is the vision tower. Boxes say where the cells lie in the upright
    picture, of which the processor may have cut the middle; a cell that saw only padding is left out.
    """

    def __init__(self, name: str) -> None:
        self._model = _pretrained.load(name, AutoModel, "patches")
        self._network = getattr(self._model.network, "vision_model", self._model.network)
        if "pixel_values" not in inspect.signature(self._network.forward).parameters:
            raise EncoderError(f"{name}: no vision backbone; use a ViT, DINOv2, ConvNeXt, Swin, CLIP or the like")
        grid, _ = self._look(Image.new("RGB", (64, 48)))
        digest = hashlib.sha256(f"patches {self._model.digest}".encode()).hexdigest()
        self.identity = Identity(f"patches:{self._model.name}", digest, grid.shape[2])

    def __call__(self, image: ImageRef) -> Regions:
        grid, window = self._look(read_image(image.path))
        rows, columns, width = grid.shape
        corner, size = window[:2], window[2:] - window[:2]
        boxes = cell_boxes(rows, columns) * np.tile(size, 2) + np.tile(corner, 2)
        boxes = boxes.astype(np.float32).clip(0, 1)
        inside = (boxes[:, :2] < boxes[:, 2:]).all(axis=1)
        return Regions(grid.reshape(-1, width)[inside], boxes[inside])

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self._model.name,)

    @torch.inference_mode()
    def _look(self, picture: Image.Image) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Hidden states (rows, columns, d), and x1 y1 x2 y2 of what they cover in parts of the picture."""
        pixels = self._model.inputs(picture)["pixel_values"]
        if pixels.ndim != 4:
            raise EncoderError(
                f"{self._model.name}: its processor gives no picture but {tuple(pixels.shape)}; use another"
            )
        height, width = pixels.shape[2:]
        window = seen(self._model.processor, picture.size, (width, height), self._model.name)
        states = self._network(pixel_values=pixels).last_hidden_state[0].float().cpu()
        if states.ndim == 3:
            return np.ascontiguousarray(states.permute(1, 2, 0).numpy()), window
        grid, covered = self._tokens(states, height, width)
        window[2:] = window[:2] + (window[2:] - window[:2]) * covered
        return grid.numpy(), window

    def _tokens(self, states: Tensor, height: int, width: int) -> tuple[Tensor, NDArray[np.float64]]:
        """Tokens (L, d) as a grid, and the parts of width and height that its cells cover."""
        config = self._network.config
        patch = getattr(config, "patch_size", None)
        patch = patch[0] if isinstance(patch, list | tuple) else patch
        specials = SPARE + (getattr(config, "num_register_tokens", None) or 0)
        merges = len(getattr(config, "depths", None) or [0]) - 1  # Swin halves the grid between its stages
        for stride in (patch, patch << merges) if isinstance(patch, int) else ():
            rows, columns = height // stride, width // stride
            if 0 <= len(states) - rows * columns <= specials:
                covered = np.array([columns * stride / width, rows * stride / height])
                return states[len(states) - rows * columns :].reshape(rows, columns, -1), covered
        raise EncoderError(
            f"{self._model.name}: {len(states)} tokens of {width} x {height} pixels make no grid; use another backbone"
        )
