"""Batched inference: items are sorted by length, in a chosen precision, and a batch that exceeds
memory is halved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.backends import cudnn

from boc.errors import EncoderError
from boc.types import Ragged

T = TypeVar("T")
Encode = Callable[[Sequence[T]], tuple[Tensor, Sequence[Tensor]]]

SIZE = 64  # items per batch
# in the message of a plain RuntimeError
EXHAUSTED = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")


def in_batches(
    device: str,
    precision: str,
    dim: int,
    inputs: Sequence[T],
    lengths: Sequence[int],
    encode: Encode[T],
    size: int = SIZE,
) -> tuple[NDArray[np.float32], Ragged]:
    """Encode ``inputs`` in batches: vectors float32 (n, dim) and n sets of rows float32 (m_i, dim),
    in their order.

    ``encode`` turns b inputs into a tensor (b, dim) and b tensors (m_i, dim) on ``device``. It gets
    at most ``size`` inputs of similar ``lengths``, the longest first, so that there is little
    padding and the first batch needs the most memory. Matrix products run in ``precision``
    (float32, bfloat16 or float16); float32 excludes the shorter TF32, which cuDNN takes by default.
    If memory runs out, this batch and all later ones are halved; EncoderError if a single input
    does not fit.
    """
    order = sorted(range(len(inputs)), key=lambda i: -lengths[i])
    vectors = np.empty((len(inputs), dim), np.float32)
    sets: list[NDArray[np.float32]] = [np.empty((0, dim), np.float32)] * len(inputs)
    pending: _Result | None = None
    start = 0
    with (
        torch.inference_mode(),
        torch.autocast(device, _dtype(precision), enabled=precision != "float32"),
        cudnn.flags(
            enabled=cudnn.enabled,
            benchmark=cudnn.benchmark,
            allow_tf32=precision != "float32",
        ),
    ):
        while start < len(order):
            places = order[start : start + size]
            result = _attempt(encode, [inputs[i] for i in places], places)
            if result is None:
                if len(places) == 1:
                    raise EncoderError(
                        f"out of memory on {device} with a single item of length "
                        f"{lengths[places[0]]}",
                        "try <--device cpu>, smaller pictures, or <boc extract --set "
                        "precision=bfloat16>",
                    )
                size = len(places) // 2
                if device == "cuda":
                    torch.cuda.empty_cache()
                continue
            if pending is not None:
                pending.store(vectors, sets)  # while the device computes the next batch
            pending = result
            start += len(places)
    if pending is not None:
        pending.store(vectors, sets)
    return vectors, Ragged.from_sets(sets, dim)


def to_device(tensor: Tensor, device: str) -> Tensor:
    """Put ``tensor`` on ``device``; to CUDA through pinned memory, so that the copy is
    asynchronous."""
    return (
        tensor.pin_memory().to(device, non_blocking=True) if device == "cuda" else tensor.to(device)
    )


def _dtype(precision: str) -> torch.dtype:
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if precision not in known:
        raise EncoderError(f"no precision {precision!r}; known: {', '.join(known)}")
    return known[precision]


class _Result:
    """The result of a batch, while it is copied from the device."""

    def __init__(self, vectors: Tensor, sets: Sequence[Tensor], places: Sequence[int]) -> None:
        self._places = places
        self._counts = [len(rows) for rows in sets]
        self._vectors = vectors.float().to("cpu", non_blocking=True)
        self._rows = torch.cat(list(sets)).float().to("cpu", non_blocking=True)
        self._done = torch.cuda.Event() if vectors.is_cuda else None
        if self._done is not None:
            self._done.record()

    def store(self, vectors: NDArray[np.float32], sets: list[NDArray[np.float32]]) -> None:
        if self._done is not None:
            self._done.synchronize()
        vectors[self._places] = self._vectors.numpy()
        rows = np.split(self._rows.numpy(), np.cumsum(self._counts)[:-1])
        for place, part in zip(self._places, rows, strict=True):
            sets[place] = part


def _attempt(encode: Encode[T], batch: Sequence[T], places: Sequence[int]) -> _Result | None:
    """Return the result of a batch; None if memory ran out, after everything allocated is free
    again."""
    try:
        return _Result(*encode(batch), places)
    except torch.OutOfMemoryError:
        return None
    except RuntimeError as error:
        if any(mark in str(error) for mark in EXHAUSTED):
            return None
        raise
