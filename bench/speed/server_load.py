"""Loads collections of several sizes into one server: rate, bytes, memory of the loader, latency, beside an estimate.

    python -m bench.speed.server_load --work scale --count 10000000 --prepare       # draw, learn, answer exactly
    python -m bench.speed.server_load --work scale --count 100000 --count 10000000 > server-load.csv

The data is synthetic (bench/race/data.py). For each size a server of tests/servers is started on this machine, with
empty data. First ``boc estimate`` is asked about that many items, and given a file of the first ``--known`` of them;
the server has just begun, as in a trial of one's own. Then a process loads what ``boc index`` would, from the feature
file to the published index, with a code that was learned before. At ``--kill-at`` of the items SIGKILL ends it, and
another process goes on with what is missing. The queries are searched after others, eight times as many, since a
server that was just started compiles its code meanwhile.

One row per size and ``--rm``: ``learn_s`` with two threads; ``seconds`` by the clock from the first start of the loader
until the index is published, of which ``resume_s`` from the kill until something new is sent, and ``merge_s`` after the
last item was handed over (sending the rest, merging, publishing); ``server_s`` are processor seconds of the server, and
``loader_mb`` is the largest memory of a loader. Bytes per item by part, and ``bytes`` of all; then recall, and
milliseconds of a search with ten hits and their content. The last columns are what the estimate said.

What is drawn, learned or measured in ``--work`` is kept, and the rows of all sizes are printed.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import click

from bench.race.codes import fit, fitted
from bench.race.data import Data, K, first, synthetic, told
from bench.race.engine import PROCESSORS, folder_of, once, status_of, use_threads
from bench.race.servers import ServedCode, Server
from bench.race.timing import recall_of
from bench.report.rows import Writer
from bench.speed.server_memory import Place, searched
from boc.indexes.load import load_index, new_manifest
from boc.inputs.features import FeatureFile

CODE = "dictionary:2"
QUERY_Z = 64  # that of an index that chooses none
PARTS = ("postings", "vectors", "other")
ESTIMATED = ("learn_s", "seconds", "bytes", *(f"{part}_each" for part in PARTS), "shards", "cache_bytes")
HEAD = [
    "items", "setting", "learn_s", "seconds", "resume_s", "merge_s", "items_per_s", "server_s", "loader_mb", "bytes",
    *(f"{part}_each" for part in PARTS), "recall", "p50_ms", "p95_ms", "p99_ms", "took_ms",
    *(f"estimated_{name}" for name in ESTIMATED),
]  # fmt: skip
BOC = (sys.executable, "-c", "from boc.cli import main; main()")


@dataclass
class Loading:
    """What a load took: seconds of it all, after the kill until something new was sent, and after the last item;
    largest bytes of memory of a loader."""

    seconds: float
    resuming: float
    merging: float
    memory: int


def load(data: Data, at: str, name: str, done: Connection) -> None:
    """In a separate process: the gallery into the index; sends how many items are done, then -1."""
    codec = fitted(data, CODE).budgeted(2, QUERY_Z)
    with FeatureFile(data.gallery) as file:
        for count in load_index(file, at, name, codec, new_manifest(file, codec)):
            done.send(count)
    done.send(-1)
    done.recv()  # until the memory was looked at


def started(data: Data, at: str, name: str) -> tuple[BaseProcess, Connection]:
    """A loader, and the connection that it tells its progress by."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=load, args=(data, at, name, there))
    process.start()
    there.close()
    return process, here


def loaded(data: Data, at: str, name: str, kill_at: float | None) -> Loading:
    """Load with a process that is killed at that share of the items, and another; or with one."""
    begun = last = time.perf_counter()
    process, here = started(data, at, name)
    total, memory, killed, resuming = data.shape[0], 0, (0, begun), 0.0
    while (count := here.recv()) >= 0:
        last = time.perf_counter()
        if killed[0] and not resuming and count > killed[0]:
            resuming = last - killed[1]
        if count % 100_000 < 4096:
            told(f"{count} of {total} items after {last - begun:.0f} s")
        if kill_at is not None and not killed[0] and count >= kill_at * total:
            memory, killed = status_of(process.pid or 0, "VmHWM"), (count, last)
            process.kill()
            process.join()
            told(f"killed at {count}")
            process, here = started(data, at, name)
    end = time.perf_counter()
    memory = max(memory, status_of(process.pid or 0, "VmHWM"))
    here.send(None)
    process.join()
    return Loading(end - begun, resuming, end - last, memory)


def estimated(data: Data, at: str, known: int) -> dict[str, float]:
    """What ``boc estimate`` says of as many items as there are, from the first ``known`` of them."""
    with FeatureFile(first(data.gallery, data.work, known)) as file:
        path = file.path
    command = [*BOC, "estimate", str(path), "--items", str(data.shape[0]), "--at", at, "--code", CODE, "--json"]
    said = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    each = {f"{part}_each": said["bytes_each"][part] for part in PARTS}
    plain = {"seconds": said["seconds"], "bytes": said["bytes"], "shards": said["shards"]}
    return {"learn_s": said["learning"]["seconds"], **plain, **each, "cache_bytes": said["page_cache"]}


