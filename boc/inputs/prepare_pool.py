"""A pool of worker processes that prepare pictures, in order and at most ``AHEAD`` of the consumer.

Imports nothing heavy, so that a worker can limit its threads before numpy counts the cores.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing import get_context, resource_tracker
from multiprocessing.reduction import ForkingPickler
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, TypeAlias

from boc.errors import BocError, ImageError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from boc.types import ImageRef

    Prepare: TypeAlias = Callable[[ImageRef], Any]

AHEAD = 256  # pictures prepared ahead of the consumer
EACH = 2  # pictures queued per worker, so that it never waits for the next
FEW = 256  # up to this number workers do not pay: preparing takes less time than starting them
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def advised(pictures: int) -> int:
    """Number of worker processes for so many pictures: one per core that this process may use, 0 for few pictures."""
    if pictures < FEW:
        return 0
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def preparing(prepare: Prepare, images: Sequence[ImageRef], workers: int) -> Iterator[Iterator[Any]]:
    """Apply ``prepare`` to each of ``images``; yields the results in order, or the ImageError that it raised.

    With ``workers`` 0 it runs in this process, else in that many new processes. These get ``prepare`` pickled, and end
    with the block or with this process. Any other BocError is raised; the one of a worker that died names the picture.
    """
    if not workers or not images:
        yield (_checked(_attempt(prepare, image)) for image in images)
        return
    pool = _Pool(prepare, images, min(workers, len(images)))
    try:
        yield iter(pool)
    finally:
        pool.close()


class _Pool:
    """One thread per worker sends it indices of ``images`` and receives the results."""

    def __init__(self, prepare: Prepare, images: Sequence[ImageRef], workers: int) -> None:
        self._images = images
        self._places = iter(range(len(images)))
        self._ready: dict[int, Any] = {}
        self._taken = 0
        self._closed = False
        self._changed = Condition()
        self._processes: list[BaseProcess] = []
        self._threads: list[Thread] = []
        pickled = bytes(ForkingPickler.dumps(prepare))  # pickled here, so that an error is raised here
        context = get_context("spawn")  # a fork would copy threads and locks of torch
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), daemon=True)
            with _interrupts_held():
                process.start()
            theirs.close()
            thread = Thread(target=self._serve, args=(process, ours, pickled), daemon=True)
            thread.start()
            self._processes.append(process)
            self._threads.append(thread)

    def __iter__(self) -> Iterator[Any]:
        for place in range(len(self._images)):
            with self._changed:
                self._changed.wait_for(lambda: place in self._ready)  # noqa: B023
                value = self._ready.pop(place)
                self._taken = place + 1
                self._changed.notify_all()
            yield _checked(value)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for process in self._processes:
            process.terminate()
        for thread in self._threads:
            thread.join()
        for process in self._processes:
            process.join()

    def _serve(self, process: BaseProcess, connection: Connection, pickled: bytes) -> None:
        given = deque(self._next(EACH))
        with connection:
            try:
                connection.send_bytes(pickled)
                for place in given:
                    connection.send(self._images[place])
                while given:
                    self._put(given[0], connection.recv())
                    given.popleft()
                    for place in self._next(1):
                        given.append(place)
                        connection.send(self._images[place])
            except (EOFError, OSError):
                self._fail(process, given)

    def _next(self, count: int) -> list[int]:
        with self._changed:
            return list(islice(self._places, count))

    def _put(self, place: int, value: Any) -> None:
        """Store a result when there is room. There is always room for the next one to be consumed."""
        with self._changed:
            self._changed.wait_for(lambda: place < self._taken + AHEAD or self._closed)
            self._ready[place] = value
            self._changed.notify_all()

    def _fail(self, process: BaseProcess, given: Sequence[int]) -> None:
        """Store an error for the pictures of a dead worker, which worked on the first of them."""
        process.join()
        code = process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        error = BocError(
            f"a worker process {how} at {self._images[given[0]].path}; repeat the command to go on; if memory "
            "is short, with boc extract and a smaller --set workers="
        )
        with self._changed:
            self._ready.update(dict.fromkeys(given, error))
            self._changed.notify_all()


def _work(connection: Connection) -> None:
    """The main loop of a worker: receive ``prepare``, then pictures, and answer each before reading the next."""
    os.environ.update(dict.fromkeys(THREADS, "1"))
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # if the parent is gone
        try:
            prepare = connection.recv()
        except BocError as error:
            connection.send(error)
            return
        while True:
            connection.send(_attempt(prepare, connection.recv()))


def _attempt(prepare: Prepare, image: ImageRef) -> Any:
    try:
        return prepare(image)
    except BocError as error:
        return error


def _checked(value: Any) -> Any:
    if isinstance(value, BocError) and not isinstance(value, ImageError):
        raise value
    return value


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes started here ignore Ctrl-C, which a terminal sends to all; their parent ends them."""
    resource_tracker.ensure_running()  # the first process would start it, which lets interrupts through again
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
