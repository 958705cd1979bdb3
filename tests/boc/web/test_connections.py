"""A server that stops answers what it has; too many connections and bodies are told so, and memory
is returned."""

import asyncio
import http.client
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="the page needs the extra web")

from boc.web.http.limits import BodyLimit
from boc.web.settings import Settings

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
    headers = [(b"content-length", b"5")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello"})

sock = server.listen("127.0.0.1", 0)
print(sock.getsockname()[1], flush=True)
server.run(app, sock)
"""
LONG = 300.0


@contextmanager
def serving(files: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(files)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
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


def test_connection_limit():
    with serving(files=64) as (_, port):  # a limit of 32 connections
        others = [
            socket.create_connection(
                ("127.0.0.1", port),
                timeout=LONG,
            )
            for _ in range(40)
        ]
        assert ask(port) == 503
        for each in others:
            each.close()
        while ask(port) != 200:
            pass


def test_a_server_says_how_many_files_it_needs():
    with serving(files=32) as (process, _):
        assert process.wait(LONG)
        assert "ulimit -n" in process.stderr.read()


def test_graceful_shutdown():
    statuses = []
    with serving() as (process, port):
        client = threading.Thread(
            target=lambda: statuses.append(ask(port, "/slow")),
        )
        client.start()
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        client.join()
        process.wait(LONG)
        assert "Traceback" not in process.stderr.read()
    assert statuses == [200]


def test_bodies_in_memory_are_limited():
    settings = Settings("photos", "file:nowhere", upload=1000)
    statuses = []

    async def all_at_once():
        gate = asyncio.Event()
        arrived = asyncio.Semaphore(0)

        async def app(scope, receive, send):
            arrived.release()
            await gate.wait()
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [],
                },
            )

        limit = BodyLimit(app, settings)

        async def post(*headers):
            async def receive():
                return {"type": "http.request", "body": b"x"}

            async def send(message):
                if message["type"] == "http.response.start":
                    statuses.append(message["status"])

            await limit(
                {
                    "type": "http",
                    "method": "POST",
                    "headers": list(headers),
                },
                receive,
                send,
            )

        largest = (b"content-length", str(1000 + 65_536).encode())
        waiting = [asyncio.create_task(post(largest)) for _ in range(16)]
        for _ in waiting:
            await arrived.acquire()
        for headers in (
            [largest],
            [(b"content-length", b"1")],
            [(b"transfer-encoding", b"chunked")],
        ):
            await post(*headers)
        assert statuses == [429, 429, 429]
        gate.set()
        await asyncio.gather(*waiting)
        await post(largest)

    with ThreadPoolExecutor(1) as pool:  # this thread may have the event loop of a browser
        pool.submit(asyncio.run, all_at_once()).result()
    assert statuses[3:] == [200] * 17


MEMORY = """
from pathlib import Path
from boc.web.http.server import return_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

return_memory()
del [bytearray(b"x") * (24 << 20)][:]
before = resident()
pairs = [(bytearray(b"x") * (16 << 20), bytearray(b"x") * 100_000) for _ in range(20)]
pins = [pin for _, pin in pairs]
del pairs
print(resident() - before)
"""


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(),
    reason="where Linux says what memory is resident",
)
def test_memory_of_pictures_is_returned():
    left = subprocess.run(
        [sys.executable, "-c", MEMORY],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert int(left) < 32
