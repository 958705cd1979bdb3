"""Connections to a host are kept, and replaced where the host has closed them."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import sleep
from typing import Any

import pytest

from boc.plugins import backend
from indexing.server.transport import Transport, UnreachableError
from tests.helpers import Handler, send_json, serving

PRODUCT = {"X-elastic-product": "Elasticsearch"}


class Host(Handler):
    """Counts connections, and closes each after as many answers as ``server.most`` says."""

    def setup(self) -> None:
        super().setup()
        self.answered = 0
        self.server.connections.append(self.connection)

    def do_POST(self) -> None:  # noqa: N802
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.paths.append(self.path)
        self.answered += 1
        if b"late" in body:
            self.server.late.recv(1)
        # The client is not told.
        self.close_connection = self.answered >= self.server.most
        send_json(self, {"body": body.decode()}, PRODUCT)


@pytest.fixture
def host() -> Iterator[Any]:
    ours, theirs = socket.socketpair()
    with ours, theirs, serving(Host, connections=[], paths=[], most=1000, late=theirs) as server:
        yield server
        ours.sendall(b"x" * 9)


def connect(host: Any, options: str = "") -> Transport:
    found = backend(f"elastic+http://127.0.0.1:{host.server_port}{options}")
    return found.transport


def test_one_connection_for_all_requests(host: Any):
    transport = connect(host)
    for number in range(9):
        answer = transport.search("/_search", {"n": number})
        assert answer == {"body": f'{{"n":{number}}}'}
    assert len(host.connections) == 1


def test_names_in_any_letters(host: Any):
    connect(host, "/es").search("/büro a,%2B*/_search?x=1&y=", {})
    assert host.paths == ["/es/b%C3%BCro%20a,%2B*/_search?x=1&y="]


def test_closed_connections_are_replaced(host: Any):
    host.most = 2
    transport = connect(host)
    for number in range(9):
        assert transport.search("/_search", {})
        # Wait until the host has closed it.
        while number % 2 and host.connections[-1].fileno() >= 0:
            sleep(0.01)
    assert len(host.connections) == 5


def test_threads_have_connections_of_their_own(host: Any):
    transport = connect(host)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: transport.search("/", {"n": n}), range(200)))
    assert answers == [{"body": f'{{"n":{n}}}'} for n in range(200)]
    assert len(host.connections) <= 8


def test_late_answers_are_not_taken_for_others(host: Any):
    transport = connect(host, "?request_timeout=0.3")
    with pytest.raises(UnreachableError, match="it took too long"):
        transport.search("/", {"late": 1})
    assert transport.search("/", {"n": 2}) == {"body": '{"n":2}'}
