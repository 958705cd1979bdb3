"""Loads that are disturbed, with real servers: no item is lost, none is doubled, and nothing fails
in silence.

Whoever searches meanwhile gets what the old index or the new one gives, whole. BOC_KILLS is the
number of times that a loader is killed (default 3).
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boc import plugins
from boc.errors import BackendError
from boc.plugins import Engine
from boc.types import MODALITIES, Batch, Embeddings, Hit, Item, SearchRequest
from tests.fault_proxy import Faults, Proxy
from tests.helpers import Handler, boc, run, serving
from tests.oracles import random_units, same_matrix, write_features
from tests.servers import SecureServer, Server
from tests.servers.fixtures import kinds

pytestmark = pytest.mark.servers

KILLS = int(os.environ.get("BOC_KILLS", "3"))
BOC = [sys.executable, "-c", "from boc.cli import main; main()"]
SMALL = Faults(largest=60_000)
"""A gateway that takes little, so that a load is many requests."""
EACH = kinds("opensearch-3", "elasticsearch-9")
ON_EACH = pytest.mark.parametrize("server", EACH, indirect=True)
ON_OWN = pytest.mark.parametrize("kind", kinds("opensearch-3", "elasticsearch-9"))
K = 20


@dataclass
class Made:
    """A feature file, and the embedded index of it: what any other must hold."""

    path: Path
    index: Engine
    queries: Any
    answers: list[list[Hit]]


def make(folder: Path, seed: int, count: int) -> Made:
    """``count`` pictures with a caption each; ids up to what a server takes as such and beyond."""
    path = folder / "made.h5"
    batches = []
    for number, modality in enumerate(MODALITIES):
        ids = [f"{modality}/{i} é{'x' * (600 if i % 500 == 7 else 0)}" for i in range(count)]
        groups = [f"image/{i}" for i in range(count)]
        items = [
            Item(key, modality, f"no. {key[:20]} of {seed}", g)
            for key, g in zip(ids, groups, strict=True)
        ]
        batches.append(
            Batch(items, Embeddings(modality, random_units(2 * seed + number, count, 24))),
        )
    write_features(path, *batches, source=f"{seed:064x}")
    run("index", "made", path, "--code", "scalar:6", "--at", f"file:{folder}")
    index = plugins.backend(f"file:{folder}").open("made")
    queries = index.terms([f"image/{i} é" for i in range(8, 18)])
    return Made(path, index, queries, index.search(SearchRequest(queries, K)))


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("old"), 1, 40)


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("new"), 2, 1500)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower())[:40].strip("-")
    return f"faults-{name}-{os.getpid()}"


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [*BOC, *(str(a) for a in arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its status, and what it said. One that hangs is killed, and fails the test."""
    try:
        out, said = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"hangs; it said {process.communicate()[1]!r}") from None
    assert "Traceback" not in said, said
    return process.returncode, out + said


def fails(*arguments: object) -> str:
    """The one line that a command which cannot do its work ends with."""
    result = boc(*arguments)
    assert result.exit_code == 1, result.output
    line = result.stderr.splitlines()[-1]
    assert line.startswith("Error: "), result.output
    return line


def address(url: str, engine: str) -> str:
    return f"{'elastic' if engine == 'elasticsearch' else engine}+{url}"


def holds_exactly(at: str, name: str, made: Made) -> None:
    found = plugins.backend(at).open(name)
    wanted = made.index
    items = list(wanted.items())
    assert list(found.items()) == items
    assert (found.manifest.items, found.manifest.postings) == (
        wanted.manifest.items,
        wanted.manifest.postings,
    )
    ids = [item.id for item in items]
    assert same_matrix(found.terms(ids), wanted.terms(ids))
    assert np.array_equal(found.vectors(ids), wanted.vectors(ids))
    assert np.array_equal(found.document_frequencies(), wanted.document_frequencies())
    assert found.search(SearchRequest(made.queries, K)) == made.answers


