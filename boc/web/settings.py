"""Settings and limits of a server for one index."""

import os
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


def default_cache() -> Path:
    """Return the default folder for thumbnails, in XDG_CACHE_HOME, ~/.cache, or the temporary
    folder."""
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:  # the user has no home folder, for example in a container
        home = Path(tempfile.gettempdir()) / f"boc-{os.getuid()}"
    return home / "boc" / "thumbnails"


K = 1000  # maximum number of hits per search
SENTENCE = 1000  # maximum length of a sentence in characters
FILTERS = 16
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Settings:
    """Configuration of a server for the index ``name`` at ``at``. If ``token`` is set, every
    request for data must include the token.

    ``hosts`` lists host names that requests may use in addition to loopback names and ``host``.
    Without this check, a page on another site could access the server through a host name that
    resolves to this machine. ``upload`` is the maximum size of an uploaded picture in bytes and
    ``pixels`` its maximum number of pixels. ``decoding`` is the maximum total number of pixels of
    all pictures that are decoded at the same time, and ``cache_bytes`` is the maximum total size of
    the thumbnails. At most ``active`` requests and ``uploads`` of pictures are processed at the
    same time, and ``waiting`` more can wait; further requests are rejected. A request body must
    arrive within ``patience`` seconds. Every ``look_every`` seconds, the server checks whether the
    index was replaced. ``keep`` is the folder for pictures that clients add; None disables adding
    pictures. ``secret`` signs cookies, which are valid until the server restarts.
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
