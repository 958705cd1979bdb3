"""Regions from the last feature map of a MobileNet in TensorFlow Lite: one region per cell."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray
from PIL import Image

from boc.atomic_files import sha256
from boc.errors import EncoderError
from boc.inputs.images import read_image
from boc.types import Identity, ImageRef, Regions

from ._shared import cell_boxes


def load(argument: str) -> TfliteRegions:
    """The source over the model file ``argument``. EncoderError if it is missing or no convolutional classifier."""
    path = Path(argument)
    if not argument or not path.is_file():
        raise EncoderError(
            f"{argument or 'tflite'}: no such model file; write tflite:FILE, for example tflite:mobilenet.tflite"
        )
    return TfliteRegions(path)


class TfliteRegions:
    """The map before the final pooling, for MobileNetV2 at 224 pixels 7 x 7 cells of 1280 channels.

    The picture is resized to the input of the model without keeping its aspect; boxes are the cells of the map, row by
    row. ``threads`` is the number of threads of the interpreter, all cores by default; a pickled copy has one, since it
    goes to a worker process. The number does not change the values.
    """

    def __init__(self, path: Path, threads: int | None = None) -> None:
        self.weights = path
        self._model = _interpreter(path, threads or os.cpu_count() or 1)
        self._input = self._model.get_input_details()[0]
        self._map = _feature_map(self._model.get_tensor_details(), path)
        rows, columns, channels = (int(n) for n in self._map["shape"][1:])
        self._boxes = cell_boxes(rows, columns)
        self.identity = Identity(f"tflite:{path.resolve()}", sha256(path), channels)

    def __call__(self, image: ImageRef) -> Regions:
        height, width = (int(n) for n in self._input["shape"][1:3])
        pixels = read_image(image.path).resize((width, height), Image.Resampling.BILINEAR)
        self._model.set_tensor(self._input["index"], self._quantized(np.asarray(pixels)))
        self._model.invoke()
        values = _dequantized(self._model.get_tensor(self._map["index"]), self._map)
        return Regions(values.reshape(len(self._boxes), -1), self._boxes)

    def __reduce__(self) -> tuple[Any, ...]:
        return TfliteRegions, (self.weights, 1)

    def _quantized(self, pixels: NDArray[np.uint8]) -> NDArray[Any]:
        """Pixels in the input type of the model: bytes unchanged, floats in [-1, 1]."""
        if self._input["dtype"] == np.uint8:
            return pixels[None]
        return (pixels[None] / 127.5 - 1).astype(self._input["dtype"])


def _interpreter(path: Path, threads: int) -> Interpreter:
    """The model, with access to its inner tensors, one of which is the feature map."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it warns about the access to inner tensors
            model = Interpreter(str(path), num_threads=threads, experimental_preserve_all_tensors=True)
        model.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise EncoderError(f"{path}: not a TensorFlow Lite model ({error}); give the .tflite file") from error
    return model


def _feature_map(tensors: list[dict[str, Any]], path: Path) -> dict[str, Any]:
    """The tensor that feeds the global pooling: the last (1, h, w, c) tensor before a (1, 1, 1, c) one."""
    shapes = [tuple(int(n) for n in t["shape"]) for t in tensors]
    pooled = {s[3] for s in shapes if len(s) == 4 and s[:3] == (1, 1, 1)}
    maps = [
        t
        for t, s in zip(tensors, shapes, strict=True)
        if len(s) == 4 and s[0] == 1 and s[1] > 1 and s[2] > 1 and s[3] in pooled and "weights" not in t["name"]
    ]
    if not maps:
        raise EncoderError(f"{path}: no feature map before a global pooling in this model; use a MobileNet classifier")
    return max(maps, key=lambda t: (int(t["shape"][3]), int(t["index"])))


def _dequantized(values: NDArray[Any], tensor: dict[str, Any]) -> NDArray[np.float32]:
    scale, zero = tensor["quantization"]
    real: NDArray[np.float32] = (values.astype(np.float32) - zero) * scale if scale else values.astype(np.float32)
    return real
