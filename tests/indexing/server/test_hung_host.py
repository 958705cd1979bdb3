"""Searches over several hosts, of which one hangs: repeated on the others. Writes are sent once."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from http.server import ThreadingHTTPServer
from threading import Barrier, Event, Thread
from typing import Any

import pytest

from indexing import elastic, opensearch
from indexing.server.transport import Transport, UnreachableError
from tests.helpers import Handler, send_json

CONNECT: dict[str, Any] = {"elastic": elastic.connect, "opensearch": opensearch.connect}


class Host(ThreadingHTTPServer):
    """A host that answers every search by its body, waiting first until ``ready`` is set, at most
    ``late`` seconds."""

    daemon_threads = True
    # Of more connections that wait, the system drops some, which come again seconds later.
    request_queue_size = 100

    def __init__(self, kind: str) -> None:
        self.headers = {"X-elastic-product": "Elasticsearch"} if kind == "elastic" else {}
        self.ready: Any = Event()  # or a barrier
        self.late = 1.0
        self.paths = list[str]()
        self.ready.set()
        super().__init__(("127.0.0.1", 0), Answer)


class Answer(Handler):
    """Says that it is the product that is asked for."""

    def do_GET(self) -> None:  # noqa: N802
        version = {"distribution": "opensearch", "number": "3.5.0"}
        send_json(self, {"version": version}, self.server.headers)

    def do_POST(self) -> None:  # noqa: N802
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.paths.append(self.path)
        self.server.ready.wait(self.server.late)
        send_json(self, {"said": body}, self.server.headers)


@pytest.fixture
def hosts(kind: str) -> Iterator[list[Host]]:
    with ExitStack() as stack:
        made = [stack.enter_context(Host(kind)) for _ in range(2)]
        for host in made:
            Thread(
                target=host.serve_forever,
                kwargs={"poll_interval": 0.01},
                daemon=True,
            ).start()
            stack.callback(host.shutdown)
            stack.callback(host.ready.set)
        yield made


@pytest.fixture
def hung() -> Iterator[int]:
    """The port of a host that takes connections and never answers, as a stopped process does."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        yield int(listening.getsockname()[1])


def connected(kind: str, *ports: int, options: str) -> Transport:
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return CONNECT[kind](f"{kind}+http://{hosts}?{options}").transport


def hang_all(transport: Transport, hosts: list[Host]) -> None:
    """Let all hosts hang from the second request on; the first one tells the client about the
    server."""
    transport.search("/a/_search", {"known": 1})
    for host in hosts:
        host.paths.clear()
        host.ready.clear()


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONNECT)
def test_search_skips_a_hung_host(
    kind: str,
    hosts: list[Host],
    hung: int,
):
    options = "search_timeout=0.3&request_timeout=20"
    transport = connected(
        kind,
        hosts[0].server_port,
        hung,
        hosts[1].server_port,
        options=options,
    )
    for number in range(6):
        assert transport.search(
            "/a/_search",
            {"number": number},
        ) == {"said": {"number": number}}


@pytest.mark.parametrize("kind", CONNECT)
def test_threads_do_not_wait_for_each_other(kind: str, hosts: list[Host]):
    transport = connected(kind, hosts[0].server_port, options="request_timeout=60")
    crowd = 48
    transport.search("/a/_search", {})
    # The first host answers when all have asked.
    hosts[0].ready = Barrier(crowd)
    hosts[0].late = 30.0
    with ThreadPoolExecutor(crowd) as pool:
        bodies = [{"number": number} for number in range(crowd)]
        answers = list(
            pool.map(
                partial(transport.search, "/a/_search"),
                bodies,
            ),
        )
    assert answers == [{"said": body} for body in bodies]


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONNECT)
def test_search_of_late_hosts(kind: str, hosts: list[Host]):
    ports = [host.server_port for host in hosts]
    transport = connected(kind, *ports, options="search_timeout=0.1&request_timeout=20")
    hang_all(transport, hosts)
    assert transport.search(
        "/a/_search",
        {"slow": 1},
    ) == {"said": {"slow": 1}}
    # Each host is asked twice before one of them has its time.
    assert all(len(host.paths) >= 2 for host in hosts)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONNECT)
def test_write_is_sent_once(kind: str, hosts: list[Host]):
    ports = [host.server_port for host in hosts]
    transport = connected(kind, *ports, options="search_timeout=1&request_timeout=3")
    for host in hosts:
        host.late = 60
    hang_all(transport, hosts)
    with pytest.raises(UnreachableError) as raised:
        transport.request("POST", "/a/_bulk", {"write": 1})
    assert raised.value.late
    assert sum(len(host.paths) for host in hosts) == 1
