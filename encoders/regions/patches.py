"""Regions from any vision backbone of ``transformers``: one region per patch, or per cell of its last feature map."""

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
from ._shared import cell_boxes

WARPED = 384  # from this size on the processor of ConvNeXt squeezes instead of cropping
SPARE = 2  # tokens that may precede registers and patches: [CLS], and the distillation token of DeiT


def load(argument: str) -> PatchRegions:
    """Return the source over the model ``NAME_OR_FOLDER``. EncoderError if it is not on this disk or no vision
    backbone."""
    return PatchRegions(argument)


class PatchRegions:
    """The last hidden states of the patches, without [CLS] and registers, row by row.

    For a model with two towers (CLIP, SigLIP) it is the vision tower. Boxes are the positions of the cells in the
    upright picture, which the processor may have cropped; a cell with padding only is left out.
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
        """Hidden states (rows, columns, d), and x1 y1 x2 y2 of the area that they cover, as fractions of the
        picture."""
        pixels = self._model.inputs(picture)["pixel_values"]
        if pixels.ndim != 4:
            raise EncoderError(
                f"{self._model.name}: its processor gives no picture but {tuple(pixels.shape)}; use another"
            )
        height, width = pixels.shape[2:]
        window = visible_window(self._model.processor, picture.size, (width, height), self._model.name)
        states = self._network(pixel_values=pixels).last_hidden_state[0].float().cpu()
        if states.ndim == 3:
            return np.ascontiguousarray(states.permute(1, 2, 0).numpy()), window
        grid, covered = self._tokens(states, height, width)
        window[2:] = window[:2] + (window[2:] - window[:2]) * covered
        return grid.numpy(), window

    def _tokens(self, states: Tensor, height: int, width: int) -> tuple[Tensor, NDArray[np.float64]]:
        """Tokens (L, d) as a grid, and the fractions of width and height that its cells cover."""
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


def visible_window(processor: Any, size: tuple[int, int], shown: tuple[int, int], name: str) -> NDArray[np.float64]:
    """x1 y1 x2 y2 of the shown part, as fractions of the width and height of the picture; outside [0, 1] if padded.

    ``size`` is the picture's and ``shown`` the input's, both width and height in pixels. Processors resize (to a fixed
    size, or the shorter side with the aspect kept) and then crop the centre; the crop is exact to a pixel of the
    resized picture. EncoderError for a processor that works differently.
    """
    width, height = _resized_size(processor, size)
    crop = _size(processor, "crop_size") if getattr(processor, "do_center_crop", False) else {}
    cut_w, cut_h = crop.get("width", width), crop.get("height", height)
    if _crops_itself(processor):
        cut_w = cut_h = _size(processor, "size")["shortest_edge"]
    if (cut_w, cut_h) != shown:
        raise EncoderError(
            f"{name}: its processor makes {shown[0]} x {shown[1]} of {size[0]} x {size[1]} pixels in a way "
            "unknown here, so its patches cannot be placed; use another backbone"
        )
    left, top = (width - cut_w) / 2 / width, (height - cut_h) / 2 / height
    return np.array([left, top, 1 - left, 1 - top])


def _resized_size(processor: Any, size: tuple[int, int]) -> tuple[int, int]:
    """Return the width and height after resizing, before the crop."""
    if not getattr(processor, "do_resize", False):
        return size
    target = _size(processor, "size")
    if "height" in target:
        return target["width"], target["height"]
    short = target.get("shortest_edge", 0)
    if hasattr(processor, "crop_pct"):
        if not _crops_itself(processor):
            return short, short
        short = int(short / processor.crop_pct)
    width, height = size
    long = int(short * max(size) / min(size))
    return (short, long) if width <= height else (long, short)


def _crops_itself(processor: Any) -> bool:
    """Return whether the processor is that of ConvNeXt and crops while it resizes."""
    edge = _size(processor, "size").get("shortest_edge", 0)
    return bool(getattr(processor, "crop_pct", None)) and processor.do_resize and edge < WARPED


def _size(processor: Any, name: str) -> dict[str, int]:
    return {key: value for key, value in dict(getattr(processor, name, None) or {}).items() if value is not None}
