"""Define the settings and limits of a server for one index."""

import os
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


def default_cache() -> Path:
    """Return the default thumbnail folder, in XDG_CACHE_HOME, ~/.cache, or the temporary folder."""
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:  # the user has no home folder, as in a container
        home = Path(tempfile.gettempdir()) / f"boc-{os.getuid()}"
    return home / "boc" / "thumbnails"


K = 1000  # largest number of hits per search
SENTENCE = 1000  # largest number of characters in a sentence
FILTERS = 16
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Settings:
    """Configure the server of index ``name`` at ``at``. With a ``token``, every request for data
    must carry it.

    ``hosts`` lists host names that requests may use in addition to loopback and ``host``; without
    this check a foreign page could reach the server through a name that points here. ``upload``
    limits the bytes and ``pixels`` the pixels of an uploaded picture, ``decoding`` limits the total
    pixels of all pictures being decoded, and ``cache_bytes`` limits the total size of all
    thumbnails. ``active`` requests, and ``uploads`` of pictures, are processed at a time and
    ``waiting`` more may wait; further requests are rejected. ``patience`` is the number of seconds
    within which a body must arrive, ``look_every`` the number of seconds between checks whether the
    index was replaced. ``keep`` is the folder for pictures that clients add; None forbids adding.
    ``secret`` signs cookies, which are valid until the server restarts.
    """

    name: str
    at: str
    host: str = "127.0.0.1"
    hosts: Sequence[str] = ()
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
    keep: Path | None = None
    secret: str = field(default_factory=secrets.token_hex, repr=False)
