"""Loading: every row ends acknowledged exactly as given, or there is an error; whatever the server
does."""

import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import chain, groupby, repeat
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from hypothesis import given, strategies as st

from boc.errors import BackendError, BocWarning
from indexing.server.bulk import Bulk, Ledger
from indexing.server.transport import Json, RefusedError, UnreachableError

BUSY = {
    "status": 429,
    "error": {"type": "es_rejected_execution_exception", "reason": "queue is full"},
}
AWAY = {
    "status": 500,
    "error": {"type": "node_not_connected_exception", "reason": "[b] Node not connected"},
}
Operation = tuple[str, bytes | None]
operations = st.tuples(
    st.sampled_from("abcdefghij"),
    st.none()
    | st.integers(
        0,
        9999,
    ).map(orjson.dumps),
)
faults = st.sampled_from(["none", "429", "503", "413", "before", "after", "items"])


def bulk_to(server: Any, **options: Any) -> Bulk:
    """Rows for the index ``photos``, sent again without pauses."""
    return Bulk(server, "photos", pauses=(0.0, 10.0), **options)


class Server:
    """A server in memory that goes wrong by a list, one entry a request, and no more when that has
    ended.

    ``trouble`` is called with each body first, and may raise. ``acknowledged`` counts the bytes of
    rows that are said to be kept; ``log`` has what was done to each id.
    """

    engine = "opensearch"
    label = "http://memory:9200"

    def __init__(
        self,
        faults: Sequence[str] = (),
        largest: int = 1 << 30,
        trouble: Callable[[bytes], object] = lambda body: None,
    ) -> None:
        self.faults = chain(faults, repeat("none"))
        self.largest = largest
        self.trouble = trouble
        self.documents: dict[str, bytes] = {}
        self.log: dict[str, list[bytes | None]] = {}
        self.sizes: list[int] = []
        self.params: list[Json] = []
        self.acknowledged = 0
        self.parallel = 0
        self.most_parallel = 0
        self.lock = threading.Lock()

    def request(self, method: str, path: str, body: bytes, **params: Any) -> Json:
        assert (method, path) == ("POST", "/photos/_bulk")
        with self.lock:
            fault = next(self.faults)
            self.sizes.append(len(body))
            self.params.append(params)
            self.parallel += 1
            self.most_parallel = max(self.most_parallel, self.parallel)
        try:
            self.trouble(body)
            return self.answer(fault, body)
        finally:
            with self.lock:
                self.parallel -= 1

    def answer(self, fault: str, body: bytes) -> Json:
        rows = list(parse(body))
        if len(body) > self.largest or (fault == "413" and len(rows) > 1):
            raise RefusedError("too large", 413)
        if fault in ("429", "503"):
            raise RefusedError(f"{self.label} refused", int(fault))
        if fault == "before":
            raise UnreachableError("nobody there")
        items = []
        with self.lock:
            for i, (key, document) in enumerate(rows):
                if fault == "items" and i % 3 == 0:
                    item = (BUSY, AWAY)[len(rows) % 2]
                else:
                    item = self.do(key, document)
                items.append({"delete" if document is None else "index": item})
                if fault != "after" and "error" not in item:
                    self.acknowledged += size(key, document)
        if fault == "after":
            raise UnreachableError("cut off")
        return {"items": items}

    def do(self, key: str, document: bytes | None) -> Json:
        if document == b'"poison"':
            cause = {"type": "number_format_exception", "reason": "no number"}
            error = {"type": "mapper_parsing_exception", "reason": "failed to parse"}
            return {"status": 400, "error": {**error, "caused_by": cause}}
        self.log.setdefault(key, []).append(document)
        status = 404 if document is None else 201
        if self.documents.pop(key, None) is not None:
            status = 200
        if document is not None:
            self.documents[key] = document
        return {"status": status}


def parse(body: bytes) -> Iterator[Operation]:
    lines = iter(body.splitlines(keepends=True))
    for line in lines:
        assert line.endswith(b"\n")
        [(kind, action)] = orjson.loads(line).items()
        yield action["_id"], None if kind == "delete" else next(lines)[:-1]


def size(key: str, document: bytes | None) -> int:
    """Of a row in a request, in bytes."""
    if document is None:
        return len(orjson.dumps({"delete": {"_id": key}})) + 1
    return len(orjson.dumps({"index": {"_id": key}})) + 1 + len(document) + 1


