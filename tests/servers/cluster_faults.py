"""What faults of a cluster of three nodes do to searches and loads: nothing may be lost, doubled or wrong.

    python -m tests.servers.cluster_faults --server elasticsearch-9 --server opensearch-3 > cluster-faults.csv

Starts the nodes on this machine (a kind of tests/servers), with 3 shards and a replica of each, and does one fault
after the other, in the middle of a stream of searches and in the middle of a load. Clients know all three nodes.

Columns: ``fault`` and what it is done to, ``during``. ``tried`` are searches, or items of the load. ``lost`` are
searches that ended with an error, or items that are not there; ``doubled`` are items twice among the hits, or in the
index; ``wrong`` are searches with other hits or scores than before the fault, after a load those with others than in a
folder. ``longest_s`` is the longest search, or the longest time in which a load got no further, in seconds; ``told`` is
1 if a load said which shard it waits for and the node it was on. Where a disk fills, a load stops at a third until the
servers allow no writes any more, and goes on then; mounting a small disk needs the rights of root.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from bench.race.data import read, synthetic
from bench.report.rows import Writer
from boc.codecs import Code, SurrogateCodec
from boc.errors import BackendError
from boc.indexes.learn import fit_code
from boc.indexes.load import load_index, new_manifest
from boc.inputs.features import FeatureFile
from boc.manifest import Manifest
from boc.search.searcher import Searcher
from boc.types import Embeddings, Hit
from tests.servers.small_disk import NoDiskError, fill, small_disk, until

ROOT = Path(__file__).resolve().parents[2]
SCHEMES = {"elasticsearch": "elastic", "opensearch": "opensearch"}
COLUMNS = ("server", "fault", "during", "tried", "lost", "doubled", "wrong", "longest_s", "told")
NAME, K, DIM, QUERIES, NEAR = "faulty", 10, 64, 40, 1e-5
ALL_CANDIDATES = 1100.0  # per hit: every item that shares a term with the query, so that shards decide nothing
GREEN = "_cluster/health?wait_for_status=green&wait_for_no_relocating_shards=true&timeout=20s"


@dataclass
class Result:
    """A row; see the columns above."""

    tried: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    longest: float = 0.0
    told: bool = False
    errors: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether something was tried, and nothing was lost, doubled or wrong."""
        return self.tried > 0 and self.lost == self.doubled == self.wrong == 0


class Case:
    """A running cluster with an index, and what its searches must find. ``at`` is its address by all nodes."""

    def __init__(self, cluster: Any, work: Path, items: int) -> None:
        self.cluster, self.work = cluster, work
        scheme = SCHEMES[cluster.kind.engine]
        gallery, queries, _ = synthetic(work, items, DIM, QUERIES, 0)
        self.queries = [Embeddings("image", row[None]) for row in read(queries)]
        self.file = FeatureFile(gallery)
        self.codec: SurrogateCodec = fit_code(self.file, Code("dictionary", z=2, query_z=32).codec(DIM))
        self.manifest: Manifest = new_manifest(self.file, self.codec, ALL_CANDIDATES)
        self.options = "?shards=3&replicas=1"
        self.go_on = threading.Event()
        self.go_on.set()
        self.base = f"{scheme}+http://{','.join(url.removeprefix('http://') for url in cluster.urls)}"
        self._load(f"file:{work / 'folder'}")
        self.wanted = self._answers(f"file:{work / 'folder'}")
        self._load(self.at())
        self.green()
        self.usual = self._answers(self.at())
        if not all(same(ours, theirs) for ours, theirs in zip(self.usual, self.wanted, strict=True)):
            raise BackendError("the cluster has other hits than a folder before any fault")

    def at(self, options: str = "", hosts: Sequence[str] = ()) -> str:
        """The address, by other hosts than those of the nodes if they are given."""
        base = f"{self.base.partition('+')[0]}+http://{','.join(hosts)}" if hosts else self.base
        return f"{base}{self.options}{options}"

    def close(self) -> None:
        self.file.close()

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

    def searches(self, fault: Callable[[], None], at: str) -> Result:
        """Search without a pause while ``fault`` happens, and five seconds longer."""
        found, stop, searcher = Result(), threading.Event(), Searcher.open(NAME, at)

        def run() -> None:
            while not stop.is_set():
                number, begun = found.tried % len(self.queries), time.perf_counter()
                found.tried += 1
                try:
                    hits = searcher.search_vectors(self.queries[number], k=K)[0]
                except BackendError as error:
                    found.lost += 1
                    found.errors.append(str(error))
                else:
                    found.wrong += not same(hits, self.usual[number])
                    found.doubled += len(hits) - len({hit.item.id for hit in hits})
                found.longest = max(found.longest, time.perf_counter() - begun)

        with running(run):
            time.sleep(1)
            fault()
            time.sleep(5)
            stop.set()
        return found

    def load(self, fault: Callable[[], None], at: str) -> Result:
        """Load again while ``fault`` happens, a third of the items into it."""
        found, third, done = Result(tried=self.file.count("image")), threading.Event(), threading.Event()

        def run() -> None:
            try:
                self._load(at, found, third)
            except BackendError as error:
                found.errors.append(str(error))
                found.longest = max(found.longest, time.monotonic() - self.ticked)
                self._load(at, found, third)  # what its message says: repeat the command
            finally:
                third.set()
                done.set()

        with warnings.catch_warnings(record=True) as said, running(run):
            warnings.simplefilter("always")
            third.wait()
            fault()
            done.wait()
        found.told = any("no living copy" in str(each.message) for each in said)
        self.green()
        ids = [item.id for item in Searcher.open(NAME, at).index.items()]
        found.doubled = len(ids) - len(set(ids))
        found.lost = found.tried - len(set(ids))
        pairs = zip(self._answers(at), self.wanted, strict=True)
        found.wrong = sum(not same(ours, theirs) for ours, theirs in pairs)
        return found

    def _load(self, at: str, found: Result | None = None, third: threading.Event | None = None) -> None:
        self.ticked = time.monotonic()
        for done in load_index(self.file, at, NAME, self.codec, self.manifest):
            self._tick(found)
            if third is not None and 3 * done >= self.file.count("image"):
                third.set()
                self.go_on.wait()
        self._tick(found)

    def _tick(self, found: Result | None) -> None:
        now = time.monotonic()
        if found is not None:
            found.longest = max(found.longest, now - self.ticked)
        self.ticked = now

    def _answers(self, at: str) -> list[list[Hit]]:
        searcher = Searcher.open(NAME, at)
        return [searcher.search_vectors(query, k=K)[0] for query in self.queries]


