"""The embedded engine: ``file:DIR``, indexes in a folder of this machine."""

from pathlib import Path

from boc.errors import BackendError

from .embedded.backend import EmbeddedBackend


def connect(url: str) -> EmbeddedBackend:
    """Return the back end for ``file:DIR``. The folder is created with its first index."""
    folder = url.partition(":")[2]
    if not folder:
        raise BackendError(f"{url!r} names no folder; write file:DIR, for example file:boc-data")
    return EmbeddedBackend(Path(folder).expanduser())
