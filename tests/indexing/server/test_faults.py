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
from dataclasses import dataclass
from functools import partial
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
from tests.servers import Server
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
CODE = ("--code", "scalar:6")


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
        items = []
        for i in range(count):
            key = f"{modality}/{i} é{'x' * (600 if i % 500 == 7 else 0)}"
            items.append(Item(key, modality, f"no. {key[:20]} of {seed}", f"image/{i}"))
        vectors = random_units(2 * seed + number, count, 24)
        batches.append(Batch(items, Embeddings(modality, vectors)))
    write_features(path, *batches, source=f"{seed:064x}")
    run(f"index made {path}", *CODE, "--at", f"file:{folder}")
    index = plugins.backend(f"file:{folder}").open("made")
    queries = index.terms([f"image/{i} é" for i in range(8, 18)])
    return Made(
        path,
        index,
        queries,
        index.search(SearchRequest(queries, K)),
    )


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> Made:
    return make(tmp_path_factory.mktemp("old"), 1, 40)


@pytest.fixture(scope="module")
def new(tmp_path_factory) -> Made:
    return make(tmp_path_factory.mktemp("new"), 2, 1500)


@pytest.fixture
def name(request) -> str:
    name = re.sub(
        "[^a-z0-9]+",
        "-",
        request.node.name.lower(),
    )[:40].strip("-")
    return f"faults-{name}-{os.getpid()}"


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [*BOC, *(str(a) for a in arguments)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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


@dataclass
class Place:
    """A server behind a proxy, with the index ``old`` on it, to be replaced by ``new``."""

    server: Any
    proxy: Proxy
    name: str
    old: Made
    new: Made
    options: str = ""

    @property
    def at(self) -> str:
        """Through the proxy."""
        return (
            address(
                self.proxy.url,
                self.server.kind.engine,
            )
            + self.options
        )

    @property
    def direct(self) -> str:
        return address(self.server.url, self.server.kind.engine)

    def load_old(self) -> None:
        """Around the proxy."""
        run(f"index {self.name}", self.old.path, *CODE, "--replace", "--at", self.direct)

    def command(self, *options: str) -> tuple[object, ...]:
        """Put ``new`` in the place of ``old``, through the proxy."""
        return ("index", self.name, self.new.path, *CODE, "--replace", "--at", self.at, *options)

    def fails(self) -> str:
        """Return the last line of a load that fails; searches see the old index."""
        said = fails(*self.command())
        assert self.look() == "old"
        return said

    def finishes(self) -> None:
        """A load ends well, and the index is the new one."""
        run(*self.command())
        self.holds(self.new)

    def indexes(self) -> list[str]:
        """Names of the physical indexes."""
        return sorted(self.server.request("GET", f"{self.name}-*"))

    def loading(self) -> str:
        """Return the name of the index that is being loaded; "" if there is none."""
        for index in self.indexes():
            entry = self.server.request("GET", f"{index}/_mapping")[index]
            if entry["mappings"]["_meta"]["server"]["state"] == "loading":
                return index
        return ""

    def block(self, value: bool | None) -> None:
        settings = {"index.blocks.read_only_allow_delete": value}
        self.server.request("PUT", f"{self.loading()}/_settings", settings)

    def moment(
        self,
        what: Callable[[], object],
        *,
        path: str = "/_bulk",
        number: int = 9,
    ) -> None:
        """Have something done, once, before the server hears of the ``number``th request to a
        path."""
        lock = threading.Lock()
        seen = 0

        def before(_, requested):
            nonlocal seen
            with lock:
                seen += path in requested
                if seen == number:
                    seen += 1
                    what()

        self.proxy.before = before

    def holds(self, made: Made) -> None:
        """The index has the items, codes, vectors and hits of ``made``."""
        index = plugins.backend(self.direct).open(self.name)
        wanted = made.index
        items = list(wanted.items())
        ids = [item.id for item in items]
        assert list(index.items()) == items
        assert index.manifest.items == wanted.manifest.items
        assert index.manifest.postings == wanted.manifest.postings
        assert same_matrix(index.terms(ids), wanted.terms(ids))
        assert np.array_equal(
            index.vectors(ids),
            wanted.vectors(ids),
        )
        assert np.array_equal(index.document_frequencies(), wanted.document_frequencies())
        assert index.search(SearchRequest(made.queries, K)) == made.answers

    def look(self) -> str:
        """Return whose answers a search has: those of ``old``, of ``new``, or neither's."""
        request = SearchRequest(self.new.queries, K)
        try:
            answers = plugins.backend(self.direct).open(self.name).search(request)
        except BackendError as error:
            return str(error)
        for name, made in (("new", self.new), ("old", self.old)):
            if answers == made.index.search(request):
                return name
        return f"neither: {answers}"

    @contextmanager
    def watching(self) -> Iterator[list[str]]:
        """Search over and over until the new index is seen. Yields the list of what is seen, one
        entry for each change."""
        seen = []
        stop = threading.Event()

        def watch():
            while not stop.wait(0.05):
                answer = self.look()
                if seen[-1:] != [answer]:
                    seen.append(answer)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield seen
            while seen[-1:] != ["new"]:
                time.sleep(0.05)
        finally:
            stop.set()
            thread.join()


@contextmanager
def placed(
    server: Any,
    name: str,
    old: Made,
    new: Made,
    options: str = "",
) -> Iterator[Place]:
    with Proxy(server.url, SMALL) as proxy:
        place = Place(server, proxy, name, old, new, options)
        place.load_old()
        yield place
        with suppress(BackendError):
            plugins.backend(place.direct).remove(name)


@pytest.fixture
def place(
    server: Any,
    name: str,
    old: Made,
    new: Made,
) -> Iterator[Place]:
    with placed(server, name, old, new) as place:
        yield place


@pytest.fixture
def own_place(
    kind: str,
    own: Callable[[Server], Server],
    tmp_path: Path,
    name: str,
    old: Made,
    new: Made,
) -> Iterator[Place]:
    """A place on a server of its own, which the test may kill."""
    with placed(
        own(Server(kind, tmp_path)),
        name,
        old,
        new,
    ) as place:
        yield place


@ON_EACH
def test_kill_of_a_loader(place: Place):
    """Before or after any of its requests, to the last: the next goes on, and searches see the old
    index or the new.

    Half of the kills are at requests that are no bulk: an index being begun, or finished.
    """
    rng = np.random.default_rng(KILLS)
    paths = []
    place.proxy.before = lambda number, path: paths.append(path)
    run(*place.command())
    bulk = np.array(["/_bulk" in path for path in paths])
    kills = 0
    while kills < KILLS:
        place.load_old()
        with place.watching() as seen:
            code = -1
            while code and kills < KILLS:
                number = int(rng.choice(np.flatnonzero(bulk == (rng.random() < 0.5)))) + 1
                code = load_and_kill(
                    place,
                    number,
                    str(rng.choice(["before", "after"])),
                )
                kills += code == -signal.SIGKILL
                assert code in (0, -signal.SIGKILL)
            if code:
                run(*place.command())
        assert seen in (["new"], ["old", "new"])
        place.holds(place.new)
        assert len(place.indexes()) <= 2


def load_and_kill(place: Place, number: int, hook: str) -> int:
    """Kill a load at its ``number``th request, before or after the server does it; its status."""
    first = place.proxy.count["requests"]
    process = start(*place.command())

    def kill(at, path):
        if at - first >= number:
            process.kill()

    place.proxy.before = place.proxy.after = lambda number, path: None
    setattr(place.proxy, hook, kill)
    code, _ = finish(process)
    setattr(place.proxy, hook, lambda number, path: None)
    return code


ALL = Faults(
    largest=60_000,
    busy_rows=1 / 3,
    busy=0.1,
    unavailable=0.1,
    lost=0.1,
    cut=0.1,
    slow=0.05,
    delay=0.02,
)


@pytest.mark.parametrize(
    "faults",
    [Faults(largest=20_000), ALL],
    ids=["largest", "all"],
)
@ON_EACH
def test_bulk_faults_are_repeated(place: Place, faults: Faults):
    place.proxy.faults = faults
    with place.watching() as seen:
        run(*place.command())
    assert seen == ["old", "new"]
    place.holds(place.new)
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
def test_faults_of_all_requests(place: Place, fault: str):
    # An attempt has some forty requests that are not repeated: about one attempt in three gets
    # through.
    place.proxy.faults = Faults(
        largest=60_000,
        everywhere=True,
        **{fault: 0.03},
    )
    for _ in range(40):
        result = boc(*place.command())
        assert place.look() in ("old", "new")
        if result.exit_code == 0:
            break
        assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert result.exit_code == 0
    place.holds(place.new)


@ON_OWN
def test_load_continues_after_a_kill_of_the_server(own_place: Place):
    counts = []

    def kill():
        own_place.server.kill()
        counts.append(own_place.proxy.count["bulk"])
        own_place.server.start()

    own_place.moment(kill, number=30)
    own_place.finishes()
    assert counts
    assert own_place.proxy.count["bulk"] > counts[0]


@ON_EACH
def test_server_stays_away(place: Place):
    place.options = "?patience=2"
    place.moment(place.proxy.close)
    said = place.fails()
    assert "Error: the server accepted no row for 2 seconds" in said
    assert "run the command again to resume" in said
    place.proxy.open()
    before = place.proxy.count["bulk"]
    place.finishes()
    assert place.proxy.count["bulk"] > before


@ON_EACH
@pytest.mark.parametrize("path", ["/_refresh", "/_search"])
def test_load_that_cannot_begin_gives_its_claim_back(place: Place, path: str):
    """The process lives on, and so would the claim. Another load continues."""
    place.options = "?patience=1"
    place.moment(place.proxy.close)
    place.fails()
    place.proxy.open()
    claims = []

    def cut(_, requested):
        claims.extend(re.findall("/_doc/boc:load:1", requested))
        if claims and path in requested:
            raise ConnectionError

    place.proxy.before = cut
    place.fails()
    assert claims
    place.proxy.before = lambda number, path: None
    place.finishes()


def be_away(place: Place) -> None:
    """Refuse connections and cut those that are open, for some seconds."""
    place.proxy.close()
    threading.Timer(3, place.proxy.open).start()


def fill_disk(place: Place) -> None:
    """Block the index, as servers do when a disk is nearly full, for some seconds."""
    place.block(True)
    threading.Timer(
        3,
        place.block,
        (None,),
    ).start()


@ON_EACH
@pytest.mark.parametrize("fault", [be_away, fill_disk])
def test_load_continues_after_a_fault(
    place: Place,
    fault: Callable[[Place], None],
):
    place.moment(partial(fault, place))
    place.finishes()


@ON_EACH
def test_full_disk(place: Place):
    """Blocked before each request once rows are there: Elasticsearch clears the block when it sees
    room."""
    place.options = "?patience=1"

    def fill(_, requested):
        loading = place.loading()
        if "/_bulk" in requested and loading:
            stats = place.server.request("GET", f"{loading}/_stats/indexing")
            if stats["_all"]["primaries"]["indexing"]["index_total"] > 100:
                place.block(True)

    place.proxy.before = fill
    assert "clear index.blocks.read_only_allow_delete of " in place.fails()
    # The disk is still full.
    assert "read_only_allow_delete" in place.fails().replace("-", "_")
    place.proxy.before = lambda *_: None
    place.block(None)
    place.finishes()


@ON_EACH
def test_removal_amid_a_load(place: Place):
    """The index is not made again by the server, with guessed fields."""
    place.moment(
        lambda: place.server.request(
            "DELETE",
            place.loading(),
        ),
    )
    assert place.fails()
    assert len(place.indexes()) == 1
    place.finishes()


def commands(
    name: str,
    made: Made,
    at: str,
) -> Iterator[str]:
    """Yield the errors of an index, a search and an info."""
    for arguments in (("index", name, made.path, *CODE), ("search", name, "a dog"), ("info", name)):
        yield fails(*arguments, "--at", at)


@ON_EACH
def test_server_of_the_other_kind(server: Any, name: str, old: Made):
    other = {"elasticsearch": "opensearch", "opensearch": "elasticsearch"}[server.kind.engine]
    for said in commands(
        name,
        old,
        address(server.url, other),
    ):
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
def page(
    status: int,
    kind: str,
    content: bytes,
) -> Iterator[str]:
    handler = type(
        "Page",
        (_Page,),
        {"status": status, "kind": kind, "content": content},
    )
    with serving(handler) as httpd:
        yield f"http://127.0.0.1:{httpd.server_port}"


ON_ENGINES = pytest.mark.parametrize("engine", ["elasticsearch", "opensearch"])
ANSWERS = {
    "page": (200, "text/html", b"<html>It works!</html>"),
    "broken": (200, "application/json", b"{"),
    "ancient": (200, "application/json", json.dumps(ANCIENT).encode()),
}


@pytest.mark.parametrize(
    ("engine", "answer"),
    [
        *(("elasticsearch", answer) for answer in ANSWERS),
        # An Elasticsearch of before its product header answers as OpenSearch does.
        *(("opensearch", answer) for answer in ANSWERS if answer != "ancient"),
    ],
)
def test_no_search_engine(
    engine: str,
    answer: str,
    name: str,
    old: Made,
):
    with page(*ANSWERS[answer]) as url:
        for said in commands(name, old, address(url, engine)):
            assert f"is no {engine}" in said.lower()


@ON_ENGINES
def test_silent_port(engine: str, name: str, old: Made):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        at = address(f"http://127.0.0.1:{deaf.getsockname()[1]}", engine) + "?request_timeout=1"
        assert "it took too long" in fails("index", name, old.path, *CODE, "--at", at)


@ON_EACH
def test_change_of_server_amid_a_load(place: Place):
    with page(200, "application/json", b"{}") as url:
        place.moment(lambda: setattr(place.proxy, "upstream", url))
        said = place.fails()
        assert "is no " in said or "is this the kind of server" in said
    place.proxy.upstream = place.server.url
    place.finishes()
