"""Load rows in bulk, retrying each row until the server acknowledges it.

Rows are identified by ids, so sending a row twice has the same effect as sending it once.
Therefore, a request can be repeated safely if its response was lost.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import accumulate, takewhile

import orjson

from boc.errors import BackendError, note
from boc.vectors import batches

from .aliases import attached_name
from .searches import WHOLE
from .transport import (
    AWAY,
    Json,
    RefusedError,
    Transport,
    UnfinishedError,
    UnreachableError,
    next_step,
)

LATER = {408, 429, 502, 503, 504}
"""HTTP statuses that mean that a retry may succeed."""
NOTICE = 10.0
"""Seconds without a response, or with a missing shard, after which a warning explains why the load
is waiting."""
PAUSE = 1.0
"""Seconds between checks for missing shards."""


def await_shards(transport: Transport, index: str, patience: float) -> None:
    """Wait until all shards of ``index`` respond. Raises UnfinishedError, with the names of the
    missing shards, after ``patience`` seconds."""
    begun = noted = time.monotonic()
    while True:
        try:
            transport.request("POST", f"/{index}/_search", {"size": 0}, **WHOLE)
            return
        except (RefusedError, UnreachableError) as error:
            if isinstance(error, RefusedError) and error.status not in (500, 503):
                raise
            trouble = str(error)
        now = time.monotonic()
        if now - begun >= patience:
            raise UnfinishedError(
                f"{trouble}; restore the node, and run the command again to resume",
            )
        if now - noted >= NOTICE:
            note(f"the load goes on when it can: {trouble}")
            noted = now
        time.sleep(PAUSE)


@dataclass
class Bulk:
    """Send rows to an index, with up to ``in_flight`` open requests while the next request is being
    filled.

    A request contains at most ``max_bytes`` bytes and ``max_rows`` rows, but at least one row.
    Status 413 halves ``max_bytes``. Rows are sent again if the server rejects them temporarily
    (status 429, 502, 503 or 504, for a request or for a row in a request) or does not respond. The
    ``pauses`` between attempts double each time, until ``patience`` seconds pass without an
    acknowledged row. Operations on the same id keep their order, because the second operation waits
    until all earlier operations have been acknowledged. After ``notice`` seconds without a
    response, a BocWarning reports the reason. ``clock`` returns the time in seconds.

    Raises RefusedError with the id if a row is rejected permanently, and BackendError after
    ``patience`` seconds. All later calls raise the same error. Leaving the context flushes the
    rows, but leaving it with an exception drops unacknowledged rows. Not thread-safe.
    """

    transport: Transport
    target: str
    require_alias: bool = False
    routing: str = ""
    max_bytes: int = 8 << 20
    max_rows: int = 4096
    in_flight: int = 2
    patience: float = 300.0
    pauses: tuple[float, float] = (0.1, 10.0)
    notice: float = NOTICE
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        # After five seconds, the server reports missing shards and acknowledges the other rows.
        self._params = {"filter_path": "items.*.status,items.*.error", "server_timeout": "5s"}
        if self.require_alias:
            self._params["require_alias"] = "true"
        if self.routing:
            self._params["routing"] = self.routing
        self._rows: dict[str, bytes] = {}
        self._bytes = 0
        self._sent: dict[Future[int], dict[str, bytes]] = {}
        self._deleted = 0
        self._updates = False
        self._progress = self.clock()
        self._trouble = ""
        self._stop = threading.Event()

    def __enter__(self) -> Bulk:
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            if raised[1] is None:
                self.flush()
        finally:
            self.stop(raised[1])

    def stop(self, error: object) -> None:
        """Drop unacknowledged rows. After an error, wait for open requests to end; after an
        interrupt, do not wait."""
        self._stop.set()
        if isinstance(error, Exception):
            wait(self._sent)

    def index(self, id: str, document: bytes) -> None:
        """Store a document (JSON in UTF-8 without line breaks), replacing any existing document
        with this id."""
        self._append(id, b"%b\n%b\n" % (orjson.dumps({"index": {"_id": id}}), document))

    def delete(self, id: str) -> None:
        """Delete a document. A missing document is ignored."""
        self._append(id, orjson.dumps({"delete": {"_id": id}}) + b"\n")

    def update(self, id: str, script: bytes, routing: str | None = None) -> None:
        """Update a document with ``{"script": ...}``. A missing document is ignored. If another
        program writes the document at the same time, the script is run again on the new version."""
        head = {"_id": id, "retry_on_conflict": 3}
        if routing is not None:
            head["routing"] = routing
        self._updates = True
        self._append(id, b"%b\n%b\n" % (orjson.dumps({"update": head}), script))

    def flush(self) -> int:
        """Wait until all rows are acknowledged. Return the number of documents deleted since the
        last flush.

        If the first response to a deletion was lost, the repeated deletion has no effect and is not
        counted.
        """
        self._send_all()
        deleted = self._deleted
        self._deleted = 0
        return deleted

    def _send_all(self) -> None:
        self._dispatch()
        self._settle(1)

    def _append(self, id: str, row: bytes) -> None:
        if id in self._rows or any(id in rows for rows in self._sent.values()):
            self._send_all()
        elif self._bytes + len(row) > self.max_bytes or len(self._rows) >= self.max_rows:
            self._dispatch()
        self._rows[id] = row
        self._bytes += len(row)

    def _dispatch(self) -> None:
        """Pass the rows to a thread as soon as a request slot is free. The thread is a daemon
        thread, so that an interrupted process can exit."""
        if not self._rows:
            return
        self._settle(self.in_flight)
        future: Future[int] = Future()
        threading.Thread(target=self._run, args=(future, self._rows), daemon=True).start()
        self._sent[future] = self._rows
        self._rows = {}
        self._bytes = 0

    def _settle(self, room: int) -> None:
        """Wait until fewer than ``room`` batches are in flight. Failed batches are kept so that
        their errors are raised again."""
        while len(self._sent) >= room:
            done, _ = wait(self._sent, self.notice, return_when=FIRST_COMPLETED)
            for future in done:
                self._deleted += future.result()
                del self._sent[future]
            if not done and self._trouble:
                note(f"the server accepts no rows at present; retrying: {self._trouble}")

    def _run(self, future: Future[int], rows: dict[str, bytes]) -> None:
        try:
            future.set_result(self._deliver(rows))
        except BackendError as error:
            future.set_exception(error)
        finally:
            # Let Python report a programming error, because callers do not wait for this batch.
            if not future.done():
                future.set_exception(sys.exc_info()[1])

    def _deliver(self, rows: dict[str, bytes]) -> int:
        """Send rows until all are acknowledged. Return the number of documents deleted."""
        left = list(rows)
        count = 0
        limit = self.max_bytes
        shortest, longest = self.pauses
        pause = shortest
        begun = self.clock()
        while left:
            fitting = takewhile(limit.__ge__, accumulate(len(rows[id]) for id in left))
            ids = left[: max(1, sum(1 for _ in fitting))]
            body = b"".join(rows[id] for id in ids)
            again = ids
            path = f"/{self.target}/_bulk"
            try:
                # An update would recreate another program's index after it was removed.
                if self._updates:
                    self.transport.request("GET", f"/{self.target}/_alias")
                answer = self.transport.request("POST", path, body, **self._params)
                again, deleted, trouble = self._read(ids, answer)
                count += deleted
                limit = min(2 * limit, self.max_bytes)
            except UnreachableError as error:
                trouble = str(error)
                # A request of this minimum size cannot be too large for the server.
                limit = max(len(body) // 2, 1 << 16)
            except RefusedError as error:
                if error.status == 413:
                    self._shrink(ids, len(body))
                    limit = self.max_bytes
                    continue
                if error.status not in LATER:
                    raise
                trouble = str(error)
            left = again + left[len(ids) :]
            if len(again) < len(ids):
                pause = shortest
                self._progress = self.clock()
                self._trouble = ""
            if again:
                self._wait(pause, max(begun, self._progress), trouble)
                pause = min(2 * pause, longest)
        return count

    def _read(self, ids: Sequence[str], answer: Json) -> tuple[list[str], int, str]:
        """Parse a response, and return the ids to send again, the number of documents deleted, and
        the reason why rows were rejected."""
        items = answer.get("items", ())
        if len(items) != len(ids):
            raise BackendError(
                f"{self.transport.label}: sent {len(ids)} rows but got {len(items)} results; is "
                "this the kind of server that the address names?",
            )
        again = []
        deleted = 0
        trouble = ""
        for id, item in zip(ids, items, strict=True):
            [(operation, result)] = item.items()
            error = result.get("error")
            if error is None:
                deleted += operation == "delete" and result["status"] == 200
                continue
            kind = str(error.get("type"))
            if operation == "update" and kind == "document_missing_exception":
                continue
            reason = str(error.get("reason"))
            if cause := (error.get("caused_by") or {}).get("reason"):
                reason = f"{reason} ({cause})"
            if kind == "index_not_found_exception" and self.require_alias:
                name = attached_name(self.target) or self.target
                raise BackendError(
                    f"{self.transport.label}: another command has published, replaced or removed "
                    f"{name} meanwhile",
                    f"check <boc info {name}>, and repeat this command if the index is not as "
                    "intended",
                )
            status = result["status"]
            conflict = (operation, status) == ("update", 409)
            if not (conflict or status in LATER or kind in AWAY):
                cause = f"{kind}: {reason}"
                message = (
                    f"{self.transport.label}: item {id!r} was refused: {cause}{next_step(cause)}"
                )
                raise RefusedError(message, status, kind, reason)
            again.append(id)
            trouble = f"{self.transport.label}: {kind}: {reason}"
        return again, deleted, trouble

    def _shrink(self, ids: Sequence[str], size: int) -> None:
        """Halve ``max_bytes`` after a request of ``size`` bytes. Raises BackendError if the request
        contained only one row."""
        if len(ids) == 1:
            raise BackendError(
                f"{self.transport.label}: item {ids[0]!r} takes {size} bytes, more than the server "
                "accepts in one request; raise its http.max_content_length, or the limit of "
                "the proxy in front",
            )
        self.max_bytes = min(self.max_bytes, size // 2)

    def _wait(self, pause: float, since: float, trouble: str) -> None:
        """Pause before the next attempt. Raises BackendError if ``patience`` has passed without
        progress since ``since``."""
        self._trouble = trouble
        if self.clock() - since >= self.patience:
            remedy = "run the command again to resume"
            if "read_only_allow_delete" in trouble.replace("-", "_"):
                block = f"index.blocks.read_only_allow_delete of {self.target}"
                remedy = f"free disk space, clear {block}; {remedy}"
            raise UnfinishedError(
                f"the server accepted no row for {self.patience:.0f} seconds: {trouble}; {remedy}",
            )
        if self._stop.wait(pause * random.uniform(0.5, 1)):
            raise BackendError(f"{self.transport.label}: the load was stopped")


class Ledger:
    """Temporary database of the ids that an earlier load left on the server and the ids of this
    load.

    The file has no name, so it is removed when the process ends, even if the process is killed.
    Raises BackendError if the file cannot grow.
    """

    def __init__(self) -> None:
        self._db = sqlite3.connect("")
        self._db.execute("PRAGMA journal_mode = OFF")  # no rollback is needed
        self._db.execute("PRAGMA cache_size = -16000")  # KiB
        self._db.execute(
            "CREATE TABLE ids (id TEXT PRIMARY KEY, earlier INT, ours INT, seen INT) WITHOUT ROWID",
        )
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def close(self) -> None:
        self._db.close()

    def add_earlier(self, ids: Iterable[str]) -> None:
        """Record the ids that an earlier load left on the server."""
        self._write(
            "INSERT INTO ids VALUES (?, 1, 0, 0) ON CONFLICT DO UPDATE SET earlier = 1",
            ids,
        )

    def has(self, ids: Sequence[str]) -> bool:
        """Return whether an earlier load left all of these ids on the server. If so, add the ids to
        this load.

        Raises BackendError if an id is already part of this load.
        """
        if self._among(ids, "earlier") < set(ids):
            return False
        self.add(ids)
        return True

    def add(self, ids: Sequence[str]) -> None:
        """Add ids to this load. Raises BackendError, without adding any id, if an id is already
        part of this load or occurs twice."""
        seen = self._among(ids, "ours")
        for id in ids:
            if id in seen:
                raise BackendError(
                    f"the id {id!r} occurs more than once; make the ids of the source unique",
                )
            seen.add(id)
        self._write("INSERT INTO ids VALUES (?, 0, 1, 0) ON CONFLICT DO UPDATE SET ours = 1", ids)
        self._length += len(ids)

    def strays(self) -> Iterator[str]:
        """Return, in sorted order, the ids from an earlier load that are not part of this load."""
        rows = self._db.execute("SELECT id FROM ids WHERE earlier AND NOT ours ORDER BY id")
        return (id for (id,) in rows)

    def missing(self, present: Iterable[str]) -> list[str]:
        """Return the first ten ids of this load that are not among ``present``."""
        self._db.execute("UPDATE ids SET seen = 0 WHERE seen")
        self._write("UPDATE ids SET seen = 1 WHERE id = ?", present)
        rows = self._db.execute("SELECT id FROM ids WHERE ours AND NOT seen ORDER BY id LIMIT 10")
        return [id for (id,) in rows]

    def _among(self, ids: Sequence[str], mark: str) -> set[str]:
        """Return the subset of ``ids`` for which the column ``mark`` is set."""
        result = set()
        # SQLite limits the number of variables per statement.
        for part in batches(ids, 1000):
            query = f"SELECT id FROM ids WHERE {mark} AND id IN ({','.join('?' * len(part))})"
            result |= {id for (id,) in self._db.execute(query, part)}
        return result

    def _write(self, statement: str, ids: Iterable[str]) -> None:
        try:
            self._db.executemany(statement, ((id,) for id in ids))
        except sqlite3.OperationalError as error:
            raise BackendError(
                f"the temporary list of ids cannot grow ({error}); set TMPDIR to a folder with "
                "more space",
            ) from error