def put(
    bulk: Bulk,
    key: str,
    document: bytes | None,
) -> None:
    if document is None:
        bulk.delete(key)
    else:
        bulk.index(key, document)


def one_row(server: Server, **options: Any) -> Bulk:
    """Rows for ``server``, the first of which is not sent yet."""
    bulk = bulk_to(server, **options)
    bulk.index("a", b"1")
    return bulk


def failing(error: Exception) -> Server:
    return Server(trouble=Mock(side_effect=error))


@pytest.mark.slow
@given(
    st.lists(operations, max_size=60),
    st.lists(faults, max_size=30),
    st.integers(1, 200),
    st.integers(1, 12),
    st.integers(1, 3),
)
def test_rows_arrive_in_order(
    given_: list[Operation],
    faults: list[str],
    max_bytes: int,
    max_rows: int,
    in_flight: int,
):
    """What the server holds is what the operations make one after the other; each was done in its
    turn, and nothing after it before. Never more than the requests in flight and the one being
    filled are in memory."""
    server = Server(faults)
    room = (in_flight + 1) * max(max_bytes, *(size(*row) for row in given_), 0)
    written = 0
    with bulk_to(
        server,
        max_bytes=max_bytes,
        max_rows=max_rows,
        in_flight=in_flight,
    ) as bulk:
        for row in given_:
            put(bulk, *row)
            written += size(*row)
            assert written - server.acknowledged <= room
        bulk.flush()
        assert written == server.acknowledged
    assert server.documents == {
        key: document for key, document in dict(given_).items() if document is not None
    }
    for key, done in server.log.items():
        wanted = [document for other, document in given_ if other == key]
        assert [d for d, _ in groupby(done)] == [d for d, _ in groupby(wanted)]
    assert server.most_parallel <= in_flight
    assert all(n <= max_bytes or n in {size(*row) for row in given_} for n in server.sizes)


@given(
    st.lists(operations, max_size=60),
    st.integers(1, 12),
)
def test_flush_counts_deletes(given_: list[Operation], max_rows: int):
    there = set()
    found = 0
    for key, document in given_:
        found += document is None and key in there
        there.discard(key) if document is None else there.add(key)
    bulk = bulk_to(
        Server(["503", "items", "413"]),
        max_rows=max_rows,
    )
    for row in given_:
        put(bulk, *row)
    assert bulk.flush() == found
    assert bulk.flush() == 0


@given(
    st.lists(
        st.integers(0, 9999).map(orjson.dumps),
        min_size=1,
        max_size=30,
    ),
    st.data(),
)
def test_refused_row_is_named(
    documents: list[bytes],
    data: st.DataObject,
):
    bad = data.draw(st.integers(0, len(documents)))
    rows = [(f"item {i}", document) for i, document in enumerate(documents)]
    rows.insert(bad, ("the bad one", b'"poison"'))
    bulk = bulk_to(Server(["429", "after"]), max_rows=4)

    def load():
        for row in rows:
            put(bulk, *row)
        bulk.flush()

    said = (
        r"^http://memory:9200: item 'the bad one' was refused: mapper_parsing_exception: "
        r"failed to parse \(no number\)$"
    )
    with pytest.raises(RefusedError, match=said) as caught:
        load()
    assert (caught.value.status, caught.value.kind) == (400, "mapper_parsing_exception")
    with pytest.raises(RefusedError, match=said):
        bulk.flush()


def test_413_halves_requests():
    server = Server(largest=1000)
    documents = {f"{i}": orjson.dumps("x" * (i % 90)) for i in range(500)}
    with bulk_to(server, max_bytes=8000, in_flight=1) as bulk:
        for key, document in documents.items():
            bulk.index(key, document)
    assert server.documents == documents
    refused = [n for n in server.sizes if n > 1000]
    assert len(refused) <= 3  # halved thrice, and remembered
    bulk = bulk_to(server)
    bulk.index("short", b"1")
    bulk.index(
        "long",
        orjson.dumps("x" * (2021 - size("long", b'""'))),
    )
    words = "item 'long' takes 2021 bytes, more than the server accepts in one request"
    with pytest.raises(BackendError, match=words):
        bulk.flush()
    assert server.documents["short"] == b"1"


FULL = RefusedError("index has read-only-allow-delete block", 429, "cluster_block_exception")
REMEDY = r"free disk space, clear index\.blocks\.read_only_allow_delete of photos; "


