"""Several processes that train one model, as ``torchrun`` starts them.

Each step of the weights adds the gradients of ``accumulate`` batches; the processes share out these batches, and have
the same weights before and after. So a run has one result, whatever the number of its processes, apart from the
rounding of sums and the running statistics of batch normalisation, which are means over the processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor
from torch import distributed as dist

from boc.errors import EncoderError

PATIENCE = timedelta(days=7)  # the others wait while the first process cuts regions


@dataclass(frozen=True)
class Processes:
    """This process is number ``rank`` (from 0) of ``count``; by default it is alone."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """True if this process writes files and shows progress."""
        return self.rank == 0

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.count > 1:
            dist.barrier()

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """Let the first process run the block, then the others."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()

    def add_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace the gradients by their sums over all processes; a missing one is zero."""
        if self.count > 1:
            for parameter in parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace floating-point tensors by their means over all processes."""
        if self.count > 1:
            for tensor in tensors:
                if tensor.is_floating_point():
                    dist.all_reduce(tensor)
                    tensor /= self.count

    def of_first(self, value: float, device: str) -> float:
        """Return the ``value`` of the first process."""
        if self.count == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64, device=device)
        dist.broadcast(shared, 0)
        return float(shared)


@contextmanager
def join_processes() -> Iterator[Processes]:
    """Yield the processes of this ``torchrun``; without it, this process alone.

    EncoderError if the machine has GPUs, but fewer than processes.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes()
        return
    cards = torch.cuda.is_available()
    if cards:
        rank, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if rank >= gpus:
            raise EncoderError(
                f"this machine has too few GPUs ({gpus}) for the processes that torchrun started; "
                f"give --nproc-per-node {gpus}, or put CUDA_VISIBLE_DEVICES= before the command to train without GPUs"
            )
        torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cards else "gloo", timeout=PATIENCE)
    try:
        yield Processes(dist.get_rank(), count)
    finally:
        dist.destroy_process_group()