@dataclass
class Watcher:
    """Searches ``name`` over and over, and keeps what it saw: the answers of ``old``, of ``new``,
    or neither's."""

    at: str
    name: str
    old: Made
    new: Made
    seen: list[str] = field(default_factory=list)

    def look(self) -> str:
        try:
            found = (
                plugins.backend(self.at).open(self.name).search(SearchRequest(self.new.queries, K))
            )
        except BackendError as error:
            return str(error)
        if found == self.new.answers:
            return "new"
        return (
            "old"
            if found == self.old.index.search(SearchRequest(self.new.queries, K))
            else f"neither: {found}"
        )

    @contextmanager
    def watching(self) -> Iterator[list[str]]:
        """The list of what is seen, one entry for each change."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(0.05):
                seen = self.look()
                if self.seen[-1:] != [seen]:
                    self.seen.append(seen)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield self.seen
        finally:
            stop.set()
            thread.join()


@dataclass
class Place:
    """A server behind a proxy, with the index ``old`` on it."""

    server: Any
    proxy: Proxy
    name: str
    options: str = ""

    @property
    def at(self) -> str:
        """Through the proxy."""
        return address(self.proxy.url, self.server.kind.engine) + self.options

    @property
    def direct(self) -> str:
        return address(self.server.url, self.server.kind.engine)

    def command(self, made: Made) -> tuple[object, ...]:
        """Put ``made`` in the place of what is there, through the proxy."""
        return ("index", self.name, made.path, "--code", "scalar:6", "--replace", "--at", self.at)

    def indexes(self) -> list[str]:
        """Names of the physical indexes."""
        return sorted(self.server.request("GET", f"{self.name}-*"))


@contextmanager
def placed(
    server: Any,
    name: str,
    old: Made,
    faults: Faults = SMALL,
    options: str = "",
) -> Iterator[Place]:
    with Proxy(server.url, faults) as proxy:
        place = Place(server, proxy, name, options)
        run("index", name, old.path, "--code", "scalar:6", "--at", place.direct)
        yield place
        with suppress(BackendError):
            plugins.backend(place.direct).remove(name)


@pytest.fixture
def place(server: Any, name: str, old: Made) -> Iterator[Place]:
    with placed(server, name, old) as found:
        yield found


@ON_EACH
def test_kill_of_a_loader(place: Place, old: Made, new: Made) -> None:
    """Before or after any of its requests, to the last: the next goes on, and searches see the old
    index or the new.

    Half of the kills are at requests that are no bulk: an index being begun, or finished.
    """
    rng = np.random.default_rng(KILLS)
    paths: list[str] = []
    place.proxy.before = lambda number, path: paths.append(path)
    run(*place.command(new))
    bulk = np.array(["/_bulk" in path for path in paths])
    watcher = Watcher(place.direct, place.name, old, new)
    kills = 0
    while kills < KILLS:
        run("index", place.name, old.path, "--code", "scalar:6", "--replace", "--at", place.direct)
        watcher.seen.clear()
        with watcher.watching() as seen:
            code = -1
            while code and kills < KILLS:
                number = int(rng.choice(np.flatnonzero(bulk == (rng.random() < 0.5)))) + 1
                code = load_and_kill(place, new, number, str(rng.choice(["before", "after"])))
                kills += code == -signal.SIGKILL
                assert code in (0, -signal.SIGKILL)
            if code:
                run(*place.command(new))
            while seen[-1:] != ["new"]:
                time.sleep(0.05)
        assert seen in (["new"], ["old", "new"])
        holds_exactly(place.direct, place.name, new)
        assert len(place.indexes()) <= 2


def load_and_kill(place: Place, made: Made, number: int, hook: str) -> int:
    """Kill a load at its ``number``th request, before or after the server does it; its status."""
    first = place.proxy.count["requests"]
    process = start(*place.command(made))

    def kill(at: int, path: str) -> None:
        if at - first >= number:
            process.kill()

    place.proxy.before = place.proxy.after = lambda number, path: None
    setattr(place.proxy, hook, kill)
    code, _ = finish(process)
    setattr(place.proxy, hook, lambda number, path: None)
    return code


@pytest.mark.parametrize(
    "faults",
    [
        Faults(largest=20_000),
        Faults(
            largest=60_000,
            busy_rows=1 / 3,
            busy=0.1,
            unavailable=0.1,
            lost=0.1,
            cut=0.1,
            slow=0.05,
            delay=0.02,
        ),
    ],
    ids=["largest", "all"],
)
@ON_EACH
def test_bulk_faults_are_repeated(place: Place, old: Made, new: Made, faults: Faults) -> None:
    place.proxy.faults = faults
    with Watcher(place.direct, place.name, old, new).watching() as seen:
        run(*place.command(new))
        while seen[-1:] != ["new"]:
            time.sleep(0.05)
    assert seen == ["old", "new"]
    holds_exactly(place.direct, place.name, new)
    for fault in ("busy_rows", "largest", "busy", "unavailable", "lost", "cut"):
        assert bool(place.proxy.count[fault]) == bool(getattr(faults, fault)), fault


@pytest.mark.parametrize(
    ("server", "fault"),
    [
        pytest.param(*each.values, fault, marks=each.marks)
        for each, fault in zip(EACH, ("lost", "cut"), strict=True)
    ],
    indirect=["server"],
)
def test_faults_of_all_requests(place: Place, old: Made, new: Made, fault: str) -> None:
    # An attempt has some thirty requests that are not repeated: about one attempt in five gets
    # through.
    place.proxy.faults = Faults(largest=60_000, everywhere=True, **{fault: 0.05})
    for _ in range(40):
        result = boc(*place.command(new))
        assert Watcher(place.direct, place.name, old, new).look() in ("old", "new")
        if result.exit_code == 0:
            break
        assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert result.exit_code == 0
    holds_exactly(place.direct, place.name, new)


def moment(
    place: Place,
    what: Callable[[], None],
    *,
    path: str = "/_bulk",
    number: int = 9,
) -> None:
    """Have something done, once, before the server hears of the ``number``th request to a path."""
    lock = threading.Lock()
    seen = 0

    def before(_: int, asked: str) -> None:
        nonlocal seen
        with lock:
            seen += path in asked
            if seen == number:
                seen += 1
                what()

    place.proxy.before = before


@ON_EACH
def test_kill_amid_other_documents(place: Place, new: Made) -> None:
    """Those that it is tested with, those that make it small, and the codec's arrays, one after the
    other."""
    processes: list[subprocess.Popen[str]] = []
    for path in ("/_search", "/boc:dummy", "/_mapping"):
        moment(place, lambda: processes[-1].kill(), path=path, number=1)
        processes.append(start(*place.command(new)))
        assert finish(processes[-1])[0] == -signal.SIGKILL
    run(*place.command(new))
    holds_exactly(place.direct, place.name, new)


@ON_OWN
def test_server_kill_amid_a_load(
    kind: str,
    own: Callable[[Server], Server],
    tmp_path: Path,
    name: str,
    old: Made,
    new: Made,
) -> None:
    """It comes back, and the load goes on by itself."""
    server = own(Server(kind, tmp_path))
    with placed(server, name, old) as place:
        killed = []

        def kill() -> None:
            server.kill()
            killed.append(place.proxy.count["bulk"])
            server.start()

        moment(place, kill, number=30)
        run(*place.command(new))
        assert killed
        assert place.proxy.count["bulk"] > killed[0]
        holds_exactly(place.direct, name, new)


@pytest.mark.parametrize("kind", kinds("opensearch-3"))
def test_server_kill_before_publication(
    kind: str,
    own: Callable[[Server], Server],
    tmp_path: Path,
    name: str,
    old: Made,
    new: Made,
) -> None:
    server = own(Server(kind, tmp_path))
    with placed(server, name, old) as place:
        for path in ("/_forcemerge", "/_settings", "/_aliases"):
            moment(place, server.kill, path=path, number=1)
            said = fails(*place.command(new))
            assert "Error: no answer from " in said
            server.start()
            assert Watcher(place.direct, name, old, new).look() == "old"
        run(*place.command(new))
        holds_exactly(place.direct, name, new)


@ON_EACH
def test_server_stays_away(server: Any, name: str, old: Made, new: Made) -> None:
    with placed(server, name, old, options="?patience=2") as place:
        moment(place, place.proxy.close)
        said = fails(*place.command(new))
        assert "Error: no row was taken for 2 seconds" in said
        assert "repeat the command to go on" in said
        assert Watcher(place.direct, name, old, new).look() == "old"
        place.proxy.open()
        before = place.proxy.count["bulk"]
        run(*place.command(new))
        assert place.proxy.count["bulk"] > before
        holds_exactly(place.direct, name, new)


def block(place: Place, value: bool | None) -> None:
    loading = next(index for index in place.indexes() if is_loading(place, index))
    place.server.request(
        "PUT",
        f"{loading}/_settings",
        {"index.blocks.read_only_allow_delete": value},
    )


def is_loading(place: Place, index: str) -> bool:
    state = place.server.request("GET", f"{index}/_mapping")[index]["mappings"]["_meta"]["server"][
        "state"
    ]
    return bool(state == "loading")


def be_away(place: Place) -> None:
    """Refuse connections and cut those that are open, for some seconds."""
    place.proxy.close()
    threading.Timer(3, place.proxy.open).start()


def fill_disk(place: Place) -> None:
    """Block the index, as servers do when a disk is nearly full, for some seconds."""
    block(place, True)
    threading.Timer(3, block, (place, None)).start()


@ON_EACH
@pytest.mark.parametrize("fault", [be_away, fill_disk])
def test_load_continues_after_a_fault(
    place: Place,
    new: Made,
    fault: Callable[[Place], None],
) -> None:
    moment(place, lambda: fault(place))
    run(*place.command(new))
    holds_exactly(place.direct, place.name, new)


@ON_EACH
def test_full_disk(server: Any, name: str, old: Made, new: Made) -> None:
    """Blocked before each request once rows are there: Elasticsearch clears the block when it sees
    room."""

    def fill(_: int, asked: str) -> None:
        loading = next((index for index in place.indexes() if is_loading(place, index)), None)
        if "/_bulk" in asked and loading is not None:
            told = place.server.request("GET", f"{loading}/_stats/indexing")
            if told["_all"]["primaries"]["indexing"]["index_total"] > 100:
                block(place, True)

    with placed(server, name, old, options="?patience=1") as place:
        place.proxy.before = fill
        said = fails(*place.command(new))
        assert "clear index.blocks.read_only_allow_delete of " in said
        assert Watcher(place.direct, name, old, new).look() == "old"
        said = fails(*place.command(new))  # still full
        assert "read_only_allow_delete" in said or "read-only-allow-delete" in said
        place.proxy.before = lambda *_: None
        block(place, None)
        run(*place.command(new))
        holds_exactly(place.direct, name, new)


@ON_EACH
def test_removal_amid_a_load(place: Place, old: Made, new: Made) -> None:
    """It is not made again by the server, with fields of its own guessing."""

    def remove() -> None:
        place.server.request(
            "DELETE",
            next(index for index in place.indexes() if is_loading(place, index)),
        )

    moment(place, remove)
    said = fails(*place.command(new))
    assert said
    assert len(place.indexes()) == 1
    assert Watcher(place.direct, place.name, old, new).look() == "old"
    run(*place.command(new))
    holds_exactly(place.direct, place.name, new)


def test_wrong_password(
    secure: SecureServer,
    name: str,
    old: Made,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = f"elastic+https://elastic@127.0.0.1:{secure.port}?ca_certs={secure.authority}"
    monkeypatch.setenv("BOC_PASSWORD", "not-the-one")
    for arguments in (
        ("index", name, old.path, "--code", "scalar:6"),
        ("search", name, "a dog"),
        ("info", name),
    ):
        said = fails(*arguments, "--at", at)
        assert "does not let you in" in said
        assert "not-the-one" not in said
    monkeypatch.setenv("BOC_PASSWORD", secure.password)
    run("index", name, old.path, "--code", "scalar:6", "--at", at)
    holds_exactly(at, name, old)


def test_expired_certificate(
    own: Callable[[Server], Server],
    tmp_path: Path,
    name: str,
    old: Made,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = own(SecureServer(tmp_path, expired=True))
    at = f"elastic+https://elastic@127.0.0.1:{server.port}?ca_certs={server.authority}"
    monkeypatch.setenv("BOC_PASSWORD", server.password)
    for arguments in (("index", name, old.path, "--code", "scalar:6"), ("search", name, "a dog")):
        said = fails(*arguments, "--at", at)
        assert "certificate" in said
        assert "expired" in said
        assert server.password not in said
    assert not [index for index in server.request("GET", "_all") if index.startswith(name)]


@ON_EACH
def test_server_of_the_other_kind(server: Any, name: str, old: Made) -> None:
    other = {"elasticsearch": "opensearch", "opensearch": "elasticsearch"}[server.kind.engine]
    at = address(server.url, other)
    for arguments in (
        ("index", name, old.path, "--code", "scalar:6"),
        ("search", name, "a dog"),
        ("info", name),
    ):
        said = fails(*arguments, "--at", at)
        assert f"is no {other}" in said.lower()
    assert not server.request("GET", f"{name}*")


class _Page(Handler):
    """No search engine: its answer to everything."""

    status = 200
    content = b"<html>It works!</html>"
    kind = "text/html"

    def _do(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.status)
        self.send_header("Content-Type", self.kind)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.content)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _do  # noqa: N815


ANCIENT = {"version": {"number": "6.8.23"}, "tagline": "You Know, for Search"}


@contextmanager
def page(status: int, kind: str, content: bytes) -> Iterator[str]:
    handler = type("Page", (_Page,), {"status": status, "kind": kind, "content": content})
    with serving(handler) as httpd:
        yield f"http://127.0.0.1:{httpd.server_port}"


@pytest.mark.parametrize("engine", ["elasticsearch", "opensearch"])
@pytest.mark.parametrize(
    "answer",
    [
        (200, "text/html", b"<html>It works!</html>"),
        (404, "text/html", b"<html>404 Not Found</html>"),
        (200, "application/json", b"{}"),
        (200, "application/json", b"[]"),
        (200, "application/json", b"{"),
        (200, "application/json", json.dumps(ANCIENT).encode()),
        (204, "text/plain", b""),
    ],
    ids=["page", "missing", "empty", "list", "broken", "ancient", "nothing"],
)
def test_no_search_engine(
    engine: str,
    answer: tuple[int, str, bytes],
    name: str,
    old: Made,
) -> None:
    with page(*answer) as url:
        for arguments in (
            ("index", name, old.path, "--code", "scalar:6"),
            ("search", name, "a dog"),
        ):
            said = fails(*arguments, "--at", address(url, engine))
            assert f"is no {engine}" in said.lower()


@pytest.mark.parametrize("engine", ["elasticsearch", "opensearch"])
def test_silent_port(engine: str, name: str, old: Made) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        said = fails(
            "index",
            name,
            old.path,
            "--code",
            "scalar:6",
            "--at",
            address(url, engine) + "?request_timeout=1",
        )
        assert "it took too long" in said


@ON_EACH
def test_change_of_server_amid_a_load(place: Place, old: Made, new: Made) -> None:
    with page(200, "application/json", b"{}") as url:
        moment(place, lambda: setattr(place.proxy, "upstream", url))
        said = fails(*place.command(new))
        assert "is no " in said or "is this a server of the kind" in said
    place.proxy.upstream = place.server.url
    run(*place.command(new))
    holds_exactly(place.direct, place.name, new)
