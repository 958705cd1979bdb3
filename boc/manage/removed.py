"""Keep the vectors of removed pictures for thirty days, so that a picture that reappears is not
encoded again.

The removed pictures of an index are stored in a separate index, in the folder ``.removed`` next to
the original index. In the separate index, the id of a picture is its ``content_hash``, and its
content is the time of removal.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING
from uuid import uuid4

from boc import plugins
from boc.errors import BocError, note
from boc.manage.compare import stored_hash
from boc.manage.index_sources import place_of
from boc.manage.stored import stored_batches
from boc.types import Item

if TYPE_CHECKING:
    from boc.plugins import Backend, Engine

DAYS = 30


class RemovedPictures:
    """Removed pictures of the index ``name``, which is open as ``index``. ``items`` maps ids to
    removed pictures.

    ``rows`` is the index that contains the removed pictures, or ``index`` itself if the former is
    missing, damaged, or from another encoder or code.
    """

    def __init__(self, name: str, at: str, index: Engine) -> None:
        self.items: dict[str, Item] = {}
        self.rows = self._index = index
        self._name = name
        self._backend = backend_of(at)
        self._open()

    def _open(self) -> None:
        with suppress(BocError):
            rows = self._backend.open(self._name)
            ours = self._index.manifest
            if replace(rows.manifest, source=ours.source).same_contents(ours):
                first = f"{_now() - timedelta(DAYS)}"
                self.items = {item.id: item for item in rows.items() if item.content >= first}
                self.rows = rows

    def add(self, items: Sequence[Item]) -> None:
        """Add the pictures among ``items`` of the index, and drop pictures that were removed more
        than thirty days ago."""
        leaving = {
            digest: replace(item, content=f"{_now()}")
            for item in items
            if item.modality == "image" and (digest := stored_hash(item))
        }
        if not leaving:
            if not self.items and self.rows is not self._index:
                self._backend.remove(self._name)
            return
        # With a random source, a killed load cannot be resumed.
        manifest = replace(self._index.manifest, source=uuid4().hex, unreadable={})
        kept = {key: item for key, item in self.items.items() if key not in leaving}
        try:
            with self._backend.create(self._name, manifest, self._index.arrays()) as writer:
                for index, some in ((self._index, leaving), (self.rows, kept)):
                    keys = iter(some)
                    for rows in stored_batches(index, [*some.values()]):
                        named = [replace(item, id=next(keys)) for item in rows.items]
                        writer.add(rows._replace(items=named))
                writer.commit()
        except BocError as error:
            note(f"removed pictures will be encoded again if they reappear ({error})")
        self._open()


def backend_of(at: str) -> Backend:
    """Return the back end that stores the removed pictures of the indexes at ``at``."""
    return plugins.backend(f"file:{place_of(at) / '.removed'}")


def _now() -> datetime:
    return datetime.now(timezone.utc)
