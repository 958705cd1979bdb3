"""A search server with less memory than its vectors take: our code beside the server's own vector indexes.

    python -m bench.speed.server_memory --work million --prepare --index hnsw       # load, one after the other
    python -m bench.speed.server_memory --work million > server-memory.csv          # search, and print the rows

The data is synthetic (bench/race/data.py). Each index is loaded and merged on a server of its own, whose folder stays
in ``--work``, with ``--load-heap`` of Java heap, half of it for what is not written yet: so a graph is built in large
parts, and few of its nodes are inserted twice. ``bbq_disk`` needs a licence: a trial is asked of the server. Then the
server is started in a control group (memory_group.py) with ``--heap``. Recall is held at ``--recall`` on the validation
queries with room for all: a graph gets the fewest candidates that reach it, our code the fewest candidates with any
number of query terms, since each is a read where memory is short.

Then come the limits. A server needs memory of its own, heap and all, whatever it holds; beside this it gets
``--memory`` times the bytes of the vectors as float32. ``cold`` is a first pass over the queries with none of the index
in memory, ``warm`` a pass after the validation queries have run. Requests that the disk answered and kilobytes that it
read are per query. Recall is that of the queries, which chose nothing. What is loaded, chosen or measured in ``--work``
is kept; the rows of all are printed. ``cpu_s`` are processor seconds to learn, encode, load and merge.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.race.data import Data, K, Matrix, synthetic, told
from bench.race.engine import PROCESSORS, Engine, Setting, UnavailableError, use_threads
from bench.race.servers import SCHEMES, ServedCode, ServedGraph, Server, launched
from bench.race.timing import recall_of
from bench.report.rows import Writer
from bench.speed.memory_group import ROOM, Group, drop_cache, read_ahead, reads_of
from indexing.server.transport import Json, RefusedError

INDEXES = (
    "dictionary:2", "dictionary:2 text binary id niofs", "dictionary:2 text binary term",
    "dictionary:2 text byte", "dictionary:2 text byte term",
    "hnsw", "int8_hnsw", "bbq_hnsw", "bbq_disk",
)  # fmt: skip
CANDIDATES = (50, 100, 150, 200, 300, 400, 500, 700, 1000, 1500, 2000, 3000, 5000)
OVERSAMPLES = (2, 3, 5, 10, 20, 50)
EFS = (10, 15, 20, 30, 40, 50, 70, 100, 150, 200, 300, 500, 1000)
SHARES = (0.5, 0.25)
FIXED = {"cluster.name": "boc-bench", "node.name": "bench"}  # a folder is opened again at another port
HEAD = [
    "index", "memory", "state", "setting", "recall", "p50_ms", "p95_ms", "p99_ms", "took_ms", "reads", "read_kb",
    "own_mb", "cached_mb", "load_heap", "cpu_s", "disk_mb", "vectors_mb",
]  # fmt: skip


class Rescored(ServedGraph):
    """A graph of bits, whose best ``k * oversample`` are compared with the vectors."""

    knobs: tuple[str, ...] = ("ef", "oversample")
    grid: Sequence[Setting] = tuple((ef, times) for times in OVERSAMPLES for ef in EFS if ef >= K * times)

    def choose(self, setting: Setting) -> None:
        self.ef, self.times = setting

    def body(self, query: Matrix) -> Json:
        found = super().body(query)
        found["query"]["knn"]["rescore_vector"] = {"oversample": self.times}
        return found


class Place:
    """The folder of one index: a server's, with notes of what is done."""

    def __init__(self, work: Path, kind: str, index: str) -> None:
        self.kind, self.index = kind, index
        self.folder = work / f"{kind} {index}".replace(" ", "-").replace(":", "-")
        self.folder.mkdir(exist_ok=True)

    def note(self, name: str) -> Any:
        """What was noted; None if nothing was."""
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def remember(self, name: str, value: Any) -> Any:
        (self.folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
        return value

    @contextmanager
    def server(self, heap: str, settings: dict[str, Any], under: Sequence[str] = ()) -> Iterator[Server]:
        """The running server."""
        folder = self.folder / "server"
        with launched(self.kind, folder, heap, settings={**FIXED, **settings}, under=under) as node:
            yield Server(self.kind, f"{SCHEMES[node.kind.engine]}+{node.url}")


def loaded(place: Place, data: Data, heap: str, threads: int) -> Any:
    """What loading took, now or in an earlier run; without ``build`` where the server has no such index."""
    facts = place.note("loaded")
    if facts is None:
        with place.server(heap, {"indices.memory.index_buffer_size": "50%"}) as server:
            try:
                if place.index == "bbq_disk":
                    license_trial(server)
                found = server.built(data, f"{place.kind} {place.index}", threads)
                facts = {**asdict(found), "disk": found.disk, "heap": heap}
            except (UnavailableError, RefusedError) as error:
                if isinstance(error, RefusedError) and "license" not in error.reason:
                    raise
                facts = {"left out": str(error)}
        place.remember("loaded", facts)
    if "left out" in facts:
        told(f"{place.index}: left out, {facts['left out']}")
    return facts


def license_trial(server: Server) -> None:
    """UnavailableError if the server gives itself none."""
    try:
        answer = server.timed.request("POST", "/_license/start_trial", acknowledge="true")
        told(f"trial of a licence: {answer}")
    except RefusedError as error:
        raise UnavailableError(f"the server starts no trial of a licence ({error.reason or error.status})") from error


def chosen(engine: Engine, data: Data, recall: float) -> Setting:
    """The setting that reads the fewest vectors of those that reach the recall on the validation queries; the one of
    the most recall if none does."""
    found: list[tuple[float, tuple[int, ...], Setting]] = []
    for settings in ladders(engine, data):
        low, high = -1, len(settings) - 1  # recall grows along settings
        reached = recall_at(engine, data, settings[high])
        while reached >= recall and high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if recall_at(engine, data, settings[middle]) >= recall else (middle, high)
        found.append((max(0, recall - reached), settings[high][::-1], settings[high]))
    return min(found)[-1]


def ladders(engine: Engine, data: Data) -> list[list[Setting]]:
    """Settings in the order of their recall; the last number of a setting is how many vectors it reads, or how many
    times more than are returned."""
    if isinstance(engine, ServedCode):
        depths = [depth for depth in CANDIDATES if depth < data.shape[0]]
        return [[(z, depth) for depth in depths] for z in sorted({z for z, _ in engine.grid})]
    if isinstance(engine, Rescored):
        return [[(ef, times) for ef, times in engine.grid if times == fixed] for fixed in OVERSAMPLES]
    return [[(ef,) for ef in EFS]]


def recall_at(engine: Engine, data: Data, setting: Setting) -> float:
    engine.choose(setting)
    reached = recall_of(engine, data.asked[1], data.top[1])
    told(f"{setting}: recall {reached:.4f}")
    return reached


def searched(engine: Engine, data: Data, folder: Path) -> dict[str, Any]:
    """One pass over the queries."""
    queries, top = data.asked[0], data.top[0]
    times, took, shares, before = [], [], [], reads_of(folder)
    for i in range(len(queries)):
        begun = time.perf_counter()
        answer = engine.ask(queries[i : i + 1])
        times.append(1000 * (time.perf_counter() - begun))
        took.append(engine.took or 0.0)
        shares.append(len(top[i].intersection(engine.rows(answer))) / K)
    after = reads_of(folder)
    read = {} if before is None or after is None else asdict(after - before)
    middle, late, last = np.percentile(times, (50, 95, 99)).tolist()
    figures = {"recall": float(np.mean(shares)), "took": float(np.mean(took))}
    return {**figures, "p50": middle, "p95": late, "p99": last, **{k: v / len(queries) for k, v in read.items()}}


def measured(place: Place, data: Data, heap: str, recall: float, shares: Sequence[float]) -> Any:
    """The passes of one index, now or in an earlier run: share of memory, state, and what ``searched`` tells."""
    name = "searched " + " ".join(map(str, shares))
    if (found := place.note(name)) is not None:
        return found
    found, folder = [], place.folder
    drop_cache(folder)
    vectors = 4 * data.shape[0] * data.shape[1]
    with Group(ROOM) as group, place.server(heap, {}, under=group.inside) as server:
        use_threads(1)  # this process; the server has them all
        bits = place.index.startswith("bbq")
        engine = Rescored(server, data, place.index) if bits else server.opened(data, f"{place.kind} {place.index}")
        setting = place.note("chosen") or place.remember("chosen", chosen(engine, data, recall))
        recall_at(engine, data, tuple(setting))
        for share in (None, *shares):
            group.forget()
            own, _ = group.parts()
            group.limit(ROOM if share is None else own + int(share * vectors))
            for state in ("cold", "warm"):
                if state == "warm":
                    recall_of(engine, data.asked[1], data.top[1])
                figures = searched(engine, data, folder)
                own, cached = group.parts()
                told(f"{place.index} {share} {state}: {figures}")
                found.append({"memory": share, "state": state, "own": own, "cached": cached, **figures})
        group.limit(ROOM)
        label = " ".join(f"{knob}={value}" for knob, value in zip(engine.knobs, setting, strict=True))
    return place.remember(name, [{**row, "setting": label} for row in found])


def lines(place: Place, facts: Any, found: Any) -> Iterator[list[str]]:
    """The rows of one index."""
    for row in found:
        times = [f"{row[name]:.2f}" for name in ("p50", "p95", "p99", "took")]
        read = [f"{row['requests']:.1f}", f"{row['size'] / 1e3:.0f}"] if "size" in row else ["", ""]
        sizes = [f"{size / 1e6:.1f}" for size in (facts["disk"], facts["sizes"]["vectors"])]
        yield [
            place.index, "all" if row["memory"] is None else f"{row['memory']:g}", row["state"], row["setting"],
            f"{row['recall']:.4f}", *times, *read, *(f"{row[name] / 1e6:.0f}" for name in ("own", "cached")),
            facts["heap"], f"{facts['cpu']:.1f}", *sizes,
        ]  # fmt: skip


@click.command()
@click.option("--work", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of all it makes.")
@click.option("--server", "kind", default="elasticsearch-9", show_default=True, help="A kind of tests/servers.")
@click.option("--index", "indexes", multiple=True, default=INDEXES, show_default=True)
@click.option("--n", default=1_000_000, show_default=True, help="Items.")
@click.option("--dim", default=384, show_default=True)
@click.option("--asked", default=300, show_default=True, help="Queries, and as many to choose settings by.")
@click.option("--terms", type=int, help="Of the dictionary [default: by the number of items].")
@click.option("--recall", default=0.95, show_default=True)
@click.option("--memory", "shares", multiple=True, type=float, default=SHARES, show_default=True)
@click.option("--heap", default="1g", show_default=True, help="Java heap of a server that is searched.")
@click.option("--load-heap", default="4g", show_default=True, help="Java heap of a server that is loaded.")
@click.option(
    "--read-ahead",
    "read_ahead_kb",
    type=int,
    help="Kilobytes that the system reads ahead meanwhile [default: as it is].",
)
@click.option("--threads", default=2, show_default=True, help="To learn the code with.")
@click.option("--seed", default=0, show_default=True)
@click.option("--prepare", is_flag=True, help="Load; search nothing.")
def main(
    work: Path, kind: str, indexes: tuple[str, ...], n: int, dim: int, asked: int, terms: int | None, recall: float,
    shares: tuple[float, ...], heap: str, load_heap: str, read_ahead_kb: int | None, threads: int, seed: int,
    prepare: bool,
) -> None:  # fmt: skip
    """Load, and search with less and less memory."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was set is set back
    work.mkdir(parents=True, exist_ok=True)
    use_threads(len(PROCESSORS))  # which servers inherit
    data = Data(work, *synthetic(work, n, dim, asked, seed), terms, seed)
    data.check()
    _ = data.top
    with ExitStack() as stack:
        ahead = stack.enter_context(read_ahead(work, read_ahead_kb))
        settings = {
            "server": kind, "n": n, "dim": dim, "queries": asked, "chosen_by": asked, "terms": terms, "recall": recall,
            "memory": shares, "heap": heap, "read_ahead_kb": ahead,
        }  # fmt: skip
        out = stack.enter_context(Writer(sys.stdout, __file__, settings, HEAD, seed=seed, extras=("elasticsearch",)))
        for index in indexes:
            place = Place(work, kind, index)
            facts = loaded(place, data, load_heap, threads)
            if not prepare and "left out" not in facts:
                use_threads(len(PROCESSORS))
                for row in lines(place, facts, measured(place, data, heap, recall, shares)):
                    out.write(*row)


if __name__ == "__main__":
    main()
