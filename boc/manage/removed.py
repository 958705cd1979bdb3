"""Keep the vectors of removed pictures for thirty days, so that a picture that comes back is not
encoded again.

The removed pictures of an index are an index of their own, in the folder ``.removed`` beside it.
There, the id of a picture is its ``content_hash``, and its content is the time of the removal.
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
    """The removed pictures of the index ``name``, which is open as ``index``: ``items`` by id.

    ``rows`` is the index that holds them, or ``index`` itself if they are missing, damaged, or of
    another encoder or code.
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
        """Add the pictures among some items of the index, and drop pictures that were removed more
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
        # A load that was killed is not continued.
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
            note(f"removed pictures will be encoded again if they come back ({error})")
        self._open()


def backend_of(at: str) -> Backend:
    """Return the back end that holds the removed pictures of the indexes at ``at``."""
    return plugins.backend(f"file:{place_of(at) / '.removed'}")


def _now() -> datetime:
    return datetime.now(timezone.utc)
