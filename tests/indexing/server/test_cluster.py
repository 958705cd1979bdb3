"""Three nodes, of which one fails amid searches and amid a load: nothing is lost, doubled or wrong.

``make test-cluster`` tries all faults, on both engines. The index has 3 shards with a replica each,
and clients know all three nodes.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from bench.race.data import read, synthetic
from boc.codecs import Code, SurrogateCodec
from boc.errors import BackendError
from boc.inputs.features import FeatureFile
from boc.manage.learn import fit_code
from boc.manage.load import load_index, new_manifest
from boc.manifest import Manifest
from boc.search.searcher import Searcher
from boc.types import Embeddings, Hit
from indexing.server import requests, searches
from indexing.server.transport import Json, RefusedError, Transport
from tests.fault_proxy import Proxy
from tests.servers import Cluster
from tests.servers.fixtures import kinds

ALL = bool(os.environ.get("BOC_CLUSTER_FAULTS"))
SHORT = ("node killed", "node paused", "node killed, replicas while loading")
NAME = "faulty"
K = 10
DIM = 64
QUERIES = 40
NEAR = 1e-5
ALL_CANDIDATES = (
    1100.0  # per hit: every item that shares a term with the query, so that shards decide nothing
)
GREEN = "_cluster/health?wait_for_status=green&wait_for_no_relocating_shards=true&timeout=20s"


@dataclass
class Result:
    """Searches, or items of a load: how many were ``tried``, and what became of them.

    ``lost`` are searches that ended with an error, or items that are not there; ``doubled`` are
    items twice among the hits, or in the index; ``wrong`` are searches with other hits or scores
    than before the fault, after a load those with others than in a folder.
    """

    tried: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """True if something was tried, and nothing was lost, doubled or wrong."""
        return self.tried > 0 and self.lost == self.doubled == self.wrong == 0


class Case:
    """A running cluster with an index, and the hits of its searches. ``proxy`` is before its third
    node."""

    def __init__(
        self,
        cluster: Cluster,
        proxy: Proxy,
        work: Path,
        items: int,
    ) -> None:
        self.cluster = cluster
        self.proxy = proxy
        gallery, queries, _ = synthetic(work, items, DIM, QUERIES, 0)
        self.queries = [
            Embeddings(
                "image",
                row[None],
            )
            for row in read(queries)
        ]
        self.file = FeatureFile(gallery)
        self.codec: SurrogateCodec = fit_code(
            self.file,
            Code("dictionary", z=2, query_z=32).codec(DIM),
        )
        self.manifest: Manifest = new_manifest(self.file, self.codec, ALL_CANDIDATES)
        self.go_on = threading.Event()
        self.go_on.set()
        folder = f"file:{work / 'folder'}"
        for place in (folder, self.at()):
            self._load(place)
        self.expected = self._hits(folder)
        self.green()
        self.usual = self._hits(self.at())
        assert different(self.usual, self.expected) == 0

    def at(
        self,
        options: str = "",
        urls: Sequence[str] = (),
    ) -> str:
        """Return the address, by other hosts than the nodes if there are ``urls``."""
        hosts = ",".join(url.removeprefix("http://") for url in urls or self.cluster.urls)
        scheme = {"elasticsearch": "elastic", "opensearch": "opensearch"}[self.cluster.kind.engine]
        return f"{scheme}+http://{hosts}?shards=3&replicas=1{options}"

    def green(self) -> None:
        """Wait until all copies are there."""
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            for node in self.cluster.nodes:
                try:
                    if node.running and not node.request("GET", GREEN)["timed_out"]:
                        return
                except (OSError, ValueError):
                    time.sleep(1)
        raise BackendError("the cluster does not become green")

    def search(
        self,
        fault: Callable[[], None],
        at: str,
    ) -> Result:
        """Search without a pause while ``fault`` happens, and five seconds longer."""
        result = Result()
        stop = threading.Event()
        searcher = Searcher.open(NAME, at)

        def run():
            while not stop.is_set():
                number = result.tried % len(self.queries)
                result.tried += 1
                try:
                    hits = searcher.search_vectors(
                        self.queries[number],
                        k=K,
                    )[0]
                except BackendError as error:
                    result.lost += 1
                    result.errors.append(str(error))
                else:
                    result.wrong += different(
                        [hits],
                        [self.usual[number]],
                    )
                    result.doubled += len(hits) - len({hit.item.id for hit in hits})

        with running(run):
            time.sleep(1)
            fault()
            time.sleep(5)
            stop.set()
        return result

    def load(
        self,
        fault: Callable[[], None],
        at: str,
    ) -> Result:
        """Load again while ``fault`` happens, a third of the items into it."""
        result = Result(tried=self.file.count("image"))
        third = threading.Event()

        def run():
            try:
                self._load(at, third)
            except BackendError as error:
                result.errors.append(str(error))
                self._load(at, third)  # as its message says: run the command again
            finally:
                third.set()

        with running(run):
            third.wait()
            fault()
        self.green()
        ids = [
            item.id
            for item in Searcher.open(
                NAME,
                at,
            ).index.items()
        ]
        result.doubled = len(ids) - len(set(ids))
        result.lost = result.tried - len(set(ids))
        result.wrong = different(self._hits(at), self.expected)
        return result

    def _load(
        self,
        at: str,
        third: threading.Event | None = None,
    ) -> None:
        for count in load_index(
            self.file,
            at,
            NAME,
            self.codec,
            self.manifest,
        ):
            if third is not None and 3 * count >= self.file.count("image"):
                third.set()
                self.go_on.wait()

    def _hits(self, at: str) -> list[list[Hit]]:
        searcher = Searcher.open(NAME, at)
        return [
            searcher.search_vectors(
                query,
                k=K,
            )[0]
            for query in self.queries
        ]


def different(
    ours: Sequence[Sequence[Hit]],
    theirs: Sequence[Sequence[Hit]],
) -> int:
    """Return the number of queries whose hits or scores are different."""
    return sum(
        [hit.item.id for hit in a] != [hit.item.id for hit in b]
        or any(abs(x.score - y.score) > NEAR for x, y in zip(a, b, strict=True))
        for a, b in zip(ours, theirs, strict=True)
    )


@contextmanager
def running(work: Callable[[], None]) -> Iterator[None]:
    """Do ``work`` in a thread, which has ended when the context is left; its error is raised."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        yield
        future.result()


