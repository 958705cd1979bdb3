"""Measure how the cost of `boc index` and of searches by `boc.search.Searcher` grows with the
number of items.

    python -m bench.speed.growth --work growth > growth.csv
    python -m bench.speed.growth --work growth --server elasticsearch-9 --n 50000 --n 500000
        --shards 1 --shards 3 > growth-server.csv

The items are synthetic (bench/race/data.py). The index is in a folder, or on a server of
tests/servers, which is started for the measurement. All options have their default values. A server
also contains a second index of the same items, which uses the server's own HNSW with the first
setting that reaches a recall of .98.

A row contains the number of items; the number of shards; the index; the recall of the exact top
ten; the milliseconds per search from the query vector to the hits, one at a time, on one thread,
after an untimed round; the processor milliseconds per search of the server (``server_ms``) and of
the client (``client_ms``); for `boc index`, including learning, the seconds (``index_s``),
processor seconds (``cpu_s``), peak memory (``build_peak_mb``) and the server's processor seconds
(``server_s``); ``disk_mb``; and the private (``anon_mb``) and mapped memory (``file_mb``) of a
fresh process after 100 queries.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from bench.options import WORK
from bench.race.crowd import GRAPH
from bench.race.data import Data, K, Matrix, synthetic
from bench.race.engine import child, status as memory_of, use_threads
from bench.race.hnsw import (
    EFS,
    base64_form,
    hnsw_document,
    hnsw_index,
    hnsw_query,
    list_form,
    settle,
)
from bench.race.servers import SCHEMES, Server, start_server
from bench.report.rows import Writer
from boc.inputs.features import FeatureFile
from boc.search.searcher import Searcher
from boc.types import Embeddings
from indexing.server.bulk import Bulk
from indexing.server.requests import ITEM

NAME = "growth"
RECALL = 0.98
COUNTS = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
COLUMNS = (
    "n",
    "shards",
    "index",
    "recall",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "server_ms",
    "client_ms",
    "index_s",
    "cpu_s",
    "build_peak_mb",
    "server_s",
    "disk_mb",
    "anon_mb",
    "file_mb",
)


@contextmanager
def place(kind: str | None, folder: Path, shards: int) -> Iterator[tuple[str, Server | None]]:
    """Yield the address of an empty back end, and its server."""
    if kind is None:
        yield f"file:{folder / 'index'}", None
        return
    with start_server(kind, folder / f"{kind}-{shards}", "4g") as node:
        at = f"{SCHEMES[node.kind.engine]}+{node.url}?replicas=0&shards={shards}"
        yield at, Server(kind, at)


def run_index(gallery: Path, at: str) -> tuple[float, float, float]:
    """Run `boc index`, replacing an existing index. Return its seconds, processor seconds and peak
    MB."""
    command = [
        sys.executable,
        "-c",
        "from boc.cli import main; main()",
        "index",
        NAME,
        str(gallery),
        "--at",
        at,
    ]
    start = time.perf_counter()
    process = subprocess.Popen([*command, "--replace"], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException(f"boc index ended with {process.returncode}; see above")
    return time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3


def ask_ours(searcher: Searcher, query: Matrix) -> set[int]:
    """Return the rows of the ten hits of a query (d,)."""
    hits = searcher.search_vectors(Embeddings("image", query[None]), k=K, find="image")[0]
    return {int(hit.item.id[:8]) for hit in hits}


class Graph:
    """The server's own HNSW over the items of ``data``."""

    def __init__(self, server: Server, data: Data, shards: int) -> None:
        self._transport = server.timed
        self._engine = server.timed.engine
        self._name = GRAPH[self._engine]
        self._form = base64_form if self._engine == "elasticsearch" else list_form
        body = hnsw_index(self._engine, self._name, data.shape[1])
        body["settings"]["number_of_shards"] = shards
        self._transport.request("PUT", f"/{self._name}", body)
        with FeatureFile(data.gallery) as file:
            items = file.items(data.modality)
        with Bulk(self._transport, self._name) as bulk:
            for start, block in data.blocks():
                for item, vector in zip(items[start:], block, strict=False):
                    bulk.index(item.id, hnsw_document(item, self._form(vector)))
        settle(self._transport, self._name)

    @property
    def bytes(self) -> int:
        stats = self._transport.request("GET", f"/{self._name}/_stats/store")
        return int(stats["_all"]["primaries"]["store"]["size_in_bytes"])

    def ask(self, ef: int, query: Matrix) -> set[int]:
        """Return the rows of the ten hits of a query (d,)."""
        body = {**hnsw_query(self._engine, self._form(query), ef), "size": K, "_source": ITEM}
        hits = self._transport.search(f"/{self._name}/_search", body)["hits"]["hits"]
        return {int(hit["_source"]["id"][:8]) for hit in hits}


