"""What stands between boc and a cluster: proxies, prefixes of paths, headers of gateways,
certificates of clients."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import trustme

from boc.errors import BackendError
from boc.plugins import backend
from indexing.server.transport import UnreachableError
from tests.helpers import Handler, send_json, serving

NAME = "search.example.org"


class Cluster(Handler):
    """Answers that it is what is asked for, and keeps what it got."""

    def do_GET(self) -> None:  # noqa: N802
        self.server.got.append(
            (self.path, {name.lower(): value for name, value in self.headers.items()}),
        )
        send_json(
            self,
            {"version": {"distribution": "opensearch", "number": "3"}},
            self.server.product,
        )


class Proxy(Handler):
    """A forward proxy, whose names all stand for one port of this machine."""

    protocol_version = "HTTP/1.0"

    def do_CONNECT(self) -> None:  # noqa: N802
        self.send_response(200)
        self.end_headers()
        self._join(b"")

    def do_GET(self) -> None:  # noqa: N802
        path = "/" + self.path.split("/", 3)[3]
        head = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        self._join(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())

    def _join(self, first: bytes) -> None:
        self.server.got.append((self.command, self.path))
        self.close_connection = True
        with socket.create_connection(("127.0.0.1", self.server.target)) as there:
            there.sendall(first)
            Thread(target=self._copy, args=(self.connection, there), daemon=True).start()
            self._copy(there, self.connection)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@pytest.fixture(params=["elastic", "opensearch"])
def kind(request) -> str:
    return str(request.param)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def cluster(stack: ExitStack, kind: str, tls: ssl.SSLContext | None = None) -> Any:
    product = {"X-elastic-product": "Elasticsearch"} if kind == "elastic" else {}
    server = stack.enter_context(serving(Cluster, got=[], product=product))
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    return server


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    made = trustme.CA()
    made.cert_pem.write_to_path(tmp_path / "authority.pem")
    return made


def tls_of(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


def ask(kind: str, rest: str) -> Any:
    transport = backend(f"{kind}+{rest}").transport  # type: ignore[attr-defined]
    return transport.request("GET", "/photos")


def test_proxies(
    stack: ExitStack,
    kind: str,
    authority: trustme.CA,
    tmp_path: Path,
    monkeypatch,
):
    plain = cluster(stack, kind)
    trusted = f"ca_certs={tmp_path / 'authority.pem'}"
    secure = cluster(stack, kind, tls_of(authority, NAME))
    for server, scheme, options in ((plain, "http", ""), (secure, "https", trusted)):
        proxy = stack.enter_context(serving(Proxy, got=[], target=server.server_port))
        monkeypatch.setenv(f"{scheme.upper()}_PROXY", f"http://127.0.0.1:{proxy.server_port}")
        assert "version" in ask(kind, f"{scheme}://{NAME}:9200/es?{options}")
        assert server.got[-1][0].endswith("/es/photos")
        assert {command for command, _ in proxy.got} == {"GET" if scheme == "http" else "CONNECT"}
    with pytest.raises(UnreachableError, match="its certificate is not trusted"):
        ask(kind, f"https://{NAME}:9200")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert "version" in ask(kind, f"http://127.0.0.1:{plain.server_port}"), (
        "no proxy for this machine"
    )


def test_headers_of_gateways(stack: ExitStack, kind: str, monkeypatch):
    server = cluster(stack, kind)
    monkeypatch.setenv("BOC_API_KEY", "key")
    for lines, authorization in (
        ("X-Tenant: a b", "ApiKey key"),
        ("X-Tenant: a b\nAuthorization: Bearer c", "Bearer c"),
    ):
        monkeypatch.setenv("BOC_HEADERS", lines)
        ask(kind, f"http://127.0.0.1:{server.server_port}")
        headers = server.got[-1][1]
        assert (headers["x-tenant"], headers["authorization"]) == ("a b", authorization)
        assert headers["accept"] == "application/json", (
            "no form that one generation of servers refuses"
        )
    monkeypatch.setenv("BOC_HEADERS", "secret value")
    with pytest.raises(BackendError, match="a line that is not a header") as refused:
        ask(kind, "http://one")
    assert "secret" not in str(refused.value)


def test_certificates_of_clients(
    stack: ExitStack,
    kind: str,
    authority: trustme.CA,
    tmp_path: Path,
):
    context = tls_of(authority, "127.0.0.1")
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    server = cluster(stack, kind, context)
    mine = authority.issue_cert("me@example.org")
    mine.private_key_pem.write_to_path(tmp_path / "my.key")
    mine.cert_chain_pems[0].write_to_path(tmp_path / "my.pem")
    at = f"https://127.0.0.1:{server.server_port}?ca_certs={tmp_path / 'authority.pem'}"
    with pytest.raises(UnreachableError):
        ask(kind, at)
    assert "version" in ask(
        kind,
        f"{at}&client_cert={tmp_path / 'my.pem'}&client_key={tmp_path / 'my.key'}",
    )
    with pytest.raises(BackendError, match="client_key in the address needs client_cert"):
        ask(kind, f"https://one?client_key={tmp_path / 'my.key'}")
