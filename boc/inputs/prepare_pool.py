"""Prepare pictures in worker processes, in order and at most a few hundred ahead of the consumer.

This module imports nothing heavy, so that a worker can limit its threads before numpy counts the
cores.
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
"""Number of pictures up to which preparing them takes less time than starting workers."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def worker_count(pictures: int) -> int:
    """Return the number of worker processes for this number of pictures: one per usable core, or 0
    for few pictures."""
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
    """Apply ``prepare`` to each of ``images``. Yields an iterator over the results in order; if a
    call raised ImageError, its result is the error.

    With ``workers`` 0, ``prepare`` runs in this process; otherwise it runs in that many new
    processes, at most ``ahead`` pictures before the consumer. The processes get ``prepare``
    pickled, and end with the block or with this process. They do not import the program of the
    user, so a ``prepare`` that is defined there runs in this process. Any other BocError is raised.
    """
    pickled = bytes(ForkingPickler.dumps(prepare)) if workers else b""  # raises pickling errors
    if not pickled or b"__main__" in pickled:
        yield (_check_result(_attempt(prepare, image)) for image in images)
        return
    context = get_context("spawn")  # a fork would copy threads and locks of torch
    # Each worker has its own pool, so that the picture at which a worker died is known.
    pools = [ProcessPoolExecutor(1, context, _begin, (pickled,)) for _ in range(workers)]
    try:
        # Processes started here ignore Ctrl-C, which a terminal sends to all processes; their
        # parent ends them. The tracker is started before, since its start lets interrupts through.
        resource_tracker.ensure_running()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        # Workers do not import the user's program, which may lack a main guard.
        program = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            for pool in pools:
                pool.submit(len, "")  # starts its process
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
    """Yield the results in order; worker i modulo the number of workers prepares picture i."""
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
                f"a worker process ended at {image.path}, perhaps killed for memory",
                "repeat the command to continue; if memory is short: <boc extract --set workers=1>",
            ) from error
        yield _check_result(value)


def _begin(pickled: bytes) -> None:
    """Limit the threads of a worker, and end it when its parent ends."""
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
    """Return ``prepare``, unpickled once per worker."""
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