def recall_of(ask: Callable[[Matrix], set[int]], queries: Matrix, top: list[set[int]]) -> float:
    pairs = zip(top, queries, strict=True)
    return float(np.mean([len(best & ask(query)) / K for best, query in pairs]))


def searches(
    ask: Callable[[Matrix], set[int]],
    data: Data,
    server: Server | None,
    rounds: int,
) -> list[str]:
    """Return recall, the percentiles of the time of a search, and the processor time of server and
    client."""
    queries = data.query_sets[0]
    recall = recall_of(ask, queries, data.top[0])
    times = []
    theirs = server.cpu_seconds() if server else 0.0
    mine = time.process_time()
    for _, query in product(range(rounds), queries):
        start = time.perf_counter()
        ask(query)
        times.append(1000 * (time.perf_counter() - start))
    client = time.process_time() - mine
    used = [server.cpu_seconds() - theirs, client] if server else []
    points = [*np.percentile(times, (50, 95, 99)), *(1000 * each / len(times) for each in used)]
    return [f"{recall:.4f}", *(f"{each:.3f}" for each in points), *[""] * (2 - len(used))]


def memory(at: str, queries: NDArray[np.float32]) -> tuple[float, float]:
    """Return the private and mapped MB of a fresh process after these queries."""
    before = memory_of("RssAnon")
    searcher = Searcher.open(NAME, at)
    for query in queries:
        ask_ours(searcher, query)
    return (memory_of("RssAnon") - before) / 1e6, memory_of("RssFile") / 1e6


def measure(
    data: Data,
    kind: str | None,
    shards: int,
    rounds: int,
    threads: int,
) -> Iterator[list[Any]]:
    """Yield the rows for one number of items."""
    with place(kind, data.work, shards) as (at, server):
        use_threads(threads)
        before = server.cpu_seconds() if server else 0.0
        took = run_index(data.gallery, at)
        loading = f"{server.cpu_seconds() - before:.2f}" if server else ""
        use_threads(1)
        searcher = Searcher.open(NAME, at)
        found = searches(lambda query: ask_ours(searcher, query), data, server, rounds)
        disk = sum(searcher.index.sizes().values()) / 1e6
        ours = [f"{value:.2f}" for value in took]
        rest = [f"{value:.2f}" for value in (disk, *child(memory, at, data.query_sets[0][:100]))]
        case = [shards, "boc"] if server else ["", ""]
        yield [data.shape[0], *case, *found, *ours, loading, *rest]
        if server is None:
            return
        begun = time.perf_counter()
        mine = time.process_time()
        before = server.cpu_seconds()
        graph = Graph(server, data, shards)
        costs = (time.perf_counter() - begun, time.process_time() - mine)
        loading = f"{server.cpu_seconds() - before:.2f}"
        for ef in EFS:
            ask = partial(graph.ask, ef)
            if recall_of(ask, data.query_sets[1], data.top[1]) >= RECALL:
                break
        found = searches(ask, data, server, rounds)
        theirs = [f"{value:.2f}" for value in costs]
        disk = graph.bytes / 1e6
        name = f"{GRAPH[server.timed.engine]} ef={ef}"
        yield [data.shape[0], shards, name, *found, *theirs, "", loading, f"{disk:.2f}", "", ""]


@click.command()
@WORK
@click.option("--server", "kind", help="Kind of tests/servers [default: an index in a folder].")
@click.option("--n", "counts", multiple=True, type=int, default=COUNTS, show_default=True)
@click.option("--shards", "shares", multiple=True, type=int, default=(1,), show_default=True)
@click.option("--dim", default=256, show_default=True)
@click.option("--queries", default=300, show_default=True, help="Number of queries.")
@click.option(
    "--threads",
    default=2,
    show_default=True,
    help="Number of processors used to build the index.",
)
@click.option("--rounds", default=5, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(
    work: Path,
    kind: str | None,
    counts: tuple[int, ...],
    shares: tuple[int, ...],
    dim: int,
    queries: int,
    threads: int,
    rounds: int,
    seed: int,
) -> None:
    """Index and search several numbers of synthetic items."""
    settings = click.get_current_context().params
    with Writer(
        sys.stdout,
        __file__,
        settings,
        COLUMNS,
        seed=seed,
        extras=("elasticsearch", "opensearch-py"),
    ) as out:
        for n, shards in product(sorted(counts), shares):
            folder = work / f"{n}x{dim}"
            folder.mkdir(parents=True, exist_ok=True)
            data = Data(folder, *synthetic(folder, n, dim, queries, seed), None, seed)
            for cells in measure(data, kind, shards, rounds, threads):
                out.write(*cells)


if __name__ == "__main__":
    main()
