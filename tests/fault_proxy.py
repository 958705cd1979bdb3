"""A proxy that does what networks, gateways and busy servers do to a load."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

Row = tuple[
    str,
    bytes,
]  # operation ("index", "delete") and the lines of a bulk request that it takes
NOT_PASSED_ON = {
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "host",
    "accept-encoding",
}
GATEWAY = {429: "Too Many Requests", 413: "Request Entity Too Large", 503: "Service Unavailable"}


@dataclass
class Faults:
    """What is done to bulk requests, and to all others too if ``everywhere``; shares are of
    requests, from 0 to 1.

    ``busy`` get 429 and ``unavailable`` 503 from the gateway, in HTML, like those larger than
    ``largest`` bytes a 413; of ``busy_rows`` the server never hears, the answer gives 429 for each.
    ``lost`` are answered by hanging up before the server heard of them, ``cut`` in the middle of
    the answer, after it did them. ``delay`` is waited before each, in seconds; ``slow`` is how long
    the answer takes to come.
    """

    busy: float = 0.0
    unavailable: float = 0.0
    largest: int | None = None
    busy_rows: float = 0.0
    lost: float = 0.0
    cut: float = 0.0
    delay: float = 0.0
    slow: float = 0.0
    everywhere: bool = False


@dataclass
class Proxy:
    """A proxy on loopback before the server at ``upstream``; a context manager. ``faults`` may
    change at any time.

    ``count`` counts requests, bulk requests, and faults by name. ``before`` is called with the
    number and path of each request, from 1, before the server hears of it, ``after`` once it has
    answered and the client does not know yet. ``close`` refuses connections and cuts those that are
    open; ``open`` accepts them again, at the same port.
    """

    upstream: str
    faults: Faults = field(default_factory=Faults)
    seed: int = 0
    before: Callable[[int, str], None] = lambda number, path: None
    after: Callable[[int, str], None] = lambda number, path: None

    def __post_init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.random = random.Random(self.seed)
        self.lock = threading.Lock()
        self._port = 0
        self._connections: set[socket.socket] = set()
        self._listener: socket.socket | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Proxy:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def open(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._port = self._listener.getsockname()[1]
        threading.Thread(
            target=self._accept,
            args=(self._listener,),
            daemon=True,
        ).start()

    def close(self) -> None:
        if self._listener is not None:
            with suppress(OSError):  # wakes the thread that accepts
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        with self.lock:
            for connection in self._connections:
                hang_up(connection)

    def hit(self, fault: str, share: float) -> bool:
        """Whether a fault of this share strikes now; counted if so."""
        with self.lock:
            strikes = self.random.random() < share
            self.count[fault] += strikes
        return strikes

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, address = listener.accept()
                threading.Thread(
                    target=self._serve,
                    args=(connection, address),
                    daemon=True,
                ).start()

    def _serve(self, connection: socket.socket, address: Any) -> None:
        with self.lock:
            self._connections.add(connection)
        with connection, suppress(OSError, http.client.HTTPException):
            # The handler takes this object for a server.
            _Handler(connection, address, self)  # type: ignore[arg-type]
        with self.lock:
            self._connections.discard(connection)


def hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def rows(body: bytes) -> Iterator[Row]:
    """The operations of a bulk request."""
    lines = iter(body.splitlines(keepends=True))
    for line in lines:
        [operation] = json.loads(line)
        yield operation, line if operation == "delete" else line + next(lines)


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    server: Proxy  # type: ignore[assignment]

    def log_message(self, *message: object) -> None:
        pass

    def _do(self) -> None:
        proxy = self.server
        faults = self.server.faults
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        bulk = urlsplit(self.path).path.endswith("/_bulk")
        with proxy.lock:
            proxy.count["requests"] += 1
            proxy.count["bulk"] += bulk
            number = proxy.count["requests"]
        proxy.before(number, self.path)
        if bulk or faults.everywhere:
            self._go_wrong(faults, body, number)
        else:
            answer = self._ask(body)
            proxy.after(number, self.path)
            self._answer(*answer)

    def _go_wrong(self, faults: Faults, body: bytes, number: int) -> None:
        proxy = self.server
        time.sleep(faults.delay)
        if faults.largest is not None and len(body) > faults.largest:
            proxy.hit("largest", 1)
            self._refuse(413)
        elif proxy.hit("busy", faults.busy):
            self._refuse(429)
        elif proxy.hit("unavailable", faults.unavailable):
            self._refuse(503)
        elif proxy.hit("lost", faults.lost):
            self._hang_up()
        else:
            answer = self._ask_some(body) if faults.busy_rows else self._ask(body)
            proxy.after(number, self.path)
            self._answer(
                *answer,
                cut=proxy.hit("cut", faults.cut),
                slow=faults.slow,
            )

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _do  # noqa: N815

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Status, headers and body of the server's answer."""
        upstream = urlsplit(self.server.upstream)
        connection = http.client.HTTPConnection(str(upstream.hostname), upstream.port)
        headers = {
            name: value for name, value in self.headers.items() if name.lower() not in NOT_PASSED_ON
        }
        try:
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            kept = [
                (name, value)
                for name, value in answer.getheaders()
                if name.lower() not in NOT_PASSED_ON
            ]
            return answer.status, kept, answer.read()
        finally:
            connection.close()

    def _ask_some(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """The server is asked to do some of the rows; the others are answered for it."""
        all_rows = list(rows(body))
        busy = [self.server.hit("busy_rows", self.server.faults.busy_rows) for _ in all_rows]
        taken = b"".join(
            row
            for (_, row), skip in zip(
                all_rows,
                busy,
                strict=True,
            )
            if not skip
        )
        status, headers, answer = self._ask(taken or b'{"delete":{"_id":"nothing"}}\n')
        if status != 200:
            return status, headers, answer
        told = iter(json.loads(answer)["items"])
        error = {"type": "es_rejected_execution_exception", "reason": "injected"}
        items = [
            {operation: {"status": 429, "error": error}} if skip else next(told)
            for (operation, _), skip in zip(all_rows, busy, strict=True)
        ]
        return status, headers, json.dumps({"errors": any(busy), "items": items}).encode()

    def _refuse(self, status: int) -> None:
        """As gateways do: in HTML, and without a word of the server's."""
        page = f"<html><head><title>{status} {GATEWAY[status]}</title></head></html>".encode()
        self._answer(status, [("Server", "gateway"), ("Content-Type", "text/html")], page)

    def _answer(
        self,
        status: int,
        headers: list[tuple[str, str]],
        body: bytes,
        *,
        cut: bool = False,
        slow: float = 0.0,
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2])
            time.sleep(slow)
            self._hang_up() if cut else self.wfile.write(body[len(body) // 2 :])

    def _hang_up(self) -> None:
        self.close_connection = True
        hang_up(self.connection)
