"""The collector of garbage, and work that makes very many objects and hardly any garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

OBJECTS = 100_000  # made and kept between two looks of the collector, where Python has 700


@contextmanager
def collected_rarely() -> Iterator[None]:
    """Within the block the collector looks for garbage after every ``OBJECTS`` objects that are made and kept.

    Rows that wait to be written are none, and to look through them again and again slows a load down. Where it looks as
    rarely already, or never, nothing changes.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < OBJECTS:
        yield
        return
    gc.set_threshold(OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