def same(ours: Sequence[Hit], theirs: Sequence[Hit]) -> bool:
    """Whether the hits are the same, with the same scores."""
    pairs = zip(ours, theirs, strict=False)
    return len(ours) == len(theirs) and all(a.item.id == b.item.id and abs(a.score - b.score) <= NEAR for a, b in pairs)


@contextmanager
def running(work: Callable[[], None]) -> Iterator[None]:
    """``work`` in a thread, which has ended when the context is left."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def killed(case: Case, away: float) -> None:
    """SIGKILL; the node comes back after ``away`` seconds."""
    case.cluster.nodes[2].kill()
    time.sleep(away)
    case.cluster.nodes[2].start()


def _killed_later(case: Case, away: float) -> None:
    """The same once all copies of the new index are there; until then the load waits."""
    try:
        case.green()
    finally:
        case.go_on.set()
    killed(case, away)


def paused(case: Case, away: float) -> None:
    """SIGSTOP: connections stay open, and nobody answers."""
    case.cluster.nodes[2].pause()
    time.sleep(away)
    case.cluster.nodes[2].resume()


def restarted(case: Case, away: float) -> None:
    """SIGTERM, as an administrator does."""
    case.cluster.nodes[2].stop()
    time.sleep(away)
    case.cluster.nodes[2].start()


def master_lost(case: Case, away: float) -> None:
    """SIGKILL of the node that leads the cluster."""
    leads = case.cluster.nodes[0].request("GET", "_cat/master?format=json")[0]["node"]
    node = next(node for node in case.cluster.nodes if node.settings["node.name"] == leads)
    node.kill()
    time.sleep(away)
    node.start()


def rolling(case: Case, away: float) -> None:
    """Every node is restarted, one when all copies of the last one are there again."""
    for node in case.cluster.nodes:
        node.restart()
        case.green()


def relocated(case: Case, away: float) -> None:
    """A copy of a shard of every index is moved to a node that has none."""
    node = case.cluster.nodes[0]
    shards = node.request("GET", "_cat/shards/*-boc-*?h=index,shard,node,state&format=json")
    names = {each.settings["node.name"] for each in case.cluster.nodes}
    for index in {shard["index"] for shard in shards}:
        copies = [each["node"] for each in shards if (each["index"], each["shard"]) == (index, "0") and each["node"]]
        free = sorted(names - set(copies))
        if free and copies:
            move = {"index": index, "shard": 0, "from_node": copies[0], "to_node": free[0]}
            node.request("POST", "_cluster/reroute", {"commands": [{"move": move}]})
    time.sleep(away)


def full_disk(case: Case, away: float) -> None:
    """A file fills the disk of a node; a load goes on when the servers have noticed, and allow no writes."""
    watched = {"cluster.info.update.interval": "10s", "cluster.routing.allocation.disk.threshold_enabled": True}
    case.cluster.nodes[0].request("PUT", "_cluster/settings", {"persistent": watched})
    large = case.cluster.nodes[2].folder / "data" / "large"
    try:
        fill(large)
        until(lambda: _blocked(case), "the servers do not notice the full disk")
        case.go_on.set()
        time.sleep(away)
    finally:
        case.go_on.set()
        large.unlink()
    until(lambda: not _blocked(case), "the servers do not notice that there is room again")
    case.cluster.nodes[0].request("PUT", "_cluster/settings", {"persistent": dict.fromkeys(watched)})


def _blocked(case: Case) -> bool:
    """Whether an index of ours takes no writes for want of room on a disk."""
    found = case.cluster.nodes[0].request("GET", "*-boc-*/_settings/index.blocks.*?flat_settings=true")
    return any("index.blocks.read_only_allow_delete" in entry["settings"] for entry in found.values())


FAULTS: dict[str, Callable[[Case, float], None]] = {
    "node killed": killed,
    "node paused": paused,
    "node restarted": restarted,
    "master lost": master_lost,
    "rolling restart": rolling,
    "shard relocated": relocated,
    "full disk": full_disk,
}


@contextmanager
def cut(case: Case) -> Iterator[tuple[str, Callable[[Case, float], None]]]:
    """An address whose third node is reached by a proxy of ours, and the fault that cuts this connection."""
    proxies = import_module("tests.fault_proxy")

    with proxies.Proxy(case.cluster.urls[2]) as proxy:

        def fault(case: Case, away: float) -> None:
            proxy.close()
            time.sleep(away)
            proxy.open()

        hosts = [url.removeprefix("http://") for url in (*case.cluster.urls[:2], proxy.url)]
        yield case.at(hosts=hosts), fault


def results(case: Case, faults: Sequence[str], away: float) -> Iterator[tuple[str, str, Result]]:
    """Name, what it is done to, and result of each fault."""
    for name in faults:
        with ExitStack() as stack:
            at, fault = stack.enter_context(cut(case)) if name == "network cut" else (case.at(), FAULTS[name])
            happens = lambda fault=fault: fault(case, away)  # noqa: E731
            if name == "full disk":
                try:
                    stack.enter_context(small_disk(case.cluster.nodes[2], case.green))
                except NoDiskError as error:
                    click.echo(f"{name} is left out: {error}", err=True)
                    continue
            yield name, "search", case.searches(happens, at)
            case.green()
            if name == "full disk":
                case.go_on.clear()
            yield name, "load", case.load(happens, at)
            if name == "node killed":
                case.go_on.clear()
                happens, at = partial(_killed_later, case, away), case.at("&replicas_while_loading=1")
                yield f"{name}, replicas_while_loading=1", "load", case.load(happens, at)


@contextmanager
def started(kind: str, work: Path, items: int) -> Iterator[Case]:
    """Three nodes of a kind of tests/servers, with an index."""
    sys.path.append(str(ROOT))
    servers = import_module("tests.servers")
    try:
        with servers.Cluster(work / kind, kind=kind).start() as cluster:
            case = Case(cluster, work, items)
            yield case
            case.close()
    except (servers.UnavailableError, servers.MismatchError, servers.StartError) as error:
        raise click.ClickException(str(error)) from error


@click.command()
@click.option("--server", "kinds", multiple=True, default=["elasticsearch-9", "opensearch-3"], show_default=True)
@click.option("--fault", "faults", multiple=True, type=click.Choice([*FAULTS, "network cut"]), help="[default: all]")
@click.option("--items", default=20_000, show_default=True)
@click.option("--away", default=15.0, show_default=True, help="Seconds that a fault lasts.")
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), help="Folder of the nodes.")
def main(kinds: tuple[str, ...], faults: tuple[str, ...], items: int, away: float, work: Path | None) -> None:
    """Do faults to clusters of three nodes."""
    faults = faults or (*FAULTS, "network cut")
    settings = {"servers": list(kinds), "items": items, "dim": DIM, "away_s": away, "shards": 3, "replicas": 1}
    with Writer(sys.stdout, __file__, settings, COLUMNS, extras=("elasticsearch", "opensearch-py")) as out:
        for kind in kinds:
            with tempfile.TemporaryDirectory(dir=work) as folder, started(kind, Path(folder), items) as case:
                for fault, during, found in results(case, faults, away):
                    counted = (found.tried, found.lost, found.doubled, found.wrong)
                    out.write(kind, fault, during, *counted, f"{found.longest:.2f}", int(found.told))
                    for error in found.errors:
                        click.echo(f"{kind}, {fault}, {during}: {error}", err=True)


if __name__ == "__main__":
    main()
