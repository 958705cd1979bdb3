"""A server that stops answers what it has; too many connections are told so."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("uvicorn", reason="the page needs the extra web")

pytestmark = pytest.mark.slow

SERVER = """
import asyncio, resource, sys
from boc.web.http import server
if int(sys.argv[1]):
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)

async def app(scope, receive, send):
    assert scope["type"] == "http"
    if scope["path"] == "/slow":
        print("begun", flush=True)
        await asyncio.sleep(1)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})

sock = server.listen("127.0.0.1", 0)
print(sock.getsockname()[1], flush=True)
server.run(app, sock)
"""
LONG = 300.0


@contextmanager
def serving(files: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-c", SERVER, str(files)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def ask(port: int, path: str = "/") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def test_connection_limit() -> None:
    with serving(files=64) as (_, port):  # a limit of 32 connections
        others = [socket.create_connection(("127.0.0.1", port), timeout=LONG) for _ in range(40)]
        assert ask(port) == 503
        for each in others:
            each.close()
        while ask(port) != 200:
            pass


def test_graceful_shutdown() -> None:
    statuses: list[int] = []
    with serving() as (process, port):
        client = threading.Thread(target=lambda: statuses.append(ask(port, "/slow")))
        client.start()
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        client.join()
        process.wait(LONG)
        assert "Traceback" not in process.stderr.read()
    assert statuses == [200]
