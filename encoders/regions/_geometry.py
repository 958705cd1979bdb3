"""The part of a picture that a processor of ``transformers`` passes to its network."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.errors import EncoderError

WARPED = 384  # from this size on the processor of ConvNeXt squeezes instead of cropping


def seen(processor: Any, size: tuple[int, int], shown: tuple[int, int], name: str) -> NDArray[np.float64]:
    """x1 y1 x2 y2 of the shown part, as fractions of the width and height of the picture; outside [0, 1] if padded.

    ``size`` is the picture's and ``shown`` the input's, both width and height in pixels. Processors resize (to a fixed
    size, or the shorter side with the aspect kept) and then crop the centre; the crop is exact to a pixel of the
    resized picture. EncoderError for a processor that works differently.
    """
    width, height = _resized(processor, size)
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


def _resized(processor: Any, size: tuple[int, int]) -> tuple[int, int]:
    """Width and height after resizing, before the crop."""
    if not getattr(processor, "do_resize", False):
        return size
    wanted = _size(processor, "size")
    if "height" in wanted:
        return wanted["width"], wanted["height"]
    short = wanted.get("shortest_edge", 0)
    if hasattr(processor, "crop_pct"):
        if not _crops_itself(processor):
            return short, short
        short = int(short / processor.crop_pct)
    width, height = size
    long = int(short * max(size) / min(size))
    return (short, long) if width <= height else (long, short)


def _crops_itself(processor: Any) -> bool:
    """Whether the processor is that of ConvNeXt and crops while it resizes."""
    edge = _size(processor, "size").get("shortest_edge", 0)
    return bool(getattr(processor, "crop_pct", None)) and processor.do_resize and edge < WARPED


def _size(processor: Any, name: str) -> dict[str, int]:
    return {key: value for key, value in dict(getattr(processor, name, None) or {}).items() if value is not None}
