"""Measure how the cost of `boc index` and of searches by `boc.search.Searcher` grows with the
number of items.

    python -m bench.speed.growth --work growth > growth.csv
    python -m bench.speed.growth --work growth --server elasticsearch-9 --n 100000
        --n 1000000 > growth-server.csv

The items are synthetic (bench/race/data.py). The index is in a folder, or on a server of
tests/servers, which is started for the measurement. All options have their default values.

A row contains the number of items; the recall of the exact top ten; the milliseconds per search
from the query vector to the hits, one at a time, on one thread; for `boc index`, including
learning, the seconds (``index_s``), processor seconds (``cpu_s``), peak memory (``build_peak_mb``)
and the server's processor seconds (``server_s``); ``disk_mb``; and the private (``anon_mb``) and
mapped memory (``file_mb``) of a fresh process after 100 queries.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from bench.options import WORK
from bench.race.data import Data, K, synthetic
from bench.race.engine import child, status as memory_of, use_threads
from bench.race.servers import SCHEMES, start_server
from bench.report.rows import Writer
from boc.search.searcher import Searcher
from boc.types import Embeddings

NAME = "growth"
COUNTS = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
COLUMNS = (
    "n",
    "recall",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "index_s",
    "cpu_s",
    "build_peak_mb",
    "server_s",
    "disk_mb",
    "anon_mb",
    "file_mb",
)


@contextmanager
def place(kind: str | None, folder: Path) -> Iterator[tuple[str, Callable[[], float]]]:
    """Yield the address of an empty backend, and a function that returns the processor seconds of
    its server."""
    if kind is None:
        yield f"file:{folder / 'index'}", lambda: 0.0
        return
    with start_server(kind, folder / kind, "4g") as node:

        def seconds() -> float:
            nodes = node.request("GET", "_nodes/stats/process")["nodes"].values()
            return float(sum(each["process"]["cpu"]["total_in_millis"] for each in nodes)) / 1000

        yield f"{SCHEMES[node.kind.engine]}+{node.url}?replicas=0", seconds


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


def search_each(
    searcher: Searcher,
    queries: NDArray[np.float32],
) -> Iterator[tuple[float, set[int]]]:
    """Yield the milliseconds, and the rows of the ten hits, of each query."""
    for query in queries:
        start = time.perf_counter()
        hits = searcher.search_vectors(Embeddings("image", query[None]), k=K, find="image")[0]
        yield 1000 * (time.perf_counter() - start), {int(hit.item.id[:8]) for hit in hits}


def memory(at: str, queries: NDArray[np.float32]) -> tuple[float, float]:
    """Return the private and mapped MB of a fresh process after these queries."""
    before = memory_of("RssAnon")
    list(search_each(Searcher.open(NAME, at), queries))
    return (memory_of("RssAnon") - before) / 1e6, memory_of("RssFile") / 1e6


def row(data: Data, kind: str | None, rounds: int, threads: int) -> list[Any]:
    """Return the row for one number of items."""
    with place(kind, data.work) as (at, server_seconds):
        use_threads(threads)
        before = server_seconds()
        took = run_index(data.gallery, at)
        server = server_seconds() - before
        use_threads(1)
        searcher = Searcher.open(NAME, at)
        queries = data.query_sets[0]
        answers = [list(search_each(searcher, queries)) for _ in range(rounds)]
        pairs = zip(data.top[0], answers[0], strict=True)
        recall = float(np.mean([len(best & rows) / K for best, (_, rows) in pairs]))
        times = [ms for answer in answers for ms, _ in answer]
        sizes = sum(searcher.index.sizes().values()) / 1e6
        memory_mb = child(memory, at, queries[:100])
        points = [f"{point:.3f}" for point in np.percentile(times, (50, 95, 99))]
        figures = [f"{value:.2f}" for value in (*took, server, sizes, *memory_mb)]
        if kind is None:
            figures[3] = ""
        return [data.shape[0], f"{recall:.4f}", *points, *figures]


@click.command()
@WORK
@click.option("--server", "kind", help="Kind of tests/servers [default: an index in a folder].")
@click.option("--n", "counts", multiple=True, type=int, default=COUNTS, show_default=True)
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
        for n in sorted(counts):
            folder = work / f"{n}x{dim}"
            folder.mkdir(parents=True, exist_ok=True)
            data = Data(folder, *synthetic(folder, n, dim, queries, seed), None, seed)
            out.write(*row(data, kind, rounds, threads))


if __name__ == "__main__":
    main()
