"""Ensure that only one process at a time loads an index.

A claim is a document in the generation that is being loaded. Only the owner can rewrite this
document, because the server compares sequence numbers. The owner also keeps a file locked on its
machine, so other processes on this machine can check immediately whether the owner is alive.
Processes on other machines check whether the document still changes.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

from boc.atomic_files import file_lock
from boc.errors import BackendError, BocError

from .aliases import Generation, drop
from .transport import Json, RefusedError, Transport

BEAT = 3.0
"""Seconds between two writes of the document by its owner."""
DEAD = 15.0
"""Seconds without a change after which an owner on another machine is considered dead."""
PAUSE = 0.5
"""Seconds between two checks."""
LOAD = "boc:load:{}"
"""The id of the document that claims a part, with the number of the part."""


class InUseError(BackendError):
    """Raised when another process is writing an index."""


class Claim:
    """Claim a load, or a part of a load, for this process. ``key`` identifies the claim."""

    def __init__(self, transport: Transport, name: str, number: int = 1) -> None:
        self.key = uuid4().hex
        self._transport = transport
        self._name = name
        self._id = LOAD.format(number)
        self._thread: threading.Thread | None = None
        self._files = ExitStack()
        self._files.enter_context(file_lock(_file(self.key), name))
        # Remove lock files of processes that died more than a day ago.
        for path in _file("").parent.glob("boc-load-*.lock"):
            with suppress(BocError, OSError):
                if time.time() - path.stat().st_mtime > 24 * 3600:
                    with file_lock(path, name):
                        pass  # file_lock() removes a file that is not locked by another process

    def take(self, physical: str, alias: str, *, again: bool = True) -> None:
        """Claim the index ``physical``, which is written through ``alias``. Raises BackendError if
        another process has claimed it."""
        there = _documents(self._transport, physical, [self._id])
        if _lives(self._transport, physical, there):
            raise in_use(self._transport, self._name)
        self._path = f"/{alias}/_doc/{self._id}"
        order = {"op_type": "create"}
        for each in there:
            order = {"if_seq_no": each["_seq_no"], "if_primary_term": each["_primary_term"]}
        try:
            self._write(order)
        except RefusedError as error:
            if error.status != 409:
                raise
            # The last request of a killed process may have arrived meanwhile.
            if again:
                self.take(physical, alias, again=False)
                return
            raise in_use(self._transport, self._name) from None
        self._stop = threading.Event()
        for each in there:
            _file(each["_source"]["by"]).unlink(missing_ok=True)
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _write(self, order: Json) -> None:
        answer = self._transport.request(
            "PUT",
            self._path,
            {"by": self.key},
            require_alias="true",
            **order,
        )
        self._order = {
            "if_seq_no": answer["_seq_no"],
            "if_primary_term": answer["_primary_term"],
        }

    def _beat(self) -> None:
        while not self._stop.wait(BEAT):
            # The index may be closed for a moment, or a node may be away.
            with suppress(BackendError):
                self._write(self._order)

    def withdraw(self) -> None:
        """Remove the claim before the final merge of the index."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
            with suppress(BackendError):
                self._transport.request("DELETE", self._path, **self._order)

    def release(self) -> None:
        """Release the claim. This has no effect if the claim was not taken."""
        self.withdraw()
        self._files.close()


def in_use(transport: Transport, name: str) -> InUseError:
    """Create the error for an index that another process is writing."""
    return InUseError(
        f"{name} at {transport.label} is being written by another process",
        "wait for it or stop it, then run the command again",
    )


def check_unclaimed(transport: Transport, generations: Sequence[Generation]) -> None:
    """Raise BackendError if a running process loads one of these generations or a part of it, even
    if it has created the generation but not claimed it yet."""
    for each in generations:
        ids = [LOAD.format(number + 1) for number in range(each.state.parts)]
        there = _documents(transport, each.physical, ids)
        if _lives(transport, each.physical, there) or (not there and _holds(each.state.by)):
            raise in_use(transport, each.name)


def check_first(
    transport: Transport,
    generation: Generation,
    present: Sequence[Generation],
) -> None:
    """Raise BackendError, after removing ``generation``, if another process has created one of the
    generations ``present`` before it."""
    mine = next((each for each in present if each.physical == generation.physical), generation)
    if any(not g.state.is_whole and g.created < mine.created for g in present):
        drop(transport, [generation])
        raise in_use(transport, generation.name)


def _documents(transport: Transport, physical: str, ids: Sequence[str]) -> list[Json]:
    """Return the existing claims, or an empty list if the index is closed."""
    try:
        answer = transport.request("POST", f"/{physical}/_mget", {"ids": ids})
    except RefusedError as error:
        if error.status not in (400, 403, 404):
            raise
        return []
    return [each for each in answer["docs"] if each.get("found")]


def _lives(transport: Transport, physical: str, claims: Sequence[Json]) -> bool:
    unknown = {}
    for each in claims:
        holds = _holds(each["_source"]["by"])
        if holds:
            return True
        if holds is None:
            unknown[each["_id"]] = each["_seq_no"]
    deadline = time.monotonic() + DEAD
    while unknown and time.monotonic() < deadline:
        time.sleep(PAUSE)
        for each in _documents(transport, physical, list(unknown)):
            if each["_seq_no"] != unknown[each["_id"]]:
                return True
    return False


def _holds(key: str) -> bool | None:
    """Return whether the owner of a key is alive, or None if it runs on another machine or as
    another user."""
    path = _file(key)
    if not key or not path.exists():
        return None
    try:
        with file_lock(path, key, keep=True):
            return False
    except BocError:
        return True
    except OSError:
        return None


def _file(key: str) -> Path:
    """Return the lock file for the owner of a key, which may come from a document on the server."""
    return Path(tempfile.gettempdir()) / f"boc-load-{quote(key, safe='')}.lock"