@pytest.mark.parametrize(
    "error",
    [
        RefusedError(
            "busy",
            429,
        ),
        RefusedError("away", 503),
        UnreachableError("gone"),
        FULL,
    ],
)
def test_patience_ends(error: BackendError):
    bulk = one_row(failing(error), patience=0.0)
    remedy = REMEDY if error is FULL else ""
    words = rf"^the server accepted no row for 0 sec.*; {remedy}run the command again to resume$"
    with pytest.raises(BackendError, match=words):
        bulk.flush()


class Clock:
    """Goes on by a second at every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.mark.parametrize("max_rows", [1, 100])
def test_progress_resets_patience(max_rows: int):
    clock = Clock()
    wait = ["429"] * 30
    faults = [*wait, "none"] * 90
    if max_rows == 100:
        faults = [*wait, "items", *wait, "items", *wait, "none"]
    server = Server(faults)
    with bulk_to(
        server,
        patience=60,
        in_flight=1,
        max_rows=max_rows,
        clock=clock,
    ) as bulk:
        for i in range(90):
            bulk.index(str(i), b"1")
    assert clock.now > 90
    assert len(server.documents) == 90


@pytest.mark.parametrize(
    "status",
    [400, 401, 403, 404, 500],
)
def test_permanent_errors_are_raised(status: int):
    server = failing(RefusedError("no", status))
    bulk = one_row(server, patience=1e9)
    with pytest.raises(RefusedError, match=r"^no$"):
        bulk.flush()
    assert len(server.sizes) == 1


@pytest.mark.parametrize(
    "answer",
    [{}, {"items": []}, {"errors": False, "items": [{"index": {"status": 201}}] * 2}],
)
def test_wrong_number_of_answers(answer: Json):
    server = Server()
    server.answer = lambda fault, body: answer
    bulk = one_row(server)
    with pytest.raises(BackendError, match=r"sent 1 rows but got [02] results"):
        bulk.flush()


def test_waiting_warns():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def stay_away(body):
            if not caught:
                raise UnreachableError("nobody there")

        one_row(Server(trouble=stay_away), notice=0.01).flush()
    said = "the server accepts no rows at present; retrying: nobody there"
    assert {(w.category, str(w.message)) for w in caught} == {(BocWarning, said)}


class Hanging(Server):
    """Answers when it is let go."""

    def __init__(self) -> None:
        super().__init__(trouble=self.wait)
        self.asked = threading.Event()
        self.go = threading.Event()

    def wait(self, body: bytes) -> None:
        self.asked.set()
        assert self.go.wait(60)


def test_error_waits_for_requests():
    server = Hanging()
    threading.Timer(0.05, server.go.set).start()

    def fail():
        with one_row(server, max_rows=1) as bulk:
            bulk.index("b", b"1")
            server.asked.wait()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert server.parallel == 0
    assert server.documents == {"a": b"1"}


def test_ctrl_c_ends_the_process():
    program = """
import signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, sys.argv[1])
from indexing.server.bulk import Bulk
class Hanging:
    label = "x"
    def request(self, *a, **k):
        print("asked", flush=True)
        threading.Event().wait()
with Bulk(Hanging(), "photos") as bulk:
    bulk.index("a", b"1")
    bulk.flush()
"""
    command = [sys.executable, "-c", program, str(Path(__file__).parents[3])]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode != 0
    assert said.endswith("KeyboardInterrupt\n")


calls = st.tuples(
    st.sampled_from(["add_earlier", "has", "add", "missing"]),
    st.lists(st.text("ab'\0é", max_size=2), max_size=4),
)


@given(st.lists(calls, max_size=20))
def test_ledger(calls: list[tuple[str, list[str]]]):
    """Like two sets."""
    left = set()
    ours = set()
    with closing(Ledger()) as ledger:
        for call, ids in calls:
            doubled = len(set(ids)) < len(ids) or not ours.isdisjoint(ids)
            if call == "add_earlier":
                ledger.add_earlier(iter(ids))
                left.update(ids)
            elif call == "missing":
                assert ledger.missing(iter(ids)) == sorted(ours - set(ids), key=str.encode)[:10]
            elif call == "has" and not left.issuperset(ids):
                assert not ledger.has(ids)
            elif doubled:
                words = "occurs more than once; make the ids of the source unique"
                with pytest.raises(BackendError, match=words):
                    getattr(ledger, call)(ids)
            else:
                assert getattr(ledger, call)(ids) is (True if call == "has" else None)
                ours.update(ids)
            assert len(ledger) == len(ours)
            assert list(ledger.strays()) == sorted(left - ours, key=str.encode)
