"""Several processes that answer at one address. One that ends is started again."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeAlias

from boc.errors import BocError
from boc.web.http.server import GRACE
from boc.web.settings import SHARED

LEAVE = GRACE + 5  # seconds that a worker has to stop before it is killed
THREADS = "OMP_NUM_THREADS"

Ready: TypeAlias = Callable[[], None]
Work: TypeAlias = Callable[..., None]


@dataclass(frozen=True)
class _Worker:
    process: SpawnProcess
    word: Connection

    def began(self) -> None:
        """Wait until it answers requests. BocError with its error if it had one."""
        wait([self.word, self.process.sentinel])
        error = ("a worker ended before it answered; see above",)
        with suppress(EOFError):
            error = self.word.recv() if self.word.poll() else error
        if error is not None:
            raise BocError(*error)


def run_workers(count: int, work: Work, *arguments: Any, ready: Ready) -> None:
    """Run ``work(ready, first, *arguments)`` in ``count`` processes until Ctrl-C or SIGTERM.

    ``work`` is to call its ``ready()`` once it answers requests; ``first`` is whether it runs in
    the first of the processes, which begins alone. ``ready`` is called when all answer. The cores
    are shared out among them. BocError if a process ends before it answers: what it raised.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    context = get_context("spawn")  # a fork would copy locks that threads of libraries hold
    workers: list[_Worker] = []

    def start(first: bool = False) -> _Worker:
        word, end = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(end, work, first, *arguments), daemon=True)
        process.start()
        end.close()
        workers.append(_Worker(process, word))
        return workers[-1]

    with tempfile.TemporaryDirectory(prefix="boc-metrics-") as folder:
        os.environ.setdefault(SHARED, folder)
        os.environ.setdefault(THREADS, str(max(1, (os.cpu_count() or 1) // count)))
        try:
            start(first=True).began()
            for worker in [start() for _ in range(count - 1)]:
                worker.began()
            ready()
            while True:
                ended = set(wait([worker.process.sentinel for worker in workers]))
                workers[:] = [worker for worker in workers if worker.process.sentinel not in ended]
                for worker in [start() for _ in ended]:
                    worker.began()
        finally:
            _stop(workers)


def _stop(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(LEAVE)
        worker.process.kill()


def _run(end: Connection, work: Work, first: bool, *arguments: Any) -> None:
    """Run a worker. It ignores Ctrl-C, which its parent passes on, and ends when its parent
    ends."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        work(lambda: end.send(None), first, *arguments)
    except BocError as error:
        end.send(error.args)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
