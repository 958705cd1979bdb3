"""`boc serve` as a process of its own, spoken to over HTTP."""

import http.client
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import boc, run
from tests.processes import start

pytest.importorskip("fastapi", reason="the page needs the extra web")

pytestmark = pytest.mark.slow

PATIENCE = 120.0


@contextmanager
def serving(
    log: Path,
    *arguments: object,
    **environment: str,
) -> Iterator[tuple[BaseProcess, int, list[str]]]:
    """The process, its port, and what it said on stderr, the file ``log``, until it was there."""
    output = log.with_suffix(".out")
    process = start(
        ["serve", *arguments, "--port", 0],
        output,
        log,
        XDG_CACHE_HOME=str(log.parent / "cache"),
        **environment,
    )
    try:
        until(
            lambda: (
                not process.is_alive() or (log.exists() and " is at http://" in log.read_text())
            ),
        )
        said, _, rest = log.read_text().partition(" is at ")
        port = int(rest.split("/")[2].rpartition(":")[2])
        yield process, port, (said + " is at " + rest.split()[0]).splitlines()
        assert output.read_text() == ""
    finally:
        process.kill()
        process.join()


def get(port: int, path: str, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        kind = answer.getheader("content-type", "")
        return answer.status, json.loads(body) if kind.startswith("application/json") else body
    finally:
        connection.close()


def until(check: Callable[[], bool]) -> None:
    while not check():
        time.sleep(0.2)


def test_server_life(library: Path, tmp_path: Path):
    shutil.copytree(library / "index", tmp_path / "index")
    at = f"file:{tmp_path / 'index'}"
    log = tmp_path / "log"
    with serving(log, "photos", "--at", at) as (process, port, said):
        assert said[0].startswith("loading the encoder tern:")
        assert said[-1] == f"photos is at http://127.0.0.1:{port}/"
        assert get(port, "/api/info")[1]["items"] == {"image": 40, "text": 80}
        status, found = get(port, "/api/search?q=a%20red%20box&k=5")
        assert status == 200
        assert len(found["hits"]) == 5
        assert get(port, f"/{found['hits'][0]['thumb']}")[1].startswith(b"\xff\xd8")
        assert b"<title>photos" in get(port, "/")[1]
        shutil.rmtree(tmp_path / "index" / "photos")
        until(lambda: get(port, "/api/search?q=a%20red%20box")[0] == 503)
        assert "no index 'photos'" in get(port, "/api/info")[1]["error"]
        run(f"index photos {library}/photos.h5 --at {at}")
        until(lambda: get(port, "/api/search?q=a%20red%20box&k=5")[0] == 200)
        assert (
            get(
                port,
                "/api/search?q=a%20red%20box&k=5",
            )[1]["hits"]
            == found["hits"]
        )
        end(process, signal.SIGINT)
        assert process.exitcode in (0, 128 + signal.SIGINT)
        assert "Traceback" not in log.read_text()


def test_token_from_the_environment(library: Path, tmp_path: Path):
    at = ("--at", f"file:{library / 'index'}")
    with serving(
        tmp_path / "one",
        "photos",
        *at,
        BOC_TOKEN="sesame",
    ) as (_, port, said):
        assert get(port, "/api/info")[0] == 401
        assert get(port, "/api/info", Authorization="Bearer sesame")[0] == 200
        assert "sesame" not in "".join(said)
    with serving(
        tmp_path / "two",
        "photos",
        *at,
        "--host",
        "0.0.0.0",
    ) as (_, port, said):
        assert any("BOC_TOKEN" in line for line in said)
        assert get(port, "/api/info")[0] == 200
        assert get(port, "/api/info", Host="evil.example")[0] == 400


def test_a_port_that_is_taken_is_named(library: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = boc(f"serve photos --at file:{library}/index --port {port}")
    assert result.exit_code == 1
    assert f"port {port} on 127.0.0.1 is already in use" in result.output
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nothing", "no index 'nothing'"),
        ("photos --host no.such.host.invalid", "not an address"),
    ],
)
def test_serve_refuses_in_one_line(library: Path, arguments: str, message: str):
    result = boc(
        "serve",
        *arguments.split(),
        "--at",
        f"file:{library / 'index'}",
        "--port",
        0,
    )
    assert result.exit_code == 1
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_without_the_extra_it_says_how_to_get_it(
    monkeypatch,
    library: Path,
):
    for name in [name for name in sys.modules if name.startswith("boc.web")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    result = boc(f"serve photos --at file:{library}/index")
    assert result.exit_code == 1
    assert (
        result.output.strip()
        == "Error: boc serve needs the package fastapi; install it with: pip install 'boc[web]'"
    )


def end(process: BaseProcess, number: int) -> None:
    """Send a signal, and wait."""
    os.kill(process.pid, number)
    process.join(PATIENCE)
