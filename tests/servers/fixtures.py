"""Fixtures that hand out servers, and the parameters that run a test against each kind.

Tests never fetch: ``make test`` and ``make test-servers`` do that first. What is not there skips
its tests, or fails them when BOC_SERVERS_ALL is set. ``opensearch-3`` is marked ``slow``, every
other parameter ``servers``.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from .catalogue import KINDS, Kind
from .cluster import Cluster
from .errors import UnavailableError
from .fetch import place
from .security import SecureServer
from .server import Server, ask

Node = TypeVar("Node", Server, Cluster)

LIGHT = "opensearch-3"
SHARED = (LIGHT, "opensearch-2", "elasticsearch-9", "elasticsearch-8")
FIELDS = {
    **dict.fromkeys(("opensearch-3", "opensearch-2"), ("counted_text", "text", "rank_features")),
    "elasticsearch-9": ("text", "sparse_vector"),
    "elasticsearch-8": ("text",),
}
"""Kind -> the field types in which it holds codes; a full distribution may have more."""
MEMORY = Path("/dev/shm")
ROOM = 1 << 29  # several times what they were seen to take


def address(server: Any, **options: object) -> str:
    """Return the address of a server, with options of it."""
    scheme = {"elasticsearch": "elastic", "opensearch": "opensearch"}[server.kind.engine]
    return f"{scheme}+{server.url}" + "".join(
        f"{'&' if i else '?'}{n}={v}" for i, (n, v) in enumerate(options.items())
    )


def kinds(*names: str) -> list[Any]:
    """Parameters of the fixture ``server``: ``parametrize("server", kinds("elasticsearch-9"),
    indirect=True)``."""
    return [
        pytest.param(name, marks=pytest.mark.slow if name == LIGHT else pytest.mark.servers)
        for name in names
    ]


def with_fields(*names: str) -> pytest.MarkDecorator:
    """Run a test with the fixture ``server`` and each ``field`` of these kinds."""
    cases = [
        pytest.param(name, field, id=f"{name}-{field}", marks=each.marks)
        for name, each in zip(names, kinds(*names), strict=True)
        for field in FIELDS[name]
    ]
    return pytest.mark.parametrize(("server", "field"), cases, indirect=["server"])


@dataclass(frozen=True)
class ForeignServer:
    """A server that somebody else runs."""

    kind: Kind
    url: str

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Return the parsed JSON answer of one request."""
        return ask(self.url, method, path, body)


def foreign_server(kind: Kind) -> ForeignServer | None:
    """Return the first address in BOC_TEST_ELASTICSEARCH or BOC_TEST_OPENSEARCH where a version of
    ``kind`` answers."""
    variable = f"BOC_TEST_{kind.engine.upper()}"
    for url in filter(None, os.environ.get(variable, "").split(",")):
        try:
            nodes = ask(url.strip(), "GET", "_nodes/_local?filter_path=nodes.*.version")["nodes"]
        except OSError as error:
            raise UnavailableError(
                f"{variable} names {url}, which does not answer: {error}",
            ) from error
        version = next(iter(nodes.values()))["version"]
        if f"{version}.".startswith(kind.name.split("-")[1] + "."):
            return ForeignServer(kind, url.strip())
    return None


def check_fetched(kind: Kind) -> None:
    """``UnavailableError`` unless ``kind`` lies in the cache."""
    if not place(kind).exists():
        raise UnavailableError(
            f"{kind.name} is not here; python -m tests.servers fetch {kind.name} fetches it "
            f"({kind.megabytes} MB), make test-servers all kinds",
        )


@contextmanager
def _or_skip() -> Iterator[None]:
    try:
        yield
    except UnavailableError as missing:
        if os.environ.get("BOC_SERVERS_ALL"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


@contextmanager
def _folder(name: str) -> Iterator[Path]:
    """Yield a folder of a server, gone afterwards: in memory where there is room for it.

    An index that is made or removed is some ten calls of fsync, and the tests make hundreds of
    them.
    """
    room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM
    with tempfile.TemporaryDirectory(prefix=f"boc-{name}-", dir=MEMORY if room else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="session", params=kinds(*SHARED))
def server(request) -> Iterator[ForeignServer | Server]:
    """Yield a server to ask, shared by all tests of the session; pytest runs one kind after the
    other."""
    with _folder(request.param) as folder, ExitStack() as stack:
        kind = KINDS[request.param]
        with _or_skip():
            node = foreign_server(kind)
            if node is None:
                check_fetched(kind)
                node = stack.enter_context(Server(kind.name, folder)).start()
        yield node


@pytest.fixture(scope="session")
def secure() -> Iterator[SecureServer]:
    """An Elasticsearch with TLS and users, shared by all tests of the session: each takes names of
    its own."""
    with _folder("secure") as folder, SecureServer(folder) as node:
        with _or_skip():
            check_fetched(node.kind)
            node.start()
        yield node


def shared_server(item: pytest.Item) -> str | None:
    """Return the kind of the shared server that a test asks, ``secure`` for that fixture; None if
    it asks none."""
    if "secure" in getattr(item, "fixturenames", ()):
        return "secure"
    return item.callspec.params.get("server") if hasattr(item, "callspec") else None


@pytest.fixture
def own() -> Iterator[Callable[[Node], Node]]:
    """Starts a test's own server, to be killed and misconfigured: ``own(Server("elasticsearch-9",
    tmp_path))``."""
    with ExitStack() as stack:

        def start(node):
            with _or_skip():
                check_fetched(node.kind)
                node.start()
            return stack.enter_context(node)

        yield start
