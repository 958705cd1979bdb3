"""Compare boc with a server's own HNSW under load from many clients, with and without writers, and
with filters.

    python -m bench.race.crowd elasticsearch-9 composed.h5 composed-queries.h5
        --validation composed-validation.h5 --work FOLDER --count 100000

The index of boc is built by `boc index` with all defaults, and searched through
``Searcher.search_vectors``. HNSW receives queries in the fastest format that the server accepts
(hnsw.py), over the same connection, with the first setting that reaches a recall on the validation
queries. The two indexes take turns of ``--seconds``, ``--rounds`` times, so that a slower machine
slows down both. ``server_s`` and ``client_s`` are processor seconds per thousand queries. Every
second, writers add 200 items and delete 50 items, and the changes are visible immediately. ``put``
is the number of items added per second, and ``lost`` is the number of missing or surplus items at
the end. Rows with filters use the filters of filtered.py and default searches of boc.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import count, product
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.options import FILE, SHARES, WORK
from bench.race.data import Data, K, Matrix, first, log, nearest
from bench.race.filtered import ALL, NAME, Ask, Filters, Race
from bench.race.hnsw import EFS, base64_form, hnsw_document, hnsw_index, hnsw_query, settle
from bench.race.servers import SCHEMES, Server, start_server
from bench.report.rows import Writer
from boc.errors import BocError
from boc.inputs.features import FeatureFile
from boc.manage.build import build_index
from boc.search.searcher import Searcher
from boc.types import Embeddings, Rows
from indexing.server.aliases import drop_index
from indexing.server.bulk import Bulk
from indexing.server.requests import ITEM
from indexing.server.searches import scan

COLUMNS = (
    "case",
    "index",
    "clients",
    "setting",
    "recall",
    "validation",
    "few",
    "qps",
    "p50_ms",
    "p99_ms",
    "server_s",
    "client_s",
    "put",
    "failed",
    "lost",
)
GRAPH = {"elasticsearch": "hnsw", "opensearch": "fp32"}
# items per second
PUT = 200
DELETED = 50
SAMPLE = 300  # number of queries used to measure recall


class Crowd(Race):
    """Both indexes on one server. They contain the rows of ``data``, and the writers add rows of
    ``more``."""

    def __init__(self, data: Data, more: Path, server: Server) -> None:
        self.data = data
        self.more = more
        self.server = server
        self.filters = Filters.of(data)
        self.graph = GRAPH[server.timed.engine]
        self.live = {
            index: dict(data.rows) for index in ("boc", self.graph)
        }  # maps ids to rows in ``more``
        self.next_row = dict.fromkeys(self.live, data.shape[0])
        with FeatureFile(more) as file:
            self.items = file.items(data.modality)
            self.all = file.memory_map(data.modality, "dense/vectors")
        self.ids = {item.id: row for row, item in enumerate(self.items)}
        begun = time.perf_counter()
        fields = self.filters.metadata(list(data.rows))
        build_index(NAME, data.gallery, at=server.at, metadata=fields)
        log(f"boc: {time.perf_counter() - begun:.0f} s")
        self.searcher = Searcher.open(NAME, server.at)
        begun = time.perf_counter()
        self._load_graph()
        log(f"{self.graph}: {time.perf_counter() - begun:.0f} s")

    def _load_graph(self) -> None:
        body = hnsw_index(self.server.timed.engine, self.graph, self.data.shape[1])
        body["mappings"]["properties"] |= {
            name: {"type": "integer"} for name in ("draw", "cluster")
        }
        drop_index(self.server.timed, self.graph)
        self.server.timed.request("PUT", f"/{self.graph}", body)
        pairs = zip(self.filters.draw.tolist(), self.filters.cluster.tolist(), strict=True)
        with Bulk(self.server.timed, self.graph) as bulk:
            for row, (draw, cluster) in enumerate(pairs):
                self._put_graph(bulk, row, draw=draw, cluster=cluster)
        settle(self.server.timed, self.graph)

    def _put_graph(self, bulk: Bulk, row: int, **fields: int) -> None:
        item = self.items[row]
        vector = np.array(self.all[row], np.float32)
        bulk.index(item.id, hnsw_document(item, self.form(vector), **fields))

    def form(self, vector: Any) -> Any:
        return base64_form(vector) if self.server.timed.engine == "elasticsearch" else vector

    @cached_property
    def asks(self) -> Mapping[str, Mapping[str, Ask]]:
        return {
            "boc": {"default": self._ours},
            self.graph: {f"ef={ef}": self._theirs(ef) for ef in EFS},
        }

    def _theirs(self, ef: int) -> Ask:
        def ask(query: Matrix, condition: str) -> Any:
            body = {
                **hnsw_query(self.server.timed.engine, self.form(query[0]), ef),
                "size": K,
                "_source": ITEM,
            }
            if condition:
                name, sign, number = condition.replace("<", " < ").replace("=", " = ").split()
                passing = (
                    {"term": {name: number}} if sign == "=" else {"range": {name: {"lt": number}}}
                )
                knn = body["query"]["knn"]
                (knn if "field" in knn else knn["vector"])["filter"] = passing
            hits = self.server.timed.search(f"/{self.graph}/_search", body)["hits"]["hits"]
            return np.array([self.ids[hit["_source"]["id"]] for hit in hits])

        return ask

    def select(self, conditions: Sequence[str]) -> None:
        """Do nothing, because each query creates its own filter."""

    def _rows(self, answer: Any) -> set[int]:
        return (
            set(answer.tolist())
            if isinstance(answer, np.ndarray)
            else {self.ids[hit.item.id] for hit in answer}
        )

    def write(self, index: str) -> None:
        """Add and delete the items of one second."""
        live = self.live[index]
        start = self.next_row[index]
        new = range(start, min(start + PUT, len(self.items)))
        old = list(live)[:DELETED]
        items = [self.items[row] for row in new]
        vectors = self.all[new.start : new.stop].astype(np.float32)
        if index == "boc":
            with self.server.backend.edit(NAME) as editor:
                editor.put(
                    Rows(
                        items,
                        self.searcher.codec.encode_documents(
                            Embeddings(self.data.modality, vectors),
                        ),
                        vectors,
                    ),
                )
                editor.delete(old)
                editor.commit("writer")
        else:
            with Bulk(self.server.timed, index) as bulk:
                for row in new:
                    self._put_graph(bulk, row)
                for key in old:
                    bulk.delete(key)
            self.server.timed.request("POST", f"/{index}/_refresh")
        self.next_row[index] = new.stop
        self.live[index] = {k: r for k, r in live.items() if k not in {*old}} | {
            self.items[r].id: r for r in new
        }

    def turn(
        self,
        index: str,
        ask: Ask,
        clients: int,
        seconds: float,
        *,
        writing: bool,
    ) -> tuple[list[float], list[float]]:
        """Return the response times in milliseconds, the elapsed seconds, the processor seconds of
        server and client, the number of items added, and the number of failures."""
        queries = self.data.query_sets[0]
        numbers = count()
        end = time.perf_counter() + seconds
        times = list[float]()
        failed = list[BocError]()
        row = self.next_row[index]

        def client() -> None:
            while (begun := time.perf_counter()) < end:
                i = next(numbers) % len(queries)
                try:
                    ask(queries[i : i + 1], ALL)
                    times.append(1000 * (time.perf_counter() - begun))
                except BocError as error:
                    failed.append(error)

        def writer() -> None:
            while (begun := time.perf_counter()) < end - 1:
                self.write(index)
                time.sleep(max(0.0, begun + 1 - time.perf_counter()))

        begun = time.perf_counter()
        mine = time.process_time()
        theirs = self.server.cpu_seconds()
        with ThreadPoolExecutor(clients + 1) as pool:
            for done in [pool.submit(work) for work in [client] * clients + [writer] * writing]:
                done.result()
        used = [self.server.cpu_seconds() - theirs, time.process_time() - mine]
        return times, [time.perf_counter() - begun, *used, self.next_row[index] - row, len(failed)]

    def setting(self, index: str, recall: float) -> tuple[str, float]:
        """Return the first setting that reaches a recall on the validation queries, or the last
        setting if all settings miss it, and the measured recall."""
        queries = self.data.query_sets[1][:SAMPLE]
        top = self.data.top[1][:SAMPLE]
        for name, ask in self.asks[index].items():
            reached = self.measure(ask, queries, [ALL] * len(queries), top)[0]
            if reached >= recall:
                return name, reached
        return name, reached

    def rates(
        self,
        recalls: Sequence[float],
        crowds: Sequence[int],
        seconds: float,
        rounds: int,
    ) -> Any:
        """Yield a row for each recall, number of clients and index, first without writers and then
        with writers."""
        chosen = {
            (index, recall): self.setting(index, recall)
            for index, recall in product(self.asks, recalls)
        }
        for writing, recall, clients in product((False, True), recalls, crowds):
            results: dict[str, list[Any]] = {index: [] for index in self.asks}
            for _, index in product(range(rounds + 1), self.asks):
                ask = self.asks[index][chosen[index, recall][0]]
                results[index].append(self.turn(index, ask, clients, seconds, writing=writing))
            for index, turns in results.items():
                times = np.concatenate([t for t, _ in turns[1:]])
                sums = np.sum([s for _, s in turns[1:]], axis=0)
                qps = len(times) / sums[0]
                (p50, p99) = np.percentile(times, [50, 99])
                name, reached = chosen[index, recall]
                found, few = self.check(index, self.asks[index][name])
                costs = [f"{1000 * each / len(times):.3f}" for each in sums[1:3]]
                case = f"{recall:g} {'beside writers' if writing else 'alone'}"
                cells = [
                    f"{found:.4f}",
                    f"{reached:.4f}",
                    f"{few:.4f}",
                    f"{qps:.0f}",
                    f"{p50:.2f}",
                    f"{p99:.2f}",
                ]
                yield [
                    case,
                    index,
                    clients,
                    name,
                    *cells,
                    *costs,
                    f"{sums[3] / sums[0]:.0f}",
                    int(sums[4]),
                    self.lost(index),
                ]

    def check(self, index: str, ask: Ask) -> tuple[float, float]:
        """Return the recall of the reported queries, and the fraction of queries with too few hits,
        for the current items in the index."""
        rows = np.fromiter(self.live[index].values(), np.int64)
        queries = self.data.query_sets[0][:SAMPLE]
        top = [
            set(rows[near].tolist())
            for near in nearest(queries, [(0, self.all[rows].astype(np.float32))])[1]
        ]
        return self.measure(ask, queries, [ALL] * len(queries), top)[:2]

    def lost(self, index: str) -> int:
        """Return the number of missing or surplus items in the index."""
        if index == "boc":
            ids = [item.id for item in self.searcher.index.items()]
        else:
            body = {"query": {"match_all": {}}, "_source": ["id"], "sort": ["_doc"]}
            ids = [hit["_source"]["id"] for hit in scan(self.server.timed, index, body)]
        return len({*ids} ^ {*self.live[index]}) + len(ids) - len({*ids})


@click.command()
@click.argument("kind")
@click.argument("gallery", type=FILE)
@click.argument("queries", type=FILE)
@click.option(
    "--validation",
    type=FILE,
    required=True,
    help="Feature file of queries for choosing settings.",
)
@WORK
@click.option(
    "--count",
    default=100_000,
    show_default=True,
    help="Number of items to load; writers add the remaining items.",
)
@click.option("--clients", multiple=True, default=(8, 32), show_default=True)
@click.option("--recall", "recalls", multiple=True, default=(0.95, 0.98), show_default=True)
@SHARES
@click.option(
    "--queries",
    "most",
    default=200,
    show_default=True,
    help="Maximum number of queries per filter.",
)
@click.option("--seconds", default=5.0, show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(
    kind: str,
    gallery: Path,
    queries: Path,
    validation: Path,
    work: Path,
    count: int,
    clients: tuple[int, ...],
    recalls: tuple[float, ...],
    shares: tuple[float, ...],
    most: int,
    seconds: float,
    rounds: int,
) -> None:
    """Start a server of a KIND, and compare boc with HNSW on GALLERY and QUERIES."""
    work.mkdir(parents=True, exist_ok=True)
    data = Data(work, first(gallery, work, count), queries, validation, None, 0)
    data.check()
    settings = {
        "kind": kind,
        "gallery": gallery,
        "items": data.shape[0],
        "dim": data.shape[1],
        "seconds": seconds,
    }
    with (
        start_server(kind, work / "server", "1g") as node,
        Writer(sys.stdout, __file__, settings, COLUMNS) as out,
    ):
        crowd = Crowd(
            data,
            gallery,
            Server(kind, f"{SCHEMES[node.kind.engine]}+{node.url}?replicas=0"),
        )
        for case, _, index, setting, found, tried, few, p50, *_ in crowd.rows(
            shares,
            most,
            0.97,
            rounds,
        ):
            out.write(case, index, 1, setting, found, tried, few, "", p50, *[""] * 6)
        for cells in crowd.rates(recalls, clients, seconds, rounds):
            out.write(*cells)


if __name__ == "__main__":
    main()
