"""Work done by threads, in order, a little ahead of whoever takes it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ahead(function: Callable[[T], R], things: Iterable[T], threads: int | None = None) -> Iterator[R]:
    """``function`` of each of ``things``, in their order; an exception comes up where its result would have.

    As many things are worked on as there are ``threads`` (by default as many as linear algebra would take here, which
    is held to one a thing meanwhile), and as few are taken before their time. ``things`` is iterated by the thread that
    takes the results.
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
