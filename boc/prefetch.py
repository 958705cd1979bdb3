"""Ordered prefetching: threads compute results slightly ahead of their consumer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ahead(function: Callable[[T], R], things: Iterable[T], threads: int | None = None) -> Iterator[R]:
    """Yield ``function`` of each of ``things``, in order; an exception is raised at the position of its result.

    At most ``threads`` things are processed at a time and taken in advance. The default is the number of threads that
    linear algebra would use here, which is limited to one per thing meanwhile. ``things`` is iterated by the thread
    that consumes the results.
    """
    from threadpoolctl import threadpool_info, threadpool_limits

    if threads is None:
        threads = max((library["num_threads"] for library in threadpool_info()), default=1)
    waiting: deque[Future[R]] = deque()
    with threadpool_limits(1), ThreadPoolExecutor(threads) as pool:
        try:
            for thing in things:
                waiting.append(pool.submit(function, thing))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
