"""Bulk loading with acknowledgement: a row is sent again until the server acknowledges it.

Every row has an id, so sending it twice changes nothing. That is why a request whose answer was
lost can be repeated.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import accumulate, takewhile

import orjson

from boc.errors import BackendError, note

from .transport import AWAY, Json, RefusedError, Transport, UnfinishedError, UnreachableError

LATER = {408, 429, 502, 503, 504}
"""HTTP statuses after which a request may succeed later."""
PAUSES = (0.1, 10.0)  # shortest and longest pause between attempts, in seconds
SMALL = (
    1 << 16
)  # bytes; a connection lost below this size was not lost because the request was too large
SHARD_WAIT = 5  # seconds that a server waits for the shard of a row
NOTICE = (
    10.0  # seconds without an answer, or a shard, after which a note says what the load waits for
)
PAUSE = 1.0  # seconds between two looks for a shard


class Shards:
    """The shards of ``index``, with the node that each was on when it was last seen.
    Thread-safe."""

    def __init__(
        self,
        transport: Transport,
        index: str,
        *,
        notice: float = NOTICE,
        pause: float = PAUSE,
    ) -> None:
        self._transport = transport
        self._index = index
        self._notice = notice
        self._pause = pause
        self._seen: dict[int, str] = {}
        self.describe_lost()

    def describe_lost(self) -> str:
        """Describe the shards without a living copy, and where they were; "" if there is none, or
        none is known."""
        try:
            answer = self._transport.request("GET", f"/{self._index}/_search_shards")
        except BackendError:  # no master, or no right to ask: what called says what is wrong
            return ""
        copies = [copy for group in answer.get("shards", ()) for copy in group]
        alive = {
            int(copy["shard"]): str(answer["nodes"].get(copy["node"], {}).get("name", copy["node"]))
            for copy in sorted(copies, key=lambda copy: bool(copy["primary"]))
            if copy["state"] in ("STARTED", "RELOCATING")
        }
        self._seen = {**self._seen, **alive}
        gone = [
            f"shard {shard}, last on node {node},"
            for shard, node in self._seen.items()
            if shard not in alive
        ]
        return (
            f"{self._index} has no living copy of {' and of '.join(gone)} and waits for it"
            if gone
            else ""
        )

    def wait(self, patience: float) -> None:
        """Wait until every shard answers. UnfinishedError, naming shards and nodes, after
        ``patience`` seconds."""
        begun = noted = time.monotonic()
        while True:
            try:
                self._transport.request(
                    "POST",
                    f"/{self._index}/_search",
                    {"size": 0},
                    allow_partial_search_results="false",
                )
                return
            except (RefusedError, UnreachableError) as error:
                if isinstance(error, RefusedError) and error.status not in (500, 503):
                    raise
                trouble = self.describe_lost() or str(error)
            now = time.monotonic()
            if now - begun >= patience:
                raise UnfinishedError(
                    f"{trouble}; bring the node back, and repeat the command to go on",
                )
            if now - noted >= self._notice:
                note(f"the load goes on when it can: {trouble}")
                noted = now
            time.sleep(self._pause)


class Bulk:
    """Sends rows to one index: at most ``in_flight`` requests are open while the next is being
    filled.

    A request holds at most ``max_bytes`` and ``max_rows``, but at least one row; 413 halves
    ``max_bytes``. Rows that the server rejects temporarily (429, 502, 503, 504, for a request or
    for one row in it) and rows without an answer are sent again after ``pauses``, each twice as
    long as the one before, until ``patience`` seconds pass without an acknowledged row. Two
    operations on one id keep their order: the second waits until all before it are acknowledged.
    ``missing`` holds the ids of updates whose documents are not there. ``shards`` says which of
    them a row waits for. After ``notice`` seconds without an answer a BocWarning says why;
    ``clock`` tells seconds.

    RefusedError, naming the id, if a row is rejected permanently; BackendError when ``patience``
    has passed. All methods raise the same error from then on. Leaving the context flushes; leaving
    it by an error drops rows that are not acknowledged. Not thread-safe.
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
        shards: Shards | None = None,
        pauses: tuple[float, float] = PAUSES,
        notice: float = NOTICE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._target = target
        # A row whose shard is away is answered soon, so that the others are acknowledged, and this
        # one is told of.
        self._params = {
            "filter_path": "items.*.status,items.*.error",
            "server_timeout": f"{SHARD_WAIT}s",
        }
        self._shards = shards
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
        self.missing: list[str] = []
        self._shortest, self._longest = pauses
        self._notice = notice
        self._clock = clock
        self._progress = clock()
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
        # no request may continue in the background; an interrupt does not wait for them
        if kind is not None and issubclass(kind, Exception):
            wait(self._sent)

    def index(self, id: str, document: bytes) -> None:
        """Store a document (JSON in UTF-8 without a line break), replacing an older one with this
        id."""
        self._append(id, b"%b\n%b\n" % (orjson.dumps({"index": {"_id": id}}), document))

    def delete(self, id: str) -> None:
        """Delete a document; a missing one is no error."""
        self._append(id, orjson.dumps({"delete": {"_id": id}}) + b"\n")

    def update(self, id: str, script: bytes, routing: str | None = None) -> None:
        """Change a document by ``{"script": ...}``; a missing one is added to ``missing``. If
        another program writes it at the same time, the script is run again on what that wrote."""
        head = {
            "_id": id,
            "retry_on_conflict": 3,
            **({} if routing is None else {"routing": routing}),
        }
        self._append(id, b"%b\n%b\n" % (orjson.dumps({"update": head}), script))

    def flush(self) -> int:
        """Wait until all rows are acknowledged; return how many deletes removed a document since
        the last flush.

        A delete whose first answer was lost removes nothing when repeated, and is not counted.
        """
        if self._rows:
            self._dispatch()
        self._settle(1)
        deleted = self._deleted
        self._deleted = 0
        return deleted

    def _append(self, id: str, row: bytes) -> None:
        if id in self._rows or any(id in rows for rows in self._sent.values()):
            if self._rows:
                self._dispatch()
            self._settle(1)
        if self._rows and (
            self._bytes + len(row) > self._max_bytes or len(self._rows) >= self._max_rows
        ):
            self._dispatch()
        self._rows[id] = row
        self._bytes += len(row)

    def _dispatch(self) -> None:
        """Hand the rows to a thread as soon as a request is free. It is a daemon, so an interrupted
        process can end."""
        self._settle(self._in_flight)
        future: Future[int] = Future()
        threading.Thread(target=self._run, args=(future, self._rows), daemon=True).start()
        self._sent[future] = self._rows
        self._rows = {}
        self._bytes = 0

    def _settle(self, room: int) -> None:
        """Wait until fewer than ``room`` batches are in flight. A failed batch stays, so its error
        is raised again."""
        while len(self._sent) >= room:
            done, _ = wait(self._sent, self._notice, return_when=FIRST_COMPLETED)
            for future in done:
                self._deleted += future.result()
                del self._sent[future]
            if not done and self._trouble:
                note(f"no row is taken at present, trying again: {self._trouble}")

    def _run(self, future: Future[int], rows: dict[str, bytes]) -> None:
        try:
            future.set_result(self._deliver(rows))
        except BackendError as error:
            future.set_exception(error)
        finally:
            if (
                not future.done()
            ):  # a programming error, which Python reports; do not wait for this batch
                future.set_exception(sys.exc_info()[1])

    def _deliver(self, rows: dict[str, bytes]) -> int:
        """Send rows until all are acknowledged; return how many deletes removed a document."""
        left = list(rows)
        count = 0
        limit = self._max_bytes
        pause = self._shortest
        begun = self._clock()
        while left:
            fitting = takewhile(limit.__ge__, accumulate(len(rows[id]) for id in left))
            ids = left[: max(1, sum(1 for _ in fitting))]
            body = b"".join(rows[id] for id in ids)
            try:
                answer = self._transport.request(
                    "POST",
                    f"/{self._target}/_bulk",
                    body,
                    **self._params,
                )
                again, deleted, trouble = self._read(ids, answer)
                count += deleted
                limit = min(2 * limit, self._max_bytes)
            except UnreachableError as error:
                again = ids
                trouble = str(error)
                limit = max(len(body) // 2, SMALL)
            except RefusedError as error:
                if error.status == 413:
                    limit = self._shrink(ids, len(body))
                    continue
                if error.status not in LATER:
                    raise
                again = ids
                trouble = str(error)
            left = again + left[len(ids) :]
            if len(again) < len(ids):
                pause = self._shortest
                self._progress = self._clock()
                self._trouble = ""
            if again:
                self._wait(pause, max(begun, self._progress), trouble)
                pause = min(2 * pause, self._longest)
        return count

    def _read(self, ids: Sequence[str], answer: Json) -> tuple[list[str], int, str]:
        """Parse an answer: the ids to send again, the number of effective deletes, and why rows
        were rejected."""
        items = answer.get("items", ())
        if len(items) != len(ids):
            raise BackendError(
                f"{self._transport.label}: {len(ids)} rows were sent and {len(items)} answered; "
                "is this a server of "
                f"the kind that the address says?",
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
            if operation == "update" and error.get("type") == "document_missing_exception":
                self.missing.append(id)
                continue
            kind = str(error.get("type"))
            reason = str(error.get("reason"))
            if cause := (error.get("caused_by") or {}).get("reason"):
                reason = f"{reason} ({cause})"
            passing = result["status"] in LATER or kind in AWAY
            if kind == "index_not_found_exception" and "require_alias" in self._params:
                name = self._target.rpartition("-boc-")[0] or self._target
                raise BackendError(
                    f"{self._transport.label}: another command has published, replaced or "
                    f"removed {name} meanwhile",
                    f"see what <boc info {name}> says, and repeat this command if that is not what "
                    "it was to be",
                )
            if not passing and (operation, result["status"]) != ("update", 409):
                message = f"{self._transport.label}: item {id!r} was refused: {kind}: {reason}"
                raise RefusedError(message, result["status"], kind, reason)
            again.append(id)
            trouble = f"{self._transport.label}: {kind}: {reason}"
        if "primary shard is not active" in trouble and self._shards is not None:
            trouble = self._shards.describe_lost() or trouble
        return again, deleted, trouble

    def _shrink(self, ids: Sequence[str], size: int) -> int:
        if len(ids) == 1:
            raise BackendError(
                f"{self._transport.label}: item {ids[0]!r} takes {size} bytes, more than the "
                "server takes in one "
                f"request; raise its http.max_content_length, or that of what stands before it",
            )
        self._max_bytes = min(self._max_bytes, size // 2)
        return self._max_bytes

    def _wait(self, pause: float, since: float, trouble: str) -> None:
        """Pause before an attempt; BackendError if ``patience`` has passed without progress since
        ``since``."""
        self._trouble = trouble
        if self._clock() - since >= self._patience:
            full = "read_only_allow_delete" in trouble or "read-only-allow-delete" in trouble
            remedy = (
                f"free disk space, clear index.blocks.read_only_allow_delete of {self._target}; "
                if full
                else ""
            )
            raise UnfinishedError(
                f"no row was taken for {self._patience:.0f} seconds: {trouble}; {remedy}repeat "
                "the command to go on",
            )
        if self._stop.wait(pause * random.uniform(0.5, 1)):
            raise BackendError(f"{self._transport.label}: loading was stopped")


class Ledger:
    """The ids of one load, in a temporary database: those left by an earlier load, and those of
    this one.

    The file has no name, so it disappears however the process ends. BackendError if it cannot grow.
    """

    def __init__(self) -> None:
        self._db = sqlite3.connect("")
        self._db.execute("PRAGMA journal_mode = OFF")  # no rollback is needed
        self._db.execute("PRAGMA cache_size = -16000")  # KiB
        self._db.execute(
            "CREATE TABLE ids (id TEXT PRIMARY KEY, earlier INT, ours INT, seen INT) WITHOUT ROWID",
        )
        self._length = 0

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

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
        """Return whether an earlier load left all of these ids; if so, they become part of this
        load.

        BackendError for an id that is part of this load already.
        """
        if self._among(ids, "earlier") < set(ids):
            return False
        self.add(ids)
        return True

    def add(self, ids: Sequence[str]) -> None:
        """Make ids part of this load. BackendError, and no change, if one is part of it already or
        occurs twice."""
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
        """Return ids that an earlier load left and that are not part of this load, sorted."""
        for (id,) in self._db.execute("SELECT id FROM ids WHERE earlier AND NOT ours ORDER BY id"):
            yield id

    def missing(self, present: Iterable[str]) -> list[str]:
        """Return the first ten ids of this load that are not among ``present``."""
        self._db.execute("UPDATE ids SET seen = 0 WHERE seen")
        self._write("UPDATE ids SET seen = 1 WHERE id = ?", present)
        rows = self._db.execute("SELECT id FROM ids WHERE ours AND NOT seen ORDER BY id LIMIT 10")
        return [id for (id,) in rows]

    def _among(self, ids: Sequence[str], mark: str) -> set[str]:
        """Return the ids among ``ids`` whose column ``mark`` is set."""
        result: set[str] = set()
        for start in range(0, len(ids), 1000):  # SQLite limits the variables of a statement
            part = ids[start : start + 1000]
            places = ",".join("?" * len(part))
            result.update(
                id
                for (id,) in self._db.execute(
                    f"SELECT id FROM ids WHERE {mark} AND id IN ({places})",
                    part,
                )
            )
        return result

    def _write(self, statement: str, ids: Iterable[str]) -> None:
        try:
            self._db.executemany(statement, ((id,) for id in ids))
        except sqlite3.OperationalError as error:
            raise BackendError(
                f"the temporary list of ids cannot grow ({error}); point TMPDIR to more room",
            ) from error
