"""Connect to the embedded engine: ``file:DIR`` is a folder of indexes on this machine."""

from pathlib import Path

from boc.errors import BackendError

from .embedded.backend import EmbeddedBackend


def connect(url: str) -> EmbeddedBackend:
    """Create the back end for ``file:DIR``. The folder is created when the first index is
    written."""
    folder = url.partition(":")[2]
    if not folder:
        raise BackendError(f"{url!r} names no folder; write file:DIR, for example file:boc-data")
    return EmbeddedBackend(Path(folder).expanduser())
