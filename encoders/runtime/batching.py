"""Run batched inference in a chosen precision, with items sorted by length."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.backends import cudnn

from boc.errors import EncoderError
from boc.types import Ragged, Runtime
from boc.vectors import batches

from .dual_encoder import Encoded

T = TypeVar("T")
Encode = Callable[[Sequence[T]], tuple[Tensor, Sequence[Tensor]]]

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Parts of error messages that indicate exhausted memory.
EXHAUSTED = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")


def in_batches(
    device: str,
    runtime: Runtime,
    dim: int,
    inputs: Sequence[T],
    lengths: Sequence[int],
    encode: Encode[T],
) -> Encoded:
    """Encode ``inputs`` in batches. Return vectors float32 (n, dim) and n sets of rows float32
    (m_i, dim), in input order.

    ``encode`` converts b inputs to a tensor (b, dim) and b tensors (m_i, dim) on ``device``. Each
    call receives at most ``runtime.batch`` inputs of similar ``lengths``, longest first, so that
    there is little padding and the first batch needs the most memory. Matrix products run in
    ``runtime.precision``; with float32, the less precise TF32, which is the default of cuDNN, is
    disabled. Raises EncoderError if memory runs out.
    """
    if runtime.precision not in PRECISIONS:
        raise EncoderError(f"no precision {runtime.precision!r}; known: {', '.join(PRECISIONS)}")
    order = sorted(range(len(inputs)), key=lambda i: -lengths[i])
    vectors = np.empty((len(inputs), dim), np.float32)
    sets = [np.empty((0, dim), np.float32)] * len(inputs)
    rounded = runtime.precision != "float32"
    with (
        torch.inference_mode(),
        torch.autocast(device, PRECISIONS[runtime.precision], enabled=rounded),
        cudnn.flags(enabled=cudnn.enabled, benchmark=cudnn.benchmark, allow_tf32=rounded),
    ):
        for places in batches(order, runtime.batch):
            try:
                batch, rows = encode([inputs[i] for i in places])
            except RuntimeError as error:
                if not any(mark in str(error) for mark in EXHAUSTED):
                    raise
                raise EncoderError(
                    f"out of memory on {device} with {len(places)} items of length up to "
                    f"{lengths[places[0]]}",
                    f"try <boc extract --set batch_size={max(1, len(places) // 2)}>, or <--device "
                    "cpu>",
                ) from error
            vectors[places] = batch.float().cpu().numpy()
            for place, own in zip(places, rows, strict=True):
                sets[place] = own.float().cpu().numpy()
    return vectors, Ragged.from_sets(sets, dim)


def to_device(tensor: Tensor, device: str) -> Tensor:
    """Copy ``tensor`` to ``device``. Copies to CUDA use pinned memory, so that they are
    asynchronous."""
    if device == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
