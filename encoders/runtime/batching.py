"""Many items through a network, a batch at a time: sorted by length, in a chosen precision, within the memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boc.errors import EncoderError
from boc.types import Ragged

T = TypeVar("T")
Encode = Callable[[Sequence[T]], tuple[Tensor, Sequence[Tensor]]]

SIZE = 64  # items of a batch
EXHAUSTED = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")  # of a plain RuntimeError


def in_batches(
    device: str,
    precision: str,
    dim: int,
    inputs: Sequence[T],
    lengths: Sequence[int],
    encode: Encode[T],
    size: int = SIZE,
) -> tuple[NDArray[np.float32], Ragged]:
    """Vectors float32 (n, dim) and n sets of rows float32 (m_i, dim), in the order of the n ``inputs``.

    ``encode`` turns b inputs into a tensor (b, dim) and b tensors (m_i, dim) on ``device``. It is given at most
    ``size`` inputs of similar ``lengths``, the longest first, so that little is padding and the most memory is asked
    for at once; matrix products run in ``precision`` (float32, bfloat16 or float16). Where memory runs out the batch
    is halved, and so are those behind it; EncoderError if not even one input fits.
    """
    order = sorted(range(len(inputs)), key=lambda i: -lengths[i])
    vectors = np.empty((len(inputs), dim), np.float32)
    sets: list[NDArray[np.float32]] = [np.empty((0, dim), np.float32)] * len(inputs)
    pending: _Result | None = None
    start = 0
    with torch.inference_mode(), torch.autocast(device, _dtype(precision), enabled=precision != "float32"):
        while start < len(order):
            places = order[start : start + size]
            result = _attempt(encode, [inputs[i] for i in places], places)
            if result is None:
                if len(places) == 1:
                    raise EncoderError(
                        f"out of memory on {device} with a single item of length {lengths[places[0]]}; try --precision "
                        "bfloat16, --device cpu, or smaller pictures"
                    )
                size = len(places) // 2
                if device == "cuda":
                    torch.cuda.empty_cache()
                continue
            if pending is not None:
                pending.store(vectors, sets)  # while the device computes the batch behind it
            pending = result
            start += len(places)
    if pending is not None:
        pending.store(vectors, sets)
    return vectors, Ragged.from_sets(sets, dim)


def to_device(tensor: Tensor, device: str) -> Tensor:
    """``tensor`` on ``device``; to CUDA through pinned memory, so that nobody waits for the copy."""
    return tensor.pin_memory().to(device, non_blocking=True) if device == "cuda" else tensor.to(device)


def _dtype(precision: str) -> torch.dtype:
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if precision not in known:
        raise EncoderError(f"no precision {precision!r}; known: {', '.join(known)}")
    return known[precision]


class _Result:
    """What came of a batch, on its way from the device."""

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
    """None where memory ran out; whatever had been allocated by then is free again."""
    try:
        return _Result(*encode(batch), places)
    except torch.OutOfMemoryError:
        return None
    except RuntimeError as error:
        if any(mark in str(error) for mark in EXHAUSTED):
            return None
        raise
