"""Gain and cost of re-ranking by alignment of concepts over codes of global vectors.

    python -m bench.paper.alignment_rerank DEV --fit TRAIN

An index of DEV under the default code, learned on TRAIN, is made with its concept sets as float16, and as int8. One row
a direction, type of the concepts, metric and Rm: R@1 and R@10 of the K best among Rm * K candidates of
the index; the milliseconds that a search for 10 takes longer than re-ranked by dot (median and quartiles, one query at
a time, metrics in turns; for dot itself, all of them); bytes of postings, vectors and concepts, an item of pictures and
captions together. Metric "none" is the ranking of the index alone.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from bench.report.rows import Writer
from boc.codecs import Code
from boc.indexes.learn import fit_code
from boc.indexes.load import load_index, new_manifest
from boc.inputs.features import FeatureFile
from boc.names import CONCEPT_DTYPES, METRICS, Metric
from boc.rerank.alignment import align
from boc.rerank.dot import dot
from boc.search.searcher import Searcher
from boc.types import Embeddings, Modality, SearchRequest

RMS = (1, 2, 5, 10, 20, 50)
CUTOFFS = (1, 10)
DIRECTIONS: tuple[tuple[Modality, Modality], ...] = (("text", "image"), ("image", "text"))
QUERIES = 256  # asked at a time
COLUMNS = (
    "direction", "stored as", "metric", "Rm", "R@1", "R@10", "ms", "ms q1", "ms q3", "postings", "vectors", "concepts",
)  # fmt: skip


def recalls(
    searcher: Searcher, file: FeatureFile, asking: Modality, target: Modality, rms: Sequence[int]
) -> dict[str, NDArray[np.float64]]:
    """Return R@1 and R@10 in percent, (len(rms), 2), of each metric."""
    counts = {metric: np.zeros((len(rms), len(CUTOFFS))) for metric in ("none", *METRICS)}
    with click.progressbar(length=file.count(asking), label=f"{asking} to {target}", file=sys.stderr) as bar:
        for rows in file.batches(asking, QUERIES):
            queries = rows.embeddings
            assert queries.concepts is not None
            terms = searcher.codec.encode_queries(queries)
            hits = searcher.index.search(SearchRequest(terms, max(rms) * max(CUTOFFS), target))
            for i, (query, candidates) in enumerate(zip(rows.items, hits, strict=True)):
                own = np.array([hit.item.group == query.group for hit in candidates])
                ids = [hit.item.id for hit in candidates]
                stored = searcher.index.concepts(ids)
                scores: dict[str, NDArray[Any]] = {
                    "none": -np.arange(len(ids)),
                    "dot": dot(queries.vectors[i], searcher.index.vectors(ids)),
                }
                for metric in METRICS[1:]:
                    scores[metric] = align(queries.concepts[i], stored, metric, asks_by_words=asking == "text")
                for name, values in scores.items():
                    counts[name] += [[hit_at(k, own[: rm * k], values[: rm * k]) for k in CUTOFFS] for rm in rms]
            bar.update(len(rows.items))
    return {metric: 100 * hit / file.count(asking) for metric, hit in counts.items()}


def hit_at(k: int, own: NDArray[np.bool_], scores: NDArray[np.float32]) -> bool:
    """Return whether one of the query's own is among the k best."""
    return bool(own[np.argsort(-scores, kind="stable")[:k]].any())


def milliseconds(
    searcher: Searcher, queries: Sequence[Embeddings], target: Modality, rm: int
) -> dict[str, NDArray[np.float64]]:
    """Return quartiles of the time of a search by dot, and of what each alignment adds, over the same queries."""

    def caller(metric: Metric) -> Callable[[], object]:
        turns = cycle(queries)
        return lambda: searcher.search_vectors(next(turns), k=max(CUTOFFS), rm=rm, find=target, rerank=metric)

    times = time_in_turns({metric: caller(metric) for metric in METRICS}, len(queries))
    plain = np.array(times["dot"])
    longer = {metric: np.array(durations) - (plain if metric != "dot" else 0) for metric, durations in times.items()}
    return {metric: np.percentile(durations, [50, 25, 75]) for metric, durations in longer.items()}


def time_in_turns(variants: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Measure milliseconds of each call; the first round warms up and is left out."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats + 1):
        for name, call in variants.items():
            start = time.perf_counter()
            call()
            times[name].append(1000 * (time.perf_counter() - start))
    return {name: durations[1:] for name, durations in times.items()}


def single_queries(file: FeatureFile, asking: Modality, count: int) -> list[Embeddings]:
    """Return ``count`` queries evenly spread, each on its own."""
    total = file.count(asking)
    numbers = islice(range(0, total, max(1, total // count)), count)
    return [file.batch(asking, i, i + 1).embeddings for i in numbers]


def rows(dev: FeatureFile, train: FeatureFile, rms: Sequence[int], timed: int) -> Iterator[list[object]]:
    codec = fit_code(train, Code("scalar").codec(dev.header.dim))
    for dtype in CONCEPT_DTYPES:
        with tempfile.TemporaryDirectory() as folder:
            at = f"file:{folder}"
            for _ in load_index(dev, at, "bench", codec, new_manifest(dev, codec, concepts=dtype)):
                pass
            searcher = Searcher.open("bench", at)
            sizes = searcher.index.sizes()
            items = dev.count("image") + dev.count("text")
            stored = [math.ceil(sizes[part] / items) for part in ("postings", "vectors", "concepts")]
            for asking, target in DIRECTIONS:
                recall = recalls(searcher, dev, asking, target, rms)
                queries = single_queries(dev, asking, timed)
                for i, rm in enumerate(rms):
                    times = milliseconds(searcher, queries, target, rm)
                    for metric in METRICS if i else ("none", *METRICS):
                        quartiles = [f"{ms:.3f}" for ms in times.get(metric, [])] or [""] * 3
                        figures = [f"{value:.2f}" for value in recall[metric][i]]
                        yield [f"{asking} to {target}", dtype, metric, rm, *figures, *quartiles, *stored]


@click.command()
@click.argument("dev", type=click.Path(path_type=Path))
@click.option(
    "--fit", "train", required=True, type=click.Path(path_type=Path), help="Embeddings to learn the code from."
)
@click.option("--rm", "rms", multiple=True, type=click.IntRange(1), default=RMS, show_default=True)
@click.option("--timed", default=50, show_default=True, type=click.IntRange(1), help="Queries that are timed.")
def main(dev: Path, train: Path, rms: tuple[int, ...], timed: int) -> None:
    """Measure gain and cost of re-ranking DEV by alignment."""
    parameters = {"dev": dev, "fit": train, "rm": rms, "timed": timed}
    with (
        FeatureFile(dev) as gallery,
        FeatureFile(train) as sample,
        Writer(sys.stdout, __file__, parameters, COLUMNS) as out,
    ):
        for row in rows(gallery, sample, rms, timed):
            out.write(*row)


if __name__ == "__main__":
    main()
