"""Regions from the last feature map of an ONNX network, which runs in ONNX Runtime without
torch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from PIL.Image import Resampling

from boc.atomic_files import replacing, text_sha256
from boc.errors import EncoderError, check_system
from boc.inputs.images import read_image
from boc.types import Identity, ImageRef, Regions
from boc.vectors import Array, Doubles, Floats

from ..networks.foreign import reading_model
from ..runtime.sessions import open_session
from ._shared import cell_boxes, parse_spec, write_spec

# An exported network's metadata contains the SHA-256 of its weights.
WEIGHTS = "weights"
FORM = (
    "export a network that reads pixels, float32 (B, 3, S, S) in [0, 255], with free B and fixed "
    "S, and returns one map, float32 (B, C, rows, columns)"
)
# JPEG files are decoded at a size of at least this multiple of the network's input side.
SPARE = 2


@dataclass(frozen=True)
class FeatureMapOptions:
    """Options of the source.

    Attributes
    ----------
    cells : int
        Number of cells per side of the grid to which the map is averaged; 0 keeps the size of the
        map.
    crops : int
        Number k of crops per side. The k x k overlapping crops, each 2 / (k + 1) of the width and
        height, are additional regions. Each crop is encoded separately at full size, and its map is
        averaged.
    """

    cells: Annotated[int, Meta(ge=0, le=64)] = 0
    crops: Annotated[int, Meta(ge=0, le=8)] = 0


def load(argument: str, network: Path | None = None) -> MapRegions:
    """Return the source ``FILE?...`` for a network that maps float32 pixels (B, 3, S, S) in [0,
    255], with fixed S, to a feature map (B, C, rows, columns). ``network`` is the network file if
    it has moved. Raises EncoderError for networks of another form."""
    name, options = parse_spec(argument, FeatureMapOptions)
    path = (network or Path(name)).resolve()
    return MapRegions(read_network(path), "onnx", str(path), options)


def read_network(path: Path) -> bytes:
    """Return the bytes of a network. Raises EncoderError if the file is missing."""
    try:
        return path.read_bytes()
    except OSError as error:
        check_system(path, error, EncoderError)
        raise EncoderError(
            f"{path}: cannot be read as a network ({error.strerror}); specify an ONNX file",
        ) from error


class MapRegions:
    """Region source that returns the cells of a feature map, row by row, followed by the crops.

    Pictures are resized to a square without keeping the aspect ratio. A copy of the source in
    another process runs on one thread.
    """

    def __init__(
        self,
        network: bytes,
        kind: str,
        name: str,
        options: FeatureMapOptions,
        threads: int = 0,
    ) -> None:
        self._made_of = network, kind, name, options
        self._session = open_session(network, threads)
        spec = write_spec(kind, name, options)
        self._crops = cell_boxes(options.crops, options.crops, 2)
        self._side, dim, rows, columns = self._sizes(spec)
        down = options.cells or rows
        across = options.cells or columns
        self._boxes = np.concatenate([cell_boxes(down, across), self._crops])
        self._means = _averages(rows, down), _averages(columns, across)
        self._least = int(SPARE * self._side * max(options.crops + 1, 2) / 2)
        if kind == "onnx":
            source = f"onnx {hashlib.sha256(network).hexdigest()}"
        else:
            weights = self._session.get_modelmeta().custom_metadata_map.get(WEIGHTS)
            source = f"{name} {weights}"
        # The text includes all former options, so that it matches the digests in old models.
        decides = (
            f"1 {source} Options(side=0, maps='last', cells={options.cells}, "
            f"crops={options.crops}, whole=0, colours=0)"
        )
        self.identity = Identity(
            spec,
            text_sha256(decides),
            dim,
        )

    def __call__(self, image: ImageRef) -> Regions:
        picture = read_image(image.path, least=self._least)
        corners = self._crops.astype(np.float64) * [*picture.size, *picture.size]
        size = (self._side, self._side)
        inputs = [picture.resize(size, Resampling.BILINEAR)]
        inputs += [picture.resize(size, Resampling.BILINEAR, tuple(box)) for box in corners]
        pixels = np.stack([np.asarray(each) for each in inputs])
        # The maps have shape (1 + crops, C, rows, columns).
        maps = self._run(pixels.transpose(0, 3, 1, 2))
        rows, columns = self._means
        cells = rows @ maps[0] @ columns.T
        cells = cells.reshape(len(cells), -1).T
        return Regions(np.concatenate([cells, maps[1:].mean(axis=(2, 3))]), self._boxes)

    def __reduce__(self) -> tuple[Any, ...]:
        return MapRegions, (*self._made_of, 1)

    def save_onnx(self, path: Path) -> None:
        """Write the network to a file, from which ``encoders.regions.load`` recreates this source
        without torch."""
        with replacing(path) as temporary:
            temporary.write_bytes(self._made_of[0])

    def _run(self, pixels: Array) -> Floats:
        """Return the maps (B, C, rows, columns) of pixels (B, 3, S, S)."""
        name = self._session.get_inputs()[0].name
        made: list[Floats]
        made = self._session.run(None, {name: np.ascontiguousarray(pixels, np.float32)})
        return made[0]

    def _sizes(self, spec: str) -> tuple[int, int, int, int]:
        """Return the input side and the map shape. Raises EncoderError for a network of another
        form."""
        inputs = self._session.get_inputs()
        outputs = self._session.get_outputs()
        side = next((side for each in inputs for side in each.shape[3:]), None)
        forms = [(each.type, each.shape[1:]) for each in inputs]
        fits = forms == [("tensor(float)", [3, side, side])] and len(outputs) == 1
        made = None
        if fits and isinstance(side, int):
            with reading_model(lambda reason: f"{spec}: cannot be run ({reason}); {FORM}"):
                made = self._run(np.zeros((1 + len(self._crops), 3, side, side), np.float32))
        if made is None or made.dtype != np.float32 or made.ndim != 4 or not made.size:
            takes, gives = (
                ", ".join(f"{each.type} {each.shape}" for each in ends)
                for ends in (inputs, outputs)
            )
            raise EncoderError(f"{spec}: reads {takes} and returns {gives}; {FORM}")
        _, dim, rows, columns = made.shape
        return int(inputs[0].shape[-1]), dim, rows, columns


def _averages(size: int, count: int) -> Floats:
    """Return weights (count, size) that average ``size`` inputs to ``count`` outputs. Output i
    averages the inputs from i * size / count to (i + 1) * size / count, rounded outwards."""
    i = np.arange(count)[:, None]
    first = i * size // count
    end = -(-(i + 1) * size // count)
    place = np.arange(size)
    inside = (place >= first) & (place < end)
    weights: Doubles = inside / inside.sum(axis=1, keepdims=True)
    return weights.astype(np.float32)
