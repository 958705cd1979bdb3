"""Prefetch results in order: threads compute the next few results ahead of the consumer."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

T = TypeVar("T")
R = TypeVar("R")


def ahead(
    function: Callable[[T], R],
    things: Iterable[T],
    threads: int | None = None,
) -> Iterator[R]:
    """Yield ``function(thing)`` for each of ``things``, in order. An exception is raised in place
    of the result.

    At most ``threads`` things are processed in advance at a time. The default is the number of
    threads that linear algebra would use. Until the iterator ends, linear algebra is limited to one
    thread per thing. ``things`` is iterated in the consumer's thread.
    """
    libraries = _libraries(len(sys.modules))
    if threads is None:
        threads = max((library["num_threads"] for library in libraries.info()), default=1)
    waiting: deque[Future[R]] = deque()
    with libraries.limit(limits=1), ThreadPoolExecutor(threads) as pool:
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


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """Return a controller for the linear algebra libraries. ``modules``, the number of imported
    modules, invalidates the cache after an import."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
