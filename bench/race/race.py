"""Compare all engines at equal recall by latency, throughput, load time, disk space and memory.

    python -m bench.race.race captions.h5 captions-queries.h5
        --validation captions-validation.h5 --work m30k
    python -m bench.race.race captions.h5 captions-queries.h5 --work m30k-es
        --server elasticsearch-9
    python -m bench.race.race glove-100-angular.hdf5 --work glove
    python -m bench.race.race --synthetic 1000000 --work million

GALLERY and QUERIES are feature files of embeddings, or GALLERY is a file in the format of
ann-benchmarks, which also contains the true neighbours (bench/datasets/vectors.py). ``--synthetic
N`` draws N unit vectors instead (data.py). Without ``--server``, all indexes run in one process
(engines.py), and are built once, in folders below ``--work``. With ``--server``, the indexes are on
a search server (servers.py), which is started for the race or is running at the given address.
Codes of boc are then compared with the server's own HNSW on the first ``--limit`` items, and the
indexes are loaded one after the other. ``--index`` selects indexes in both cases.

Settings are chosen on the validation queries or, without a file of validation queries, on every
other query. Results are reported on the remaining queries (see timing.py). Queries per second and
memory are measured for the compared settings.

Columns: ``ours`` is 1 for codes of boc that are searched by boc. ``at`` lists the recalls (.90,
.95, .98, .99) at which this setting is the fastest setting of its index on the validation queries.
``recall`` is the recall of the exact top 10, on queries that were not used to choose settings.
Milliseconds are medians over rounds, with the minimum and maximum round. ``took_ms`` is the time
that a server reports for its own work. ``vectors_read`` is the maximum number of stored vectors
that a query is compared with, after cells or posting lists. ``fit_s`` is the time to learn the
code, ``encode_s`` the time to encode all items, and ``build_s`` the remaining time to load the
index, including merging. In a folder, boc encodes while it loads, so ``build_s`` is the total time.
Before the measured loads, a server loads a code and a graph as a warm-up. ``cpu_s`` is the number
of processor seconds of all three phases, including the server, and ``build_peak_mb`` is the peak
memory. ``disk_mb`` is the sum of ``index_mb`` (posting lists, graph, cells), ``vectors_mb``,
``codec_mb`` (learned arrays) and ``rest_mb`` (ids, sentences and words, which libraries do not
store). ``anon_mb`` is the private memory and ``file_mb`` the size of the touched mapped pages,
after 100 queries in a separate process. For a server, they refer to the memory that the server maps
while no other index is open, without the heap, which all indexes share.

``million_*`` is the estimated cost of a million items: GB on disk; GB of memory needed so that
searches never wait for the disk (private and mapped; for a server, without the heap); core hours to
fit, encode and load. All costs are scaled in proportion to the number of items, including arrays of
fixed size, such as the arrays of a code. Multiply by your own prices.

``*_rounds`` are the values of each round, from which ratios.py compares settings at equal recall.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import click
import numpy as np
from numpy.typing import NDArray

from bench.datasets import vectors
from bench.options import FILE, WORK
from bench.race import engines
from bench.race.data import Data, first, log, synthetic
from bench.race.engine import (
    PROCESSORS,
    Engine,
    Facts,
    Local,
    Setting,
    UnavailableError,
    use_threads,
)
from bench.race.servers import Server, connect
from bench.race.timing import Variant, best_at, measure, measure_rates, summarise, variants_of
from bench.race.vectors import EF_CONSTRUCTION
from bench.report.rows import Writer
from boc.inputs.vector_files import has_vectors

LIBRARIES = ("usearch", "scann", "rabitqlib", "elasticsearch", "opensearch-py")
PARTS = ("index", "vectors", "codec", "rest")
HEAD = (
    "engine",
    "index",
    "setting",
    "ours",
    "at",
    "recall",
    "validation",
    "p50_ms",
    "p50_least",
    "p50_most",
    "p95_ms",
    "p95_least",
    "p95_most",
    "p99_ms",
    "p99_least",
    "p99_most",
    "took_ms",
    "vectors_read",
    "qps_1",
    "qps_1_least",
    "qps_1_most",
    "qps_2",
    "qps_2_least",
    "qps_2_most",
    "fit_s",
    "encode_s",
    "build_s",
    "cpu_s",
    "build_peak_mb",
    "disk_mb",
    "index_mb",
    "vectors_mb",
    "codec_mb",
    "rest_mb",
    "anon_mb",
    "file_mb",
    "million_disk_gb",
    "million_memory_gb",
    "million_core_h",
    "p50_rounds",
    "qps_1_rounds",
    "qps_2_rounds",
)
ON_SERVER = 30_000  # default of --limit, as a number of items

Memory = tuple[int | None, int | None]


class Place(Protocol):
    """Place where indexes are stored: this process, or a server."""

    def build(self, data: Data, name: str, threads: int) -> Facts:
        """Build an index, unless it already exists. Raises UnavailableError if it is
        unavailable."""

    def open_engine(self, data: Data, name: str) -> Engine: ...

    def memory(self, data: Data, name: str, setting: Setting) -> Memory:
        """Return the private bytes and mapped bytes of an index at a setting."""


def row(
    variant: Variant,
    facts: Facts,
    memory: Memory,
    at: Sequence[float],
    items: int,
) -> list[str]:
    """Return the cells for one setting."""
    engine = variant.engine
    index = engine.kind or variant.name.partition(" ")[2]
    recalls = [f"{variant.recall:.4f}", f"{variant.validation:.4f}"]
    took = "" if variant.took is None else f"{variant.took:.2f}"
    read = "" if variant.vectors_read is None else str(variant.vectors_read)
    rates = [cell for rates in variant.qps for cell in summarise(rates, 0)]
    seconds = [f"{value:.2f}" for value in (facts.fit, facts.encode, facts.build, facts.cpu)]
    sizes = [
        megabytes(size)
        for size in (facts.peak, facts.disk, *(facts.sizes[part] for part in PARTS), *memory)
    ]
    known = [size for size in memory if size is not None]
    paper = [
        f"{facts.disk / items / 1000:.4f}",  # bytes per item equal GB per billion items
        f"{sum(known) / items / 1000:.4f}" if known else "",
        f"{1e6 * facts.cpu / items / 3600:.4f}",
    ]
    rounds = [join(variant.medians, 4), *(join(rates, 1) for rates in variant.qps)]
    return [
        engine.library,
        index,
        variant.label,
        str(int(engine.ours)),
        " ".join(f"{recall:.2f}" for recall in at),
        *recalls,
        *variant.percentile_cells(),
        took,
        read,
        *rates,
        *seconds,
        *sizes,
        *paper,
        *rounds,
    ]


def megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:.3f}"


def join(values: NDArray[np.float64], digits: int) -> str:
    return " ".join(f"{value:.{digits}f}" for value in values.tolist())


def build_all(data: Data, places: Mapping[str, Place], threads: int) -> dict[str, Facts]:
    """Build all available indexes, and report unavailable ones."""
    for server in {
        place.label: place for place in places.values() if isinstance(place, Server)
    }.values():
        server.warm_up(
            data,
            [name for name, place in places.items() if place is server],
            threads,
        )
    facts = {}
    for name, place in places.items():
        try:
            facts[name] = place.build(data, name, threads)
        except UnavailableError as error:
            log(f"{name}: left out, {error}")
    return facts


def race(
    data: Data,
    places: Mapping[str, Place],
    facts: Mapping[str, Facts],
    rounds: int,
    out: Writer,
) -> None:
    """Measure each setting and write its row."""
    use_threads(1)
    groups = {name: variants_of(data, name, places[name].open_engine(data, name)) for name in facts}
    every = [variant for group in groups.values() for variant in group]
    measure(every, data, rounds, data.seed)
    at = best_at(groups)
    measure_rates([variant for variant in every if id(variant) in at], data, rounds)
    use_threads(1)
    for engine in {id(variant.engine): variant.engine for variant in every}.values():
        if isinstance(engine, Local):
            engine.close()  # open engines would compete with measured engines for memory
    for name, group in groups.items():
        memory: Memory = (None, None)
        compared = [variant for variant in group if id(variant) in at]
        if compared:
            chosen = max(compared, key=lambda variant: max(at[id(variant)]))
            memory = places[name].memory(data, name, chosen.setting)
        for variant in group:
            recalls = at.get(id(variant), [])
            shown = memory if recalls else (None, None)
            out.write(*row(variant, facts[name], shown, recalls, data.shape[0]))


def make_data(
    gallery: Path | None,
    queries: Path | None,
    validation: Path | None,
    count: int | None,
    dim: int,
    queries_drawn: int,
    work: Path,
    terms: int | None,
    seed: int,
    limit: int | None,
) -> Data:
    """Return the data with the first ``limit`` items of the gallery, which is created on first use.
    Raises UsageError without a gallery, or if the folder contains other data."""
    work.mkdir(parents=True, exist_ok=True)
    truth = None
    if count is not None:
        gallery, queries, validation = synthetic(work, count, dim, queries_drawn, seed)
    elif gallery is not None and queries is None and has_vectors(gallery):
        files = vectors.convert(gallery, work / "data")
        gallery = files.gallery
        queries = files.queries
        truth = files.truth
    if gallery is None or queries is None:
        raise click.UsageError(
            "pass GALLERY and QUERIES, a file of ann-benchmarks, or --synthetic N",
        )
    cut = gallery if limit is None else first(gallery, work, limit)
    data = Data(
        work,
        cut,
        queries,
        validation,
        terms,
        seed,
        truth if cut == gallery else None,
    )
    data.check()
    return data


@click.command()
@click.argument("gallery", required=False, type=FILE)
@click.argument("queries", required=False, type=FILE)
@click.option("--validation", type=FILE, help="Feature file of queries for choosing settings.")
@click.option(
    "--synthetic",
    "count",
    type=int,
    help="Number of synthetic items to use instead of GALLERY and QUERIES.",
)
@click.option(
    "--dim",
    default=1024,
    show_default=True,
    help="Number of components of synthetic vectors.",
)
@click.option(
    "--queries",
    "queries_drawn",
    default=300,
    show_default=True,
    help="Number of synthetic queries.",
)
@WORK
@click.option(
    "--terms",
    type=int,
    help="Size of the dictionary [default: depends on the size of the gallery].",
)
@click.option(
    "--threads",
    default=2,
    show_default=True,
    help="Number of threads that build each index.",
)
@click.option("--rounds", default=5, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--index",
    "names",
    multiple=True,
    help="Index to race, such as 'boc bits:32' or hnsw32; can be repeated [default: all].",
)
@click.option(
    "--server",
    "servers",
    multiple=True,
    help="Kind of tests/servers to start, or an address such as elastic+http://...",
)
@click.option(
    "--heap",
    default="2g",
    show_default=True,
    help="Java heap size of a server that is started for the race.",
)
@click.option(
    "--limit",
    type=int,
    help=f"Number of first items of GALLERY [default: all; {ON_SERVER} on a server].",
)
@click.option(
    "--prepare",
    is_flag=True,
    help="Draw data, compute exact results and build indexes, but do not measure.",
)
def main(
    work: Path,
    threads: int,
    rounds: int,
    names: tuple[str, ...],
    servers: tuple[str, ...],
    heap: str,
    limit: int | None,
    prepare: bool,
    **sources: Any,
) -> None:
    """Compare engines on GALLERY and QUERIES."""
    use_threads(threads)
    data = make_data(work=work, limit=limit or (ON_SERVER if servers else None), **sources)
    with ExitStack() as stack:
        places = chosen_places(names, servers, work, heap, stack)
        versions = {
            place.label: place.version for place in places.values() if isinstance(place, Server)
        }
        settings = {
            "gallery": sources["gallery"] or data.gallery,
            "items": data.shape[0],
            "dim": data.shape[1],
            "queries": len(data.query_sets[0]),
            "chosen_by": len(data.query_sets[1]),
            "rounds": rounds,
            "threads_to_build": threads,
            "indexes": list(places),
            "efConstruction": EF_CONSTRUCTION,
            "terms": data.terms,
            "servers": versions,
            "heap": heap if servers else None,
        }
        with Writer(sys.stdout, __file__, settings, HEAD, seed=data.seed, extras=LIBRARIES) as out:
            _ = data.top, data.halves  # computed in advance, because child processes need them
            facts = build_all(data, places, threads)
            if not prepare:
                race(data, places, facts, rounds, out)


def chosen_places(
    names: Sequence[str],
    servers: Sequence[str],
    work: Path,
    heap: str,
    stack: ExitStack,
) -> dict[str, Place]:
    """Return the indexes in the race, each with its place. Servers are started here and stopped
    with ``stack``."""
    use_threads(len(PROCESSORS))  # servers inherit the restriction to these processors
    running = {
        server.label: server
        for server in (stack.enter_context(connect(s, work, heap)) for s in servers)
    }
    here = [
        name for server in running.values() for name in server.all_names()
    ] or engines.all_names()
    places: dict[str, Place] = {}
    for name in names or here:
        server = running.get(name.partition(" ")[0])
        (server or engines).check_name(name)
        places[name] = server or engines
    return places


if __name__ == "__main__":
    main()