def latencies(server: Server, data: Data, place: Place, rms: tuple[float, ...]) -> dict[str, dict[str, Any]]:
    """Recall and milliseconds of the queries by setting, after the validation queries."""
    use_threads(1)  # this process; the server has them all
    engine, found = ServedCode(server, data, CODE), {}
    for number, rm in enumerate(rms):
        engine.choose((min(QUERY_Z, engine.codec.n_terms), round(rm * K)))
        for _ in range(2 if number else 8):  # at first the server compiles its code
            recall_of(engine, data.asked[1], data.top[1])
        found[f"z={QUERY_Z} R={rm * K:.0f}"] = searched(engine, data, place.folder)
    use_threads(len(PROCESSORS))
    return found


def measured(place: Place, data: Data, heap: str, shards: int, known: int, kill_at: float | None, rms: tuple[float, ...]) -> Any:  # fmt: skip  # noqa: E501
    """What estimate, load and searches told, now or in an earlier run."""
    if (kept := place.note("measured")) is not None:
        return kept
    with place.server(heap, {}) as server:
        at = f"{server.at}?shards={shards}&replicas=0&request_timeout=600"
        said = estimated(data, at, known)
        told(f"estimated: {said}")
        before = server.cpu_seconds()
        took = loaded(data, at, server.name_of(CODE), kill_at)
        cpu = server.cpu_seconds() - before
        told(f"{took}, processor seconds of the server {cpu:.0f}")
        sizes = server.backend(CODE).open(server.name_of(CODE)).sizes()
        told(f"{sizes}")
        found = latencies(server, data, place, rms)
    shutil.rmtree(place.folder / "server", ignore_errors=True)
    facts = {"took": vars(took), "server": cpu, "sizes": sizes, "searched": found, "estimated": said}
    return place.remember("measured", facts)


def lines(data: Data, learning: float, facts: Any) -> list[list[object]]:
    """The rows of one size."""
    count, took, sizes = data.shape[0], facts["took"], facts["sizes"]
    seconds = [f"{took[name]:.1f}" for name in ("seconds", "resuming", "merging")]
    cost = [f"{count / took['seconds']:.0f}", f"{facts['server']:.0f}", f"{took['memory'] / 1e6:.0f}"]
    size = [sum(sizes.values()), *(f"{sizes[part] / count:.1f}" for part in PARTS)]
    said = [f"{facts['estimated'][name]:.1f}" for name in ESTIMATED]
    rows = []
    for setting, row in facts["searched"].items():
        times = [f"{row[name]:.2f}" for name in ("p50", "p95", "p99", "took")]
        rows.append([count, setting, f"{learning:.1f}", *seconds, *cost, *size, f"{row['recall']:.4f}", *times, *said])
    return rows


@click.command()
@click.option("--work", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of all it makes.")
@click.option("--count", "counts", multiple=True, type=int, default=(1_000_000,), show_default=True, help="Items.")
@click.option("--server", "kind", default="elasticsearch-9", show_default=True, help="A kind of tests/servers.")
@click.option("--dim", default=256, show_default=True)
@click.option("--shards", default=3, show_default=True)
@click.option("--heap", default="4g", show_default=True, help="Java heap of the server.")
@click.option("--known", default=100_000, show_default=True, help="Items of the file that the estimate is made from.")
@click.option("--kill-at", type=float, help="Kill the loader at this share of the items, and start another.")
@click.option("--rm", "rms", multiple=True, default=(10.0, 100.0), show_default=True, help="Candidates per hit.")
@click.option("--asked", default=300, show_default=True, help="Queries, and as many before them.")
@click.option("--seed", default=0, show_default=True)
@click.option("--prepare", is_flag=True, help="Draw, learn and find the exact answers; load nothing.")
def main(
    work: Path, counts: tuple[int, ...], kind: str, dim: int, shards: int, heap: str, known: int,
    kill_at: float | None, rms: tuple[float, ...], asked: int, seed: int, prepare: bool,
) -> None:  # fmt: skip
    """Load so many items, and search them."""
    settings = {
        "server": kind, "dim": dim, "code": CODE, "shards": shards, "heap": heap, "known": known, "kill_at": kill_at,
        "queries": asked,
    }  # fmt: skip
    with Writer(sys.stdout, __file__, settings, HEAD, seed=seed, extras=("elasticsearch", "opensearch-py")) as out:
        for count in counts:
            folder = work / str(count)
            folder.mkdir(parents=True, exist_ok=True)
            data = Data(folder, *synthetic(folder, count, dim, asked, seed), None, seed)
            _ = data.top
            learning = once(folder_of(data, "codec dictionary"), len(PROCESSORS), fit, data, "dictionary")
            if not prepare:
                facts = measured(Place(folder, kind, CODE), data, heap, shards, known, kill_at, rms)
                for row in lines(data, learning["build"], facts):
                    out.write(*row)


if __name__ == "__main__":
    main()
