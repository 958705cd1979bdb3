"""Base classes of the engines in the race, to build, open and query an index and measure the cost.

``once`` builds an index in a separate process, in its own folder. An existing index is not rebuilt.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.race.data import Data, Matrix, log

PROCESSORS = os.sched_getaffinity(0)
NOTE = "built.json"

Setting = tuple[int, ...]


class UnavailableError(Exception):
    """An index is unavailable. The message contains the reason."""


@dataclass(frozen=True)
class Facts:
    """Cost of an index: the seconds to ``fit`` the code, to ``encode`` all items, and to ``build``
    the rest; the processor seconds of all three phases; the peak memory in bytes of the process
    that fits and builds (``peak``); and the bytes on disk by part."""

    fit: float
    encode: float
    build: float
    cpu: float
    peak: int | None
    sizes: Mapping[str, int]

    @property
    def disk(self) -> int:
        return sum(self.sizes.values())


class Engine(ABC):
    """Open index. ``ask`` is timed. Afterwards, ``rows`` converts the result to row numbers."""

    library: str  # name of the search library
    kind = ""  # kind of index in the library; "" if the code determines the kind
    knobs: tuple[str, ...] = ()  # names of the values in a setting
    ours = False  # whether the index uses a code of boc
    grid: Sequence[Setting]
    took: float | None = None  # milliseconds reported by a server for its last response

    @abstractmethod
    def choose(self, setting: Setting) -> None:
        """Use ``setting``, an element of ``grid``, for all following queries."""

    @abstractmethod
    def ask(self, query: Matrix) -> Any:
        """Return the result of one query (1, d)."""

    def batch(self, queries: Matrix, threads: int) -> Any:
        """Return the results of queries (n, d). This implementation makes one call per query from
        several threads, for engines without batches."""
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(self.ask, queries[:, None]))

    def vectors_read(self, setting: Setting) -> int | None:
        """Return the maximum number of stored vectors that are compared with a query, or None if it
        is unknown."""
        return None

    def rows(self, answer: Any) -> Sequence[int]:
        found: list[int] = answer.tolist()
        return found


class Local(Engine):
    """Index in its own folder."""

    inside = 0  # bytes per component of the vectors in the index's files
    beside = 0  # bytes per component of vectors in other files

    def close(self) -> None:
        """Close the index and release its memory."""
        vars(self).clear()

    @classmethod
    @abstractmethod
    def build(cls, data: Data, folder: Path, code: str, threads: int) -> None:
        """Build the index in an empty ``folder``."""

    @abstractmethod
    def __init__(self, data: Data, folder: Path, code: str) -> None:
        """Open the index that ``build`` created in ``folder``."""

    @classmethod
    def sizes(cls, data: Data, folder: Path, code: str) -> dict[str, int]:
        """Return the bytes on disk of the ``index``, the ``vectors``, the arrays of the ``codec``,
        and the ``rest``."""
        count, dim = data.shape
        files = sum(
            path.stat().st_size
            for path in folder.rglob("*")
            if path.is_file() and path.name != NOTE
        )
        inside = cls.inside * count * dim
        beside = cls.beside * count * dim
        arrays = folder_of(data, f"codec {code.partition(':')[0]}") / "arrays.npz"
        codec = arrays.stat().st_size if code else 0
        return {"index": files - inside, "vectors": inside + beside, "codec": codec, "rest": 0}


def folder_of(data: Data, name: str) -> Path:
    # ScaNN opens its files only by an absolute path.
    return data.work.absolute() / name.replace(" ", "-").replace(":", "-")


def once(
    folder: Path,
    threads: int,
    task: Callable[..., None],
    *arguments: Any,
) -> dict[str, float]:
    """Run ``task`` to fill ``folder``, unless an earlier run has filled it. Return the task's
    ``seconds``, processor seconds (``cpu``) and peak memory in bytes (``peak``)."""
    note = folder / NOTE
    if not note.exists():
        log(f"{folder.name}: building")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        note.write_text(json.dumps(child(measure, threads, task, *arguments)))
    costs: dict[str, float] = json.loads(note.read_text())
    return costs


def measure(threads: int, task: Callable[..., None], *arguments: Any) -> dict[str, float]:
    """Run ``task`` in this process, and return its cost."""
    use_threads(threads)
    begun = time.perf_counter()
    cpu = time.process_time()
    task(*arguments)
    seconds = time.perf_counter() - begun
    return {
        "seconds": seconds,
        "cpu": time.process_time() - cpu,
        "peak": status("VmHWM"),
        "threads": threads,
    }


def child(task: Callable[..., Any], *arguments: Any) -> Any:
    """Run ``task`` in a fresh process and return the result. Raises BrokenProcessPool if the
    process was killed."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(task, *arguments).result()


def use_threads(count: int) -> None:
    """Restrict all threads of this process to ``count`` processors, and libraries to ``count``
    threads."""
    import faiss
    from threadpoolctl import threadpool_limits

    allowed = sorted(PROCESSORS)[:count]
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # the thread has already ended
            os.sched_setaffinity(int(thread.name), allowed)
    faiss.omp_set_num_threads(count)
    threadpool_limits(count)


def status(key: str) -> int:
    """Return the value of a key in /proc/self/status, in bytes."""
    return status_of(os.getpid(), key)


def status_of(process: int, key: str) -> int:
    """Return the value of a key in the status of another process, in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))
