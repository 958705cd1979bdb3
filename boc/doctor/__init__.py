"""Checks of the installation and of backends. They change nothing, except for trial indexes that they remove."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ._finding import Finding, State
from ._machine import machine
from ._models import downloaded
from ._places import place
from ._software import software, versions

__all__ = ["Finding", "State", "examine", "versions"]


def examine(places: Iterable[str]) -> Iterator[Finding]:
    """Yield findings on the installation, the machine, the models, and each of ``places`` (``file:DIR``,
    ``elastic+URL``).

    A server that does not answer takes some seconds.
    """
    yield from software()
    yield from machine()
    yield from downloaded()
    for at in places:
        yield from place(at)
