"""Prepare the inputs of dual encoders, pictures as pixels and sentences as ids, without torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from tokenizers import Encoding, Tokenizer

from boc.errors import ImageError
from boc.inputs.images import read_image
from boc.types import ImageRef
from boc.vectors import Array, Floats

from ..networks.tokens import whole_words

# Maximum ratio of the long to the short side, which limits the size after resizing.
THINNEST = 100

Inputs = Mapping[str, Array]


@dataclass(frozen=True)
class Preparer:
    """Callable that prepares pictures with a transformers image processor or a ``PixelForm``."""

    processor: Any

    def __call__(self, image: ImageRef) -> Inputs:
        picture = read_image(image.path)
        width, height = picture.size
        if max(width, height) > THINNEST * min(width, height):
            raise ImageError(
                f"{image.path}: {width} x {height} pixels, but the limit is 1 : {THINNEST}; "
                "crop the picture",
            )
        return self.inputs(picture)

    def inputs(self, picture: Image.Image) -> Inputs:
        """Return the input arrays of a network for a picture, by name."""
        # A processor could mistake one or three rows of a picture for channels.
        arrays = self.processor(picture, return_tensors="np", input_data_format="channels_last")
        return {name: np.asarray(values)[0] for name, values in arrays.items()}


@dataclass(frozen=True)
class PixelForm:
    """Resize, crop and scale pictures with Pillow, following the settings of the CLIP and SigLIP
    image processors. This class replaces the processors when transformers is not imported.

    ``size`` is the shorter side, or height and width; ``resample`` is a Pillow filter.
    """

    do_resize: bool
    size: Mapping[str, int]
    resample: int
    do_center_crop: bool
    crop_size: Mapping[str, int]
    rescale_factor: float
    image_mean: Sequence[float]
    image_std: Sequence[float]

    def __call__(self, picture: Image.Image, **_: Any) -> dict[str, list[Floats]]:
        """Return the pixels (3, height, width) of an RGB picture, in the format of a processor's
        result."""
        if self.do_resize:
            if shortest := self.size.get("shortest_edge"):
                width, height = (int(shortest * side / min(picture.size)) for side in picture.size)
            else:
                width = self.size["width"]
                height = self.size["height"]
            picture = picture.resize((width, height), Image.Resampling(self.resample))
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
    """Convert sentences to at most ``limit`` token ids, padded with ``pad``.

    If ``full`` is true, each text is padded to ``limit`` ids, on the left if ``left`` is true.
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
        """Return the ids of each text, including special ids, with their positions in the text."""
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.limit)
        return self.tokenizer.encode_batch(list(texts))

    def arrays(self, batch: Sequence[Encoding]) -> tuple[Array, Array]:
        """Return padded ids (B, L), and a mask of the ids that are not padding."""
        width = self.limit if self.full else max(1, *(len(each) for each in batch))
        ids = np.full(
            (len(batch), width),
            self.pad,
            np.int64,
        )
        attended = np.zeros(ids.shape, np.int64)
        for row, each in enumerate(batch):
            start = self.left * (width - len(each))
            place = slice(start, start + len(each))
            ids[row, place] = each.ids
            attended[row, place] = 1
        return ids, attended
