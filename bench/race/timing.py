"""Time the race: choose settings on some queries, and then run the chosen settings in turns on
other queries.

In ``variants_of``, every setting of an index runs the validation queries three times, in turns. A
setting is dropped if another setting of the same index is clearly better in both recall and time.
``measure`` times the remaining settings on one thread, one query at a time. In each round, the
queries are split into random parts. For each part, all settings run in turns, in random order, each
after some warm-up queries that are not counted. Settings that are compared are therefore measured
within seconds of each other, and a slower machine slows down all of them. In ``measure_rates``, the
compared settings run all queries as a batch.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import median

import numpy as np
from numpy.typing import NDArray

from bench.race.data import Data, K, Matrix, log
from bench.race.engine import Engine, Setting, use_threads

RECALLS = (0.90, 0.95, 0.98, 0.99)
WARM = 20  # warm-up queries of a setting before its timing starts
# queries per turn of a setting: few for short turns, but many more than warm-up queries
PART = 100
# passes over the validation queries, of which the fastest counts
PASSES = 3
CLEAR = 0.85  # fraction of another setting's time below which a setting is clearly faster
MILLISECONDS = 1000


@dataclass
class Variant:
    """Index at a setting, with its measurements."""

    name: str
    engine: Engine
    setting: Setting
    validation: float
    recall: float = 0.0
    # Response times in milliseconds (rounds, queries).
    times: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    # Mean milliseconds reported by the server.
    took: float | None = None
    # Queries per second on one processor and on two (2, rounds).
    qps: NDArray[np.float64] = field(default_factory=lambda: np.empty((2, 0)))
    # Maximum number of vectors read by a query.
    vectors_read: int | None = None

    @property
    def label(self) -> str:
        pairs = zip(self.engine.knobs, self.setting, strict=True)
        return " ".join(f"{name}={value}" for name, value in pairs) or "-"

    @property
    def medians(self) -> NDArray[np.float64]:
        """Return the median milliseconds of each round."""
        medians: NDArray[np.float64] = np.median(self.times, axis=1)
        return medians

    @property
    def p50(self) -> float:
        return float(median(self.medians.tolist()))

    def percentile_cells(self) -> list[str]:
        """Return the median, minimum and maximum, over rounds, of the 50th, 95th and 99th
        percentile."""
        return [
            cell
            for q in (50, 95, 99)
            for cell in summarise(np.percentile(self.times, q, axis=1), 3)
        ]


def summarise(values: NDArray[np.float64], digits: int) -> list[str]:
    """Return the median, minimum and maximum of values."""
    if not len(values):
        return ["", "", ""]
    return [f"{f(values):.{digits}f}" for f in (np.median, np.min, np.max)]


def recall_of(engine: Engine, queries: Matrix, top: Sequence[set[int]]) -> float:
    """Return the fraction of the exact top 10 that was returned."""
    shares = []
    for query, best in zip(queries, top, strict=True):
        rows = engine.rows(engine.ask(query[None]))
        shares.append(len(best.intersection(rows)) / K)
    return float(np.mean(shares))


def variants_of(data: Data, name: str, engine: Engine) -> list[Variant]:
    """Return the variants of an index: the settings in the grid that are not clearly beaten by
    another setting on the validation queries."""
    queries = data.query_sets[1]
    top = data.top[1]
    recalls: dict[Setting, float] = {}
    seconds = dict.fromkeys(engine.grid, math.inf)
    for _, setting in product(range(PASSES), engine.grid):
        engine.choose(setting)
        recall_of(engine, queries[:WARM], top[:WARM])
        begun = time.perf_counter()
        recalls[setting] = recall_of(engine, queries, top)
        seconds[setting] = min(seconds[setting], time.perf_counter() - begun)
    variants = [
        Variant(name, engine, setting, recall, vectors_read=engine.vectors_read(setting))
        for setting, recall in recalls.items()
        if not any(
            recalls[other] >= recall and seconds[other] < CLEAR * seconds[setting]
            for other in recalls
        )
    ]
    log(
        f"{name}: {len(variants)} of {len(recalls)} settings, recall to "
        f"{max(v.validation for v in variants):.3f}",
    )
    return variants


def measure(variants: Sequence[Variant], data: Data, rounds: int, seed: int) -> None:
    """Measure recall and times of all variants. In each round, the variants take turns on
    successive parts of the queries."""
    rng = np.random.default_rng(seed)
    queries = data.query_sets[0]
    top = data.top[0]
    for variant in variants:
        variant.times = np.empty((rounds, len(queries)))
    server_times: dict[int, list[float]] = {}
    log(f"timing {len(variants)} settings")
    gc.collect()
    gc.freeze()
    for turn in range(rounds):
        for part in np.array_split(rng.permutation(len(queries)), math.ceil(len(queries) / PART)):
            for j in rng.permutation(len(variants)).tolist():
                variant = variants[j]
                engine = variants[j].engine
                engine.choose(variant.setting)
                for i in rng.permutation(len(queries))[:WARM].tolist():
                    engine.ask(queries[i : i + 1])
                for i in part.tolist():
                    query = queries[i : i + 1]
                    begun = time.perf_counter()
                    engine.ask(query)
                    variant.times[turn, i] = MILLISECONDS * (time.perf_counter() - begun)
                    if engine.took is not None:
                        server_times.setdefault(j, []).append(engine.took)
        log(f"round {turn + 1} of {rounds}")
    gc.unfreeze()
    for j, variant in enumerate(variants):
        variant.took = float(np.mean(server_times[j])) if j in server_times else None
        variant.engine.choose(variant.setting)
        variant.recall = recall_of(variant.engine, queries, top)


def measure_rates(variants: Sequence[Variant], data: Data, rounds: int) -> None:
    """Measure the queries per second of batches, on one processor and on two."""
    queries = np.ascontiguousarray(data.query_sets[0])
    for variant in variants:
        variant.qps = np.empty((2, rounds))
    for threads, turn in product((1, 2), range(rounds)):
        use_threads(threads)
        for variant in variants:
            variant.engine.choose(variant.setting)
            begun = time.perf_counter()
            variant.engine.batch(queries, threads)
            variant.qps[threads - 1, turn] = len(queries) / (time.perf_counter() - begun)


def fastest(variants: Sequence[Variant], recall: float) -> Variant | None:
    """Return the fastest variant of an index that reaches a recall on the validation queries."""
    return min((v for v in variants if v.validation >= recall), key=lambda v: v.p50, default=None)


def best_at(groups: Mapping[str, Sequence[Variant]]) -> dict[int, list[float]]:
    """Return, by the identity of each variant, the recalls at which the variant is the fastest of
    its index."""
    recalls: dict[int, list[float]] = {}
    for recall, group in product(RECALLS, groups.values()):
        best = fastest(group, recall)
        if best is not None:
            recalls.setdefault(id(best), []).append(recall)
    return recalls
