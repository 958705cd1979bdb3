"""What a server of one index may do, and how much of it at a time."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path


def default_cache() -> Path:
    """Where thumbnails are kept: ``boc/thumbnails`` in XDG_CACHE_HOME, or in ~/.cache; for a user without a home among
    temporary files."""
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:  # a user without a home, as in a container
        home = Path(tempfile.gettempdir()) / f"boc-{os.getuid()}"
    return home / "boc" / "thumbnails"


K = 1000  # hits of one search
SENTENCE = 1000  # characters
FILTERS = 16
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Settings:
    """Of index ``name`` at ``at``. With a ``token`` every request for data needs it.

    ``hosts`` are further names that the server may be called by, beside loopback and ``host``; without that check a
    stranger's page could reach it through a name of its own that points here. ``upload`` is in bytes, ``pixels`` of
    an uploaded picture, ``decoding`` of all that are decoded at a time, ``cache_bytes`` of all thumbnails. ``active``
    requests, and ``uploads`` pictures, are worked on at a time while
    ``waiting`` others wait; all further ones are sent away. ``patience`` is how many seconds a body may take to arrive,
    ``look_every`` after how many the index is looked at again.
    """

    name: str
    at: str
    host: str = "127.0.0.1"
    hosts: tuple[str, ...] = ()
    token: str | None = None
    cache: Path = field(default_factory=default_cache)
    cache_bytes: int = 500_000_000
    upload: int = 20_000_000
    pixels: int = 50_000_000
    decoding: int = 50_000_000
    active: int = 8
    uploads: int = 2
    waiting: int = 256
    patience: float = 30.0
    look_every: float = 3.0

    @property
    def private(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in LOOPBACK
