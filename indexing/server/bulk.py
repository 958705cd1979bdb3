"""Loading with acknowledgement: rows are sent, and sent again, until the server has said of each that it is kept.

Every row is addressed by its id, so that doing one twice changes nothing; this is why an answer that got lost may be
asked for again.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

import orjson

from boc.errors import BackendError, BocWarning

from .transport import Json, RefusedError, Transport, UnfinishedError, UnreachableError

LATER = {408, 429, 502, 503, 504}
"""HTTP statuses that say: not now."""
SHORTEST, LONGEST = 0.1, 10.0  # pauses between attempts, in seconds
SMALL = 1 << 16  # bytes: no lost connection was for a request of this size being too large
NOTICE = 10.0  # seconds without an answer after which people are told what is waited for


class Bulk:
    """Rows on their way to one index: at most ``in_flight`` requests while the next is being filled.

    A request holds at most ``max_bytes`` and ``max_rows``, but at least one row; 413 halves ``max_bytes``. What the
    server refuses for now (429, 502, 503, 504, of a request or of one row in it) and what got no answer is sent again
    after pauses that grow to 10 seconds, until ``patience`` seconds have passed without any row acknowledged. Two
    operations on one id never overtake each other: the second waits until all before it are acknowledged.

    RefusedError, naming the id, if a row is refused for good; BackendError when patience is at its end; all methods
    raise it again from then on. Leaving the context flushes; leaving it by an error gives up what was not acknowledged.
    For one thread.
    """

    def __init__(
        self,
        transport: Transport,
        target: str,
        *,
        require_alias: bool = False,
        routing: str = "",
        max_bytes: int = 8 << 20,
        max_rows: int = 4096,
        in_flight: int = 2,
        patience: float = 300.0,
    ) -> None:
        self._transport = transport
        self._target = target
        self._params = {"filter_path": "items.*.status,items.*.error"}
        if require_alias:
            self._params["require_alias"] = "true"
        if routing:
            self._params["routing"] = routing
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._in_flight = in_flight
        self._patience = patience
        self._rows: dict[str, bytes] = {}
        self._bytes = 0
        self._sent: dict[Future[int], dict[str, bytes]] = {}
        self._deleted = 0
        self._progress = time.monotonic()
        self._trouble = ""
        self._stop = threading.Event()

    def __enter__(self) -> Bulk:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: object) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self._stop.set()
        if kind is not None and issubclass(kind, Exception):  # nothing is written later on; an interrupt does not wait
            wait(self._sent)

    def index(self, id: str, document: bytes) -> None:
        """Store a document, JSON in UTF-8 without a line break, in place of an older one of that id."""
        self._put(id, b"%b\n%b\n" % (orjson.dumps({"index": {"_id": id}}), document))

    def delete(self, id: str) -> None:
        """Remove a document; one that is not there is no error."""
        self._put(id, orjson.dumps({"delete": {"_id": id}}) + b"\n")

    def flush(self) -> int:
        """Wait until all rows are acknowledged; how many deletes found something since the last flush.

        A delete whose first answer got lost finds nothing when repeated, and is not counted.
        """
        if self._rows:
            self._dispatch()
        self._settle(1)
        deleted, self._deleted = self._deleted, 0
        return deleted

    def _put(self, id: str, row: bytes) -> None:
        if id in self._rows or any(id in rows for rows in self._sent.values()):
            if self._rows:
                self._dispatch()
            self._settle(1)
        if self._rows and (self._bytes + len(row) > self._max_bytes or len(self._rows) >= self._max_rows):
            self._dispatch()
        self._rows[id] = row
        self._bytes += len(row)

    def _dispatch(self) -> None:
        """Hand the rows to a thread as soon as there is room. A daemon, so that an interrupted process can end."""
        self._settle(self._in_flight)
        future: Future[int] = Future()
        threading.Thread(target=self._run, args=(future, self._rows), daemon=True).start()
        self._sent[future] = self._rows
        self._rows, self._bytes = {}, 0

    def _settle(self, room: int) -> None:
        """Wait until fewer than ``room`` batches are on their way. One that failed stays, and with it the error."""
        while len(self._sent) >= room:
            done, _ = wait(self._sent, NOTICE, return_when=FIRST_COMPLETED)
            for future in done:
                self._deleted += future.result()
                del self._sent[future]
            if not done and self._trouble:
                warnings.warn(f"no row is taken at present, trying again: {self._trouble}", BocWarning, stacklevel=2)

    def _run(self, future: Future[int], rows: dict[str, bytes]) -> None:
        try:
            future.set_result(self._deliver(rows))
        except BackendError as error:
            future.set_exception(error)
        finally:
            if not future.done():  # a mistake in the code, which Python reports; nobody shall wait for it
                future.set_exception(sys.exc_info()[1])

    def _deliver(self, rows: dict[str, bytes]) -> int:
        """Send rows until all are acknowledged; how many of them are deletes that found something."""
        left, found = list(rows), 0
        limit, pause, begun = self._max_bytes, SHORTEST, time.monotonic()
        while left:
            ids = list(_within(left, rows, limit))
            body = b"".join(rows[id] for id in ids)
            try:
                answer = self._transport.request("POST", f"/{self._target}/_bulk", body, **self._params)
                again, deleted, trouble = self._read(ids, answer)
                found += deleted
                limit = min(2 * limit, self._max_bytes)
            except UnreachableError as error:
                again, trouble, limit = ids, str(error), max(len(body) // 2, SMALL)
            except RefusedError as error:
                if error.status == 413:
                    limit = self._shrink(ids, len(body))
                    continue
                if error.status not in LATER:
                    raise
                again, trouble = ids, str(error)
            left = again + left[len(ids) :]
            if len(again) < len(ids):
                pause, self._progress, self._trouble = SHORTEST, time.monotonic(), ""
            if again:
                self._wait(pause, max(begun, self._progress), trouble)
                pause = min(2 * pause, LONGEST)
        return found

    def _read(self, ids: Sequence[str], answer: Json) -> tuple[list[str], int, str]:
        """Of an answer: the rows to be sent again, how many deletes found something, and why not all were taken."""
        items = answer.get("items", ())
        if len(items) != len(ids):
            raise BackendError(
                f"{self._transport.shown}: {len(ids)} rows were sent and {len(items)} answered; is this a server of "
                f"the kind that the address says?"
            )
        again, found, trouble = [], 0, ""
        for id, item in zip(ids, items, strict=True):
            [(operation, result)] = item.items()
            error = result.get("error")
            if error is None:
                found += operation == "delete" and result["status"] == 200
                continue
            kind, reason = str(error.get("type")), str(error.get("reason"))
            if cause := (error.get("caused_by") or {}).get("reason"):
                reason = f"{reason} ({cause})"
            if result["status"] not in LATER:
                message = f"{self._transport.shown}: item {id!r} was refused: {kind}: {reason}"
                raise RefusedError(message, result["status"], kind, reason)
            again.append(id)
            trouble = f"{self._transport.shown}: {kind}: {reason}"
        return again, found, trouble

    def _shrink(self, ids: Sequence[str], size: int) -> int:
        if len(ids) == 1:
            raise BackendError(
                f"{self._transport.shown}: item {ids[0]!r} takes {size} bytes, more than the server takes in one "
                f"request; raise its http.max_content_length, or that of what stands before it"
            )
        self._max_bytes = min(self._max_bytes, size // 2)
        return self._max_bytes

    def _wait(self, pause: float, since: float, trouble: str) -> None:
        """Pause before an attempt; BackendError once nothing has gone forward for too long ``since``."""
        self._trouble = trouble
        if time.monotonic() - since >= self._patience:
            full = "read_only_allow_delete" in trouble or "read-only-allow-delete" in trouble
            remedy = f"free disk space, clear index.blocks.read_only_allow_delete of {self._target}; " if full else ""
            raise UnfinishedError(
                f"no row was taken for {self._patience:.0f} seconds: {trouble}; {remedy}repeat the command to go on"
            )
        if self._stop.wait(pause * random.uniform(0.5, 1)):
            raise BackendError(f"{self._transport.shown}: loading was stopped")


def _within(ids: Sequence[str], rows: dict[str, bytes], limit: int) -> Iterator[str]:
    """The first ids whose rows take at most ``limit`` bytes, but at least one."""
    size = 0
    for i, id in enumerate(ids):
        size += len(rows[id])
        if i and size > limit:
            return
        yield id


class Ledger:
    """The ids of one load, in a temporary file: what an earlier load has left, and what is part of this one.

    The file has no name, so that nothing remains of it however the process ends. BackendError where it cannot grow.
    """

    def __init__(self) -> None:
        self._db = sqlite3.connect("")
        self._db.execute("PRAGMA journal_mode = OFF")  # nothing is ever undone
        self._db.execute("PRAGMA cache_size = -16000")  # KiB
        self._db.execute("CREATE TABLE ids (id TEXT PRIMARY KEY, found INT, ours INT, seen INT) WITHOUT ROWID")
        self._length = 0

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __len__(self) -> int:
        """How many ids are part of this load."""
        return self._length

    def close(self) -> None:
        self._db.close()

    def found(self, ids: Iterable[str]) -> None:
        """Note what an earlier load has left on the server."""
        self._write("INSERT INTO ids VALUES (?, 1, 0, 0) ON CONFLICT DO UPDATE SET found = 1", ids)

    def has(self, ids: Sequence[str]) -> bool:
        """Whether an earlier load has left all of these; if so, they are part of this load from now on.

        BackendError for an id that is part of it already.
        """
        if self._among(ids, "found") < set(ids):
            return False
        self.add(ids)
        return True

    def add(self, ids: Sequence[str]) -> None:
        """Make ids part of this load: all of them, or none and BackendError if one is already, or occurs twice."""
        seen = self._among(ids, "ours")
        for id in ids:
            if id in seen:
                raise BackendError(f"the id {id!r} occurs more than once; make the ids of the source unique")
            seen.add(id)
        self._write("INSERT INTO ids VALUES (?, 0, 1, 0) ON CONFLICT DO UPDATE SET ours = 1", ids)
        self._length += len(ids)

    def strays(self) -> Iterator[str]:
        """Ids that an earlier load has left and that are not part of this one, in order."""
        for (id,) in self._db.execute("SELECT id FROM ids WHERE found AND NOT ours ORDER BY id"):
            yield id

    def missing(self, present: Iterable[str]) -> list[str]:
        """The first ten ids of this load that are not among ``present``."""
        self._db.execute("UPDATE ids SET seen = 0 WHERE seen")
        self._write("UPDATE ids SET seen = 1 WHERE id = ?", present)
        rows = self._db.execute("SELECT id FROM ids WHERE ours AND NOT seen ORDER BY id LIMIT 10")
        return [id for (id,) in rows]

    def _among(self, ids: Sequence[str], mark: str) -> set[str]:
        """Those of some ids that have a mark."""
        known: set[str] = set()
        for start in range(0, len(ids), 1000):  # SQLite takes some thousand variables
            part = ids[start : start + 1000]
            places = ",".join("?" * len(part))
            known.update(
                id for (id,) in self._db.execute(f"SELECT id FROM ids WHERE {mark} AND id IN ({places})", part)
            )
        return known

    def _write(self, statement: str, ids: Iterable[str]) -> None:
        try:
            self._db.executemany(statement, ((id,) for id in ids))
        except sqlite3.OperationalError as error:
            raise BackendError(f"the temporary list of ids cannot grow ({error}); point TMPDIR to more room") from error
