"""Compare boc's default filtered search with faiss selectors by recall, missing hits and latency.

    python -m bench.race.filtered composed.h5 composed-queries.h5 --validation
    composed-validation.h5 --work FOLDER

A filter passes a random fraction of the items, or a single cluster: the nearest cluster to the
query by centroid score, the middle cluster, or the farthest. For boc, the index is built by `boc
index`, and the search has the filter and no other option. For each rival, a row shows the fastest
setting that reached ``--recall`` on the validation queries, or came closest to it. The selectors
are built in advance, and their cost is not counted. ``few`` is the fraction of queries with fewer
hits than possible (at most ten), and ``passed`` is the mean fraction of items that pass.
Milliseconds are medians over rounds, with the minimum and maximum round, on one thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from bench.options import FILE, SHARES, WORK
from bench.race import engines
from bench.race.data import Data, K, Matrix, log, nearest
from bench.race.engine import folder_of, once, use_threads
from bench.race.timing import WARM, summarise
from bench.report.rows import Writer
from boc.inputs.metadata import Metadata
from boc.manage.build import build_index
from boc.search.searcher import Searcher
from boc.types import Embeddings

COLUMNS = (
    "filter",
    "passed",
    "index",
    "setting",
    "recall",
    "validation",
    "few",
    "p50_ms",
    "p50_least",
    "p50_most",
)
faiss: Any = import_module("faiss")  # the type stubs of faiss lack search parameters
NAME = "filtered"
MEMBERS = 2_000  # approximate size of a cluster
PLACES = {"near": 0.0, "middle": 0.5, "far": 1.0}
RIVALS = {
    "hnsw32": (16, 32, 64, 128, 256, 512, 1024, 2048),
    "ivf-sq8": (4, 8, 16, 32, 64, 128, 256, 512, 1024),
}
ALL = ""  # condition that all items meet

Ask = Callable[[Matrix, str], Any]


@dataclass(frozen=True)
class Filters:
    """Metadata for filters: ``draw`` (n,) and ``cluster`` (n,) of the items, and the cluster
    centroids."""

    draw: NDArray[np.int64]
    cluster: NDArray[np.int64]
    centroids: Matrix

    @classmethod
    def of(cls, data: Data) -> Filters:
        count, dim = data.shape
        clusters = faiss.Kmeans(
            dim,
            max(4, count // MEMBERS),
            seed=data.seed,
            spherical=True,
        )
        clusters.train(data.vectors[:: max(1, count // 50_000)].astype(np.float32))
        found = [clusters.index.search(block, 1)[1] for _, block in data.blocks()]
        return cls(
            draw=np.random.default_rng(data.seed).permutation(count),
            cluster=np.concatenate(found)[:, 0],
            centroids=clusters.centroids,
        )

    def metadata(self, ids: Sequence[str]) -> Metadata:
        pairs = zip(ids, self.draw.tolist(), self.cluster.tolist(), strict=True)
        return Metadata(
            {"draw": "integer", "cluster": "integer"},
            {k: {"draw": d, "cluster": c} for k, d, c in pairs},
        )

    def conditions(
        self,
        queries: Matrix,
        shares: Sequence[float],
    ) -> Iterator[tuple[str, list[str]]]:
        """Yield filters by name, with the condition of each query."""
        yield "none", [ALL] * len(queries)
        for share in shares:
            yield (
                f"random {share:g}",
                [f"draw<{max(1, round(share * len(self.draw)))}"] * len(queries),
            )
        order = np.argsort(-queries @ self.centroids.T, axis=1)
        for name, place in PLACES.items():
            chosen = order[:, round(place * (order.shape[1] - 1))]
            yield f"cluster {name}", [f"cluster={number}" for number in chosen.tolist()]

    def rows(self, condition: str) -> NDArray[np.int64]:
        """Return the rows that pass the condition."""
        if condition == ALL:
            return np.arange(len(self.draw))
        if condition.startswith("draw"):
            return np.flatnonzero(self.draw < int(condition.removeprefix("draw<")))
        return np.flatnonzero(self.cluster == int(condition.removeprefix("cluster=")))


def exact(
    data: Data,
    queries: Matrix,
    conditions: Sequence[str],
    filters: Filters,
) -> list[set[int]]:
    """Return the rows of at most ten best items that pass the filter."""
    best: list[set[int]] = [set()] * len(queries)
    for condition in set(conditions):
        asking = [i for i, other in enumerate(conditions) if other == condition]
        if condition == ALL:
            top = nearest(queries[asking], data.blocks())[1]
        else:
            rows = filters.rows(condition)
            passing = data.vectors[rows].astype(np.float32)
            places = nearest(queries[asking], [(0, passing)])[1]
            top = rows[places[:, : len(rows)]]
        for i, found in zip(asking, top.tolist(), strict=True):
            best[i] = set(found)
    return best


class Race:
    """Indexes over ``data``, each opened once, and faiss selectors by condition."""

    def __init__(self, data: Data, threads: int, rivals: Sequence[str]) -> None:
        self.data = data
        self.filters = Filters.of(data)
        folder = folder_of(data, "boc default")
        once(folder, threads, _build, data, folder, self.filters)
        for name in rivals:
            engines.build(data, name, threads)
        self.rivals = {name: engines.open_engine(data, name) for name in rivals}
        self.searcher = Searcher.open(NAME, f"file:{folder}")
        self.selectors: dict[str, Any] = {}

    @cached_property
    def asks(self) -> Mapping[str, Mapping[str, Ask]]:
        """Return the functions that run queries, by index and setting."""
        rivals = {
            name: {f"{knob}={number}": self._rival(name, number) for number in RIVALS[name]}
            for name, knob in zip(self.rivals, ("ef", "nprobe"), strict=False)
        }
        return {"boc": {"default": self._ours}, **rivals}

    def _ours(self, query: Matrix, condition: str) -> Any:
        kept = (condition,) if condition else ()
        asking = Embeddings(self.data.asking, query)
        return self.searcher.search_vectors(asking, k=K, find=self.data.modality, filters=kept)[0]

    def _rival(self, name: str, number: int) -> Ask:
        engine: Any = self.rivals[name]

        def ask(query: Matrix, condition: str) -> Any:
            chosen = {"sel": self.selectors[condition]} if condition else {}
            if name == "hnsw32":
                wanted = faiss.SearchParametersHNSW(efSearch=number, **chosen)
                return engine.index.search(query, K, params=wanted)[1][0]
            wanted = faiss.SearchParametersIVF(nprobe=min(number, engine.lists.nlist), **chosen)
            return engine.best(query, engine.index.search(query, 50, params=wanted)[1][0])

        return ask

    def select(self, conditions: Sequence[str]) -> None:
        """Build the selectors for these conditions."""
        for condition in {*conditions} - {*self.selectors, ALL}:
            mask = np.zeros(self.data.shape[0], bool)
            mask[self.filters.rows(condition)] = True
            self.selectors[condition] = faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))

    def measure(
        self,
        ask: Ask,
        queries: Matrix,
        conditions: Sequence[str],
        top: Sequence[set[int]],
    ) -> tuple[float, float, float]:
        """Return the recall, the fraction of queries with too few hits, and the median
        milliseconds."""
        times = np.empty(len(queries))
        shares = []
        few = 0
        for i in range(-min(WARM, len(queries)), len(queries)):
            query = queries[i][None]
            begun = time.perf_counter()
            answer = ask(query, conditions[i])
            times[i] = 1000 * (time.perf_counter() - begun)
            if i >= 0:
                rows = self._rows(answer)
                shares.append(len(top[i] & rows) / max(1, len(top[i])))
                few += len(rows) < len(top[i])
        return float(np.mean(shares)), few / len(queries), float(np.median(times))

    def _rows(self, answer: Any) -> set[int]:
        if isinstance(answer, np.ndarray):
            return {row for row in answer.tolist() if row >= 0}
        return {self.data.rows[hit.item.id] for hit in answer}

    def rows(
        self,
        shares: Sequence[float],
        most: int,
        recall: float,
        rounds: int,
    ) -> Iterator[list[object]]:
        """Yield a row for each filter and index."""
        reported, choosing = (queries[:most] for queries in self.data.query_sets)
        pairs = zip(
            self.filters.conditions(reported, shares),
            self.filters.conditions(choosing, shares),
            strict=True,
        )
        for (name, conditions), (_, others) in pairs:
            self.select([*conditions, *others])
            top = exact(self.data, reported, conditions, self.filters)
            tuning = exact(self.data, choosing, others, self.filters)
            passing = [len(self.filters.rows(each)) for each in conditions]
            tried: dict[str, dict[str, tuple[float, float, float]]] = {
                index: {} for index in self.asks
            }
            for index, settings in self.asks.items():
                for setting, ask in settings.items():
                    reached, _, middle = self.measure(ask, choosing, others, tuning)
                    tried[index][setting] = (min(reached, recall), -middle, reached)
            best = {
                index: max(each, key=lambda setting: each[setting]) for index, each in tried.items()
            }
            turns = [
                {
                    index: self.measure(self.asks[index][best[index]], reported, conditions, top)
                    for index in best
                }
                for _ in range(rounds)
            ]
            for index, chosen in best.items():
                found, few, _ = turns[0][index]
                log(f"{name}, {index} {chosen}: {found:.3f}")
                figures = [f"{value:.4f}" for value in (found, tried[index][chosen][2], few)]
                share = f"{np.mean(passing) / self.data.shape[0]:.5f}"
                yield [
                    name,
                    share,
                    index,
                    chosen,
                    *figures,
                    *summarise(np.array([t[index][2] for t in turns]), 4),
                ]


def _build(data: Data, folder: Path, filters: Filters) -> None:
    build_index(
        NAME,
        data.gallery,
        at=f"file:{folder}",
        metadata=filters.metadata(list(data.rows)),
    )


@click.command()
@click.argument("gallery", type=FILE)
@click.argument("queries", type=FILE)
@click.option("--validation", type=FILE, help="Feature file of queries for choosing settings.")
@WORK
@SHARES
@click.option(
    "--queries",
    "most",
    default=200,
    show_default=True,
    help="Maximum number of reported queries, and of validation queries.",
)
@click.option(
    "--recall",
    default=0.97,
    show_default=True,
    help="Recall that a rival's setting must reach.",
)
@click.option("--rounds", default=3, show_default=True)
@click.option(
    "--threads",
    default=2,
    show_default=True,
    help="Number of processors used to build indexes.",
)
def main(
    gallery: Path,
    queries: Path,
    validation: Path | None,
    work: Path,
    shares: tuple[float, ...],
    most: int,
    recall: float,
    rounds: int,
    threads: int,
) -> None:
    """Compare filtered searches on GALLERY and QUERIES."""
    work.mkdir(parents=True, exist_ok=True)
    data = Data(work, gallery, queries, validation, None, 0)
    data.check()
    race = Race(data, threads, list(RIVALS))
    use_threads(1)
    settings = {
        "gallery": gallery,
        "items": data.shape[0],
        "dim": data.shape[1],
        "queries": most,
        "recall": recall,
    }
    with Writer(sys.stdout, __file__, settings, COLUMNS) as out:
        for cells in race.rows(shares, most, recall, rounds):
            out.write(*cells)


if __name__ == "__main__":
    main()
