"""Batched inference: items are sorted by length, in a chosen precision, and a batch that exceeds
memory is halved."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.backends import cudnn

from boc.errors import EncoderError
from boc.types import Ragged, Runtime

from .dual_encoder import Encoded

T = TypeVar("T")
Encode = Callable[[Sequence[T]], tuple[Tensor, Sequence[Tensor]]]

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# The messages of errors that say that memory ran out.
EXHAUSTED = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")


def in_batches(
    device: str,
    runtime: Runtime,
    dim: int,
    inputs: Sequence[T],
    lengths: Sequence[int],
    encode: Encode[T],
) -> Encoded:
    """Encode ``inputs`` in batches: vectors float32 (n, dim) and n sets of rows float32 (m_i, dim),
    in their order.

    ``encode`` turns b inputs into a tensor (b, dim) and b tensors (m_i, dim) on ``device``. It gets
    at most ``runtime.batch`` inputs of similar ``lengths``, the longest first, so that there is
    little padding and the first batch needs the most memory. Matrix products run in
    ``runtime.precision``; float32 excludes the shorter TF32, which cuDNN takes by default.
    If memory runs out, this batch and all later ones are halved; EncoderError if a single input
    does not fit.
    """
    if runtime.precision not in PRECISIONS:
        raise EncoderError(f"no precision {runtime.precision!r}; known: {', '.join(PRECISIONS)}")
    order = sorted(range(len(inputs)), key=lambda i: -lengths[i])
    vectors = np.empty((len(inputs), dim), np.float32)
    sets: list[NDArray[np.float32]] = [np.empty((0, dim), np.float32)] * len(inputs)
    size = runtime.batch
    rounded = runtime.precision != "float32"
    pending: _Result | None = None
    start = 0
    with (
        torch.inference_mode(),
        torch.autocast(device, PRECISIONS[runtime.precision], enabled=rounded),
        cudnn.flags(enabled=cudnn.enabled, benchmark=cudnn.benchmark, allow_tf32=rounded),
    ):
        while start < len(order):
            places = order[start : start + size]
            try:
                result = _Result(*encode([inputs[i] for i in places]), places)
            except RuntimeError as error:
                if not any(mark in str(error) for mark in EXHAUSTED):
                    raise
                result = None
            # Everything that the failed batch allocated is free again here.
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
                # The device computes the next batch at the same time.
                pending.store(vectors, sets)
            pending = result
            start += len(places)
    if pending is not None:
        pending.store(vectors, sets)
    return vectors, Ragged.from_sets(sets, dim)


def to_device(tensor: Tensor, device: str) -> Tensor:
    """Put ``tensor`` on ``device``; to CUDA through pinned memory, so that the copy is
    asynchronous."""
    if device == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class _Result:
    """The result of a batch, while it is copied from the device."""

    def __init__(
        self,
        vectors: Tensor,
        sets: Sequence[Tensor],
        places: Sequence[int],
    ) -> None:
        self._places = places
        self._counts = [len(rows) for rows in sets]
        self._vectors = vectors.float().to("cpu", non_blocking=True)
        self._rows = torch.cat(list(sets)).float().to("cpu", non_blocking=True)
        self._done: torch.cuda.Event | None = None
        if vectors.is_cuda:
            self._done = torch.cuda.Event()
            self._done.record()

    def store(
        self,
        vectors: NDArray[np.float32],
        sets: list[NDArray[np.float32]],
    ) -> None:
        if self._done is not None:
            self._done.synchronize()
        vectors[self._places] = self._vectors.numpy()
        rows = np.split(self._rows.numpy(), np.cumsum(self._counts)[:-1])
        for place, part in zip(self._places, rows, strict=True):
            sets[place] = part
