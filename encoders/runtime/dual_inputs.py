"""Inputs of dual encoders: pictures as pixels, sentences as ids. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tokenizers import Encoding, Tokenizer

from boc.errors import ImageError
from boc.inputs.images import read_image
from boc.types import ImageRef

from ..networks.tokens import whole_words

# The largest ratio of the long to the short side: resizing the short side enlarges the long one.
THINNEST = 100

Inputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class ClipInput:
    """The input of the network for a picture: ``inputs`` are arrays by name, ``boxes`` float32 (n,
    4) the patches as fractions of the width and height of the picture; n is 0 for a network without
    patches."""

    inputs: Inputs
    boxes: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.boxes)


@dataclass(frozen=True)
class Preparer:
    """Prepares pictures with the image processor of the library. ``grid`` holds the numbers of rows
    and columns of patches, None for a network without patches; with NaFlex networks each picture
    has its own grid."""

    processor: Any
    grid: tuple[int, int] | None

    def __call__(self, image: ImageRef) -> ClipInput:
        picture = read_image(image.path)
        width, height = picture.size
        if max(width, height) > THINNEST * min(width, height):
            raise ImageError(
                f"{image.path}: {width} x {height} pixels, the limit is 1 : {THINNEST}; crop the "
                "picture",
            )
        inputs = self.inputs(picture)
        if self.grid is None:
            return ClipInput(inputs, np.empty((0, 4), np.float32))
        rows, columns = inputs.get("spatial_shapes", self.grid)
        seen = window(self.processor, width, height)
        return ClipInput(inputs, patch_boxes(seen, int(rows), int(columns)))

    def inputs(self, picture: Image.Image) -> Inputs:
        # The rows of a picture with one or three rows could be mistaken for channels.
        arrays = self.processor(picture, return_tensors="np", input_data_format="channels_last")
        return {name: np.asarray(values)[0] for name, values in arrays.items()}


def window(
    processor: Any,
    width: int,
    height: int,
) -> tuple[float, float, float, float]:
    """x1, y1, x2, y2 of the area that the network sees after cropping, as fractions of the width
    and height of the picture. Beyond [0, 1] if the crop is larger than the picture."""
    crop = getattr(processor, "crop_size", None) or {}
    if getattr(processor, "do_resize", False):
        width, height = resized(processor.size or {}, width, height)
    crops = getattr(processor, "do_center_crop", False)
    if not (crops and crop.get("height") and crop.get("width")):
        return 0.0, 0.0, 1.0, 1.0
    left = (width - crop["width"]) // 2
    top = (height - crop["height"]) // 2
    right = left + crop["width"]
    bottom = top + crop["height"]
    return left / width, top / height, right / width, bottom / height


def resized(
    size: Mapping[str, int],
    width: int,
    height: int,
) -> tuple[int, int]:
    """Return the width and height of a picture that is brought to a ``size``: its shortest edge, or
    both."""
    if shortest := size.get("shortest_edge"):
        short = min(width, height)
        return int(shortest * width / short), int(shortest * height / short)
    return size.get("width") or width, size.get("height") or height


def patch_boxes(
    seen: tuple[float, float, float, float],
    rows: int,
    columns: int,
) -> NDArray[np.float32]:
    """Return (rows * columns, 4): ``seen`` cut into equal parts, row by row, within [0, 1]."""
    xs = np.linspace(
        seen[0],
        seen[2],
        columns + 1,
    )
    ys = np.linspace(
        seen[1],
        seen[3],
        rows + 1,
    )
    y, x = (each.ravel() for each in np.mgrid[:rows, :columns])
    boxes = np.stack([xs[x], ys[y], xs[x + 1], ys[y + 1]], axis=1)
    clipped: NDArray[np.float32] = np.clip(boxes, 0, 1).astype(np.float32)
    return clipped


@dataclass(frozen=True)
class PixelForm:
    """Resizing, cropping and scaling of pictures with Pillow, by the settings of the image
    processors of CLIP and SigLIP, which it stands for where transformers is not imported.

    ``size`` is the shorter side, or height and width; ``resample`` a filter of Pillow.
    """

    do_resize: bool
    size: Mapping[str, int]
    resample: int
    do_center_crop: bool
    crop_size: Mapping[str, int]
    rescale_factor: float
    image_mean: Sequence[float]
    image_std: Sequence[float]

    @classmethod
    def of(cls, processor: Any) -> PixelForm:
        """Return the form of an image processor of transformers; AttributeError or TypeError for
        one of another kind. Whether it computes the same is to be compared."""

        def sides(name: str) -> dict[str, int]:
            stated = dict(getattr(processor, name, None) or {})
            return {key: value for key, value in stated.items() if value is not None}

        return cls(
            bool(processor.do_resize),
            sides("size"),
            int(processor.resample),
            bool(getattr(processor, "do_center_crop", False)),
            sides("crop_size"),
            float(processor.rescale_factor),
            tuple(map(float, processor.image_mean)),
            tuple(map(float, processor.image_std)),
        )

    def __call__(self, picture: Image.Image, **_: Any) -> dict[str, list[NDArray[np.float32]]]:
        """Return the pixels (3, height, width) of a picture in RGB, as processors do."""
        if self.do_resize:
            size = resized(self.size, *picture.size)
            picture = picture.resize(size, Image.Resampling(self.resample))
        if self.do_center_crop:
            width = self.crop_size["width"]
            height = self.crop_size["height"]
            left = (picture.width - width) // 2
            top = (picture.height - height) // 2
            picture = picture.crop((left, top, left + width, top + height))
        scaled = np.asarray(picture, np.float32) * np.float32(self.rescale_factor)
        centred = scaled - np.array(self.image_mean, np.float32)
        pixels = centred / np.array(self.image_std, np.float32)
        return {"pixel_values": [np.ascontiguousarray(pixels.transpose(2, 0, 1), np.float32)]}


@dataclass(frozen=True)
class TextForm:
    """How sentences become ids: at most ``limit`` of a tokenizer, ``pad`` beyond the end of a text.

    With ``full`` each text has ``limit`` ids, padding before it if ``left``.
    """

    tokenizer: Tokenizer
    limit: int
    pad: int
    full: bool
    left: bool

    @property
    def vocabulary(self) -> frozenset[str]:
        return whole_words(self.tokenizer)

    def encode(self, texts: Sequence[str]) -> list[Encoding]:
        """Return the ids of each text, special ones included, with their positions in the text."""
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.limit)
        encodings: list[Encoding] = self.tokenizer.encode_batch(list(texts))
        return encodings

    def arrays(self, batch: Sequence[Encoding]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return padded ids (B, L), which of them are not padding (B, L), and which are words and
        not special."""
        width = self.limit if self.full else max(1, *(len(each) for each in batch))
        ids = np.full(
            (len(batch), width),
            self.pad,
            np.int64,
        )
        attended = np.zeros(ids.shape, np.int64)
        words = np.zeros(ids.shape, bool)
        for row, each in enumerate(batch):
            start = self.left * (width - len(each))
            place = slice(start, start + len(each))
            ids[row, place] = each.ids
            attended[row, place] = 1
            words[row, place] = np.array(each.special_tokens_mask) == 0
        return ids, attended, words