def away(
    leave: str,
    back: str,
    case: Case,
    seconds: float,
    number: int = 2,
) -> None:
    """A node goes by the method ``leave`` of its process, and comes back by the method ``back``."""
    getattr(case.cluster.nodes[number], leave)()
    time.sleep(seconds)
    getattr(case.cluster.nodes[number], back)()


def kill_later(case: Case, seconds: float) -> None:
    """SIGKILL once all copies of the new index are there; until then the load waits."""
    try:
        case.green()
    finally:
        case.go_on.set()
    away("kill", "start", case, seconds)


def kill_master(case: Case, seconds: float) -> None:
    """SIGKILL of the node that leads the cluster."""
    master = case.cluster.nodes[0].request(
        "GET",
        "_cat/master?format=json",
    )[0]["node"]
    number = [node.settings["node.name"] for node in case.cluster.nodes].index(master)
    away("kill", "start", case, seconds, number)


def restart_all(case: Case, seconds: float) -> None:
    """Every node is restarted, one when all copies of the last one are there again."""
    for node in case.cluster.nodes:
        node.restart()
        case.green()


def cut(case: Case, seconds: float) -> None:
    """The connection to the third node is cut."""
    case.proxy.close()
    time.sleep(seconds)
    case.proxy.open()


def relocate(case: Case, seconds: float) -> None:
    """A copy of a shard of every index is moved to a node that has none."""
    node = case.cluster.nodes[0]
    shards = node.request("GET", "_cat/shards/*-boc-*?h=index,shard,node,state&format=json")
    names = {each.settings["node.name"] for each in case.cluster.nodes}
    for index in {shard["index"] for shard in shards}:
        copies = [
            each["node"]
            for each in shards
            if (each["index"], each["shard"]) == (index, "0") and each["node"]
        ]
        free = sorted(names - set(copies))
        if free and copies:
            move = {"index": index, "shard": 0, "from_node": copies[0], "to_node": free[0]}
            node.request(
                "POST",
                "_cluster/reroute",
                {"commands": [{"move": move}]},
            )
    time.sleep(seconds)


FAULTS: dict[str, Callable[[Case, float], None]] = {
    "node killed": partial(away, "kill", "start"),
    "node paused": partial(away, "pause", "resume"),  # connections stay open, and nobody answers
    "node restarted": partial(away, "stop", "start"),
    "node killed, replicas while loading": kill_later,
    "master killed": kill_master,
    "rolling restart": restart_all,
    "shard relocated": relocate,
    "network cut": cut,
}


def results(
    case: Case,
    faults: Sequence[str],
    seconds: float,
) -> Iterator[tuple[str, str, Result]]:
    """Yield the name of each fault, amid which work it happens, and the result; each lasts some
    ``seconds``."""
    for name in faults:
        fault = partial(FAULTS[name], case, seconds)
        at = case.at()
        if name == "network cut":
            at = case.at(urls=[*case.cluster.urls[:2], case.proxy.url])
        if name == "node killed, replicas while loading":
            case.go_on.clear()
            at = case.at("&replicas_while_loading=1")
        else:
            yield name, "search", case.search(fault, at)
            case.green()
        yield name, "load", case.load(fault, at)


@pytest.mark.filterwarnings("ignore::boc.errors.BocWarning")  # a load that waits says so
@pytest.mark.parametrize(
    "kind",
    kinds("elasticsearch-9", *(["opensearch-3"] if ALL else [])),
)
def test_node_faults_lose_nothing(
    kind: str,
    own: Callable[[Cluster], Cluster],
    tmp_path: Path,
):
    cluster = own(Cluster(tmp_path / "nodes", kind=kind))
    with Proxy(cluster.urls[2]) as proxy:
        case = Case(cluster, proxy, tmp_path, 20_000 if ALL else 3000)
        faults, seconds = (list(FAULTS), 15) if ALL else (SHORT, 12)
        rows = {
            (fault, work): row
            for fault, work, row in results(
                case,
                faults,
                seconds,
            )
        }
        case.file.close()
    assert {key: row for key, row in rows.items() if not row.is_clean} == {}


@pytest.mark.parametrize("times", range(1, 5))
@pytest.mark.parametrize(
    "kind",
    [*sorted(searches.GONE), "parsing_exception"],
)
def test_search_is_repeated(kind: str, times: int):
    asked = []

    class Node:
        def search(self, path: str, body: Json, **params: str) -> Json:
            asked.append((path, params))
            if len(asked) <= times:
                raise RefusedError("no context", 404, kind)
            return {"hits": {"hits": [], "total": {"value": 0}}}

    pauses = (0.0,) * len(searches.PAUSES)
    found = searches.Searches(
        cast("Transport", Node()),
        "photos",
        requests.OWN,
        pauses=pauses,
    )
    if kind in searches.GONE and times < 4:
        assert found.pages(
            [{}],
            3,
        ) == [([], 0)]
        assert asked == [("/photos/_search", searches.WHOLE)] * (times + 1)
    else:
        with pytest.raises(RefusedError, match="no context"):
            found.pages([{}], 3)
        assert len(asked) == (4 if kind in searches.GONE else 1)
