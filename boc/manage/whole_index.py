"""List the indexes of a back end, and delete or compact a whole index."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from boc import plugins
from boc.errors import BocError, ManifestError
from boc.manage.build import PLACE
from boc.manage.removed import backend_of
from boc.plugins import check_name


@dataclass(frozen=True)
class CompactReport:
    """Sizes of an index in bytes before and after compaction."""

    before: int
    after: int


def index_names(at: str = PLACE) -> list[str]:
    """Return the names of the indexes at the back end ``at``, sorted."""
    return plugins.backend(at).names()


def delete_index(name: str, *, at: str = PLACE) -> int | None:
    """Delete the whole index ``name`` and the vectors of its removed pictures. Return the number of
    its items, or None if the index is too damaged to count them.

    Raises BackendError if there is no such index.
    """
    backend = plugins.backend(at)
    count = None
    # A damaged index can be deleted as well.
    with suppress(ManifestError):
        count = sum(backend.open(check_name(name)).manifest.items.values())
    backend.remove(name)
    with suppress(BocError):
        backend_of(at).remove(name)
    return count


def compact_index(name: str, *, at: str = PLACE) -> CompactReport:
    """Merge the segments of the index ``name`` into a single segment, and drop deleted and replaced
    rows.

    Searches keep working during the merge and return the same results. Raises BackendError if there
    is no such index.
    """
    backend = plugins.backend(at)
    before = sum(backend.open(check_name(name)).sizes().values())
    backend.compact(name)
    return CompactReport(before, sum(backend.open(name).sizes().values()))
