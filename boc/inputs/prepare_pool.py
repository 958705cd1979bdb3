"""Prepare pictures in worker processes, in order, at most a few hundred pictures ahead of the
consumer.

This module imports only light modules, so that a worker can limit its threads before NumPy counts
the cores.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from itertools import cycle, islice
from multiprocessing import connection, get_context, parent_process, resource_tracker
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from boc.errors import BocError, ImageError

if TYPE_CHECKING:
    from boc.types import ImageRef

    Prepare: TypeAlias = Callable[[ImageRef], Any]


FEW = 256
"""Number of pictures that can be prepared in the time that it takes to start workers."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def worker_count(pictures: int) -> int:
    """Return the number of worker processes for the given number of pictures: one per available
    core, or 0 for few pictures."""
    if pictures < FEW:
        return 0
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def preparing(
    prepare: Prepare,
    images: Iterable[ImageRef],
    workers: int,
    ahead: int = 256,
) -> Iterator[Iterator[Any]]:
    """Apply ``prepare`` to each of ``images``, and yield an iterator over the results in order. If
    a call raises ImageError, its result is the error.

    If ``workers`` is 0, ``prepare`` runs in this process. Otherwise, it runs in ``workers`` new
    processes, at most ``ahead`` pictures ahead of the consumer. The new processes receive
    ``prepare`` through pickle, and end with the block or with this process. They do not import the
    user's program, so a ``prepare`` that is defined there runs in this process instead. All other
    BocErrors are raised.
    """
    pickled = (
        bytes(ForkingPickler.dumps(prepare)) if workers else b""
    )  # pickling errors are raised here
    if not pickled or b"__main__" in pickled:
        yield (_check_result(_attempt(prepare, image)) for image in images)
        return
    context = get_context("spawn")  # a fork would copy the threads and locks of PyTorch
    # Each worker has its own pool, so that if a worker dies, the picture at fault is known.
    pools = [ProcessPoolExecutor(1, context, _begin, (pickled,)) for _ in range(workers)]
    try:
        # Processes started here ignore Ctrl-C, which a terminal sends to all processes; their
        # parent ends them. The resource tracker is started before, because its start unblocks
        # interrupts.
        resource_tracker.ensure_running()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        # Workers do not import the user's program, because it may lack a main guard.
        program = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            for pool in pools:
                pool.submit(len, "")  # starts the process of the pool
        finally:
            sys.modules["__main__"] = program
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        yield _results(images, pools, ahead)
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)


def _results(
    images: Iterable[ImageRef],
    pools: Sequence[ProcessPoolExecutor],
    ahead: int,
) -> Iterator[Any]:
    """Yield the results in order. Pictures are assigned to the workers in turn."""
    queue: deque[tuple[ImageRef, Future[Any]]] = deque()
    waiting = zip(images, cycle(pools), strict=False)
    while True:
        for image, pool in islice(waiting, ahead - len(queue)):
            try:
                future = pool.submit(_work, image)
            except BrokenProcessPool as error:
                future = Future()
                future.set_exception(error)
            queue.append((image, future))
        if not queue:
            return
        image, future = queue.popleft()
        try:
            value = future.result()
        except BrokenProcessPool as error:
            raise BocError(
                f"a worker process died at {image.path}, possibly because memory ran out",
                "run the command again to resume; if memory is short, use <boc extract --set "
                "workers=1>",
            ) from error
        yield _check_result(value)


def _begin(pickled: bytes) -> None:
    """Limit the threads of a worker, and make the worker end when its parent ends."""
    parent = parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    global _pickled
    _pickled = pickled
    os.environ.update(dict.fromkeys(THREADS, "1"))
    threading.Thread(target=end_with_parent, daemon=True).start()


_pickled = b""


@cache
def _unpickle() -> Prepare:
    """Return ``prepare``, which is unpickled once per worker."""
    prepare: Prepare = ForkingPickler.loads(_pickled)
    return prepare


def _work(image: ImageRef) -> Any:
    return _attempt(_unpickle(), image)


def _attempt(prepare: Prepare, image: ImageRef) -> Any:
    try:
        return prepare(image)
    except BocError as error:
        return error


def _check_result(value: Any) -> Any:
    if isinstance(value, BocError) and not isinstance(value, ImageError):
        raise value
    return value
