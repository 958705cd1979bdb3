"""Is everything there that a search needs? Looks, and changes nothing but for trial indexes that it removes again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ._finding import Finding, State
from ._machine import machine
from ._places import place
from ._software import software, versions

__all__ = ["Finding", "State", "examine", "versions"]


def examine(places: Iterable[str]) -> Iterator[Finding]:
    """What is installed, what the machine has, and how each of ``places`` (``file:DIR``, ``elastic+URL``) does.

    Findings come as they are made; a server that does not answer takes some seconds.
    """
    yield from software()
    yield from machine()
    for at in places:
        yield from place(at)
