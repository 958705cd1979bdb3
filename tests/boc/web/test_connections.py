"""Clients that ask nothing, ask slowly, or do not read hold up nobody else; a server that stops answers what it has."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

pytest.importorskip("uvicorn", reason="the page needs the extra web")

SERVER = """
import asyncio, resource, sys
if int(sys.argv[2]):
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]),) * 2)
from boc.web.http import connections, server
connections.ASK = connections.READ = float(sys.argv[1])

async def app(scope, receive, send):
    assert scope["type"] == "http"
    if scope["path"] in ("/slow", "/endless"):
        await asyncio.sleep(0.5 if scope["path"] == "/slow" else 1000)
    body = b"x" * (30_000_000 if scope["path"] == "/large" else 5)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})

sock = server.listen("127.0.0.1", 0)
print(sock.getsockname()[1], flush=True)
server.run(app, sock)
"""
LONG = 60.0


@contextmanager
def serving(ask: float = LONG, files: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-c", SERVER, str(ask), str(files)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def ask(port: int, path: str = "/") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def connected(port: int, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LONG))


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n"])
@pytest.mark.parametrize("files", [128, 200])
def test_more_idle_connections_than_files_keep_nobody_out(files: int, sent: bytes) -> None:
    with serving(files=files) as (process, port), ExitStack() as stack:
        for _ in range(3 * files):
            connected(port, stack).sendall(sent)
        assert [ask(port) for _ in range(20)] == [200] * 20
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        stack.close()
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHo", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"])
def test_a_connection_that_asks_no_more_is_closed(sent: bytes) -> None:
    with serving(ask=0.5) as (_, port), ExitStack() as stack:
        client = connected(port, stack)
        client.sendall(sent)
        try:
            while client.recv(4096):
                pass
        except ConnectionResetError:
            pass


def test_a_client_that_does_not_read_is_left() -> None:
    with serving(ask=0.5) as (_, port), ExitStack() as stack:
        client = socket.socket()
        stack.enter_context(client)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(LONG)
        client.connect(("127.0.0.1", port))
        client.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        threading.Event().wait(4)  # the server gives up after half a second
        found = 0
        try:
            while part := client.recv(1 << 20):
                found += len(part)
        except ConnectionResetError:
            pass
        assert found < 30_000_000


def test_what_was_asked_before_the_end_is_answered() -> None:
    with serving() as (process, port):
        found: list[object] = []

        def client() -> None:
            try:
                found.append(ask(port, "/slow"))
            except OSError as error:
                found.append(error)

        threads = [threading.Thread(target=client) for _ in range(60)]
        for thread in threads:
            thread.start()
        ask(port)  # the others have been sent by now, if not read
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert process.wait(LONG) is not None
    refused = [each for each in found if isinstance(each, ConnectionRefusedError)]
    assert found.count(200) + len(refused) == len(threads)
    assert found.count(200) > len(refused)


@pytest.mark.slow
def test_what_takes_longer_than_the_server_has_to_stop_is_told_so() -> None:
    with serving() as (process, port), ExitStack() as stack:
        client = connected(port, stack)
        client.sendall(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n")
        assert ask(port) == 200  # the other has been sent by now
        process.send_signal(signal.SIGTERM)
        assert b" 503 " in client.recv(4096).partition(b"\r\n")[0]
        _, said = process.communicate(timeout=LONG)
        assert "Traceback" not in said
