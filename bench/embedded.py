"""The embedded engine beside scipy, tantivy, faiss and usearch: recall, latency, building, bytes, memory.

    python bench/embedded.py captions.h5 captions-queries.h5 --validation captions-validation.h5 --work m30k
    python bench/embedded.py --synthetic 1000000 --work million

GALLERY and QUERIES are feature files of embeddings; ``--synthetic N`` draws N unit vectors instead (embedded_data.py).
The indexes, and how each answers, are those of embedded_engines.py: every one is built once, on ``--threads`` threads,
into a folder of its own in ``--work``; what is there is not built again.

Settings are chosen on the validation queries (without such a file, on every other query) and told of the rest: all of
a grid answer them once, and those that another of the same index clearly beats, in recall and time, are dropped. The
rest are timed, one query at a time on one thread: in each round every setting answers all queries in a row, settings
and queries in a random order. Queries a second and memory are those of the settings that are compared. Resident memory
is measured in a fresh process that opens one index and answers 100 queries: what is its own (anon), and what is mapped
of files and was touched (file), without what the process had before. Queries a second are those of each one's own
interface for batches, held to one processor or two; scipy and tantivy, which have none, get threads.

Rows go to stdout as CSV, settings before them behind ``#``: recall of the exact top 10 (and on validation), medians and
percentiles in milliseconds as medians over rounds with the least and the most, seconds to fit a codebook and to build,
largest memory of the builder. Behind ``#`` afterwards: ours against each other at equal recall, both at their fastest
setting that reaches it, with the least and the most of the ratio over rounds; the kernel; a cold start of ``boc
search``.
"""

from __future__ import annotations

import csv
import ctypes
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from statistics import median

import click
import numpy as np
from embedded_data import Data, K, Matrix, synthetic, told
from embedded_engines import (
    EF_CONSTRUCTION,
    ENGINES,
    NAME,
    PROCESSORS,
    Engine,
    Ours,
    Setting,
    all_names,
    built,
    child,
    encoded,
    folder_of,
    opened,
    status,
    use_threads,
)
from numpy.typing import NDArray

from boc.features import FeatureFile

RECALLS = (0.90, 0.95)
WARM = 20  # queries of a setting before its clock starts
CLEAR = 0.85  # what one pass must be faster by to be sure of it
ASKED = 100  # queries before memory is looked at
LIBRARIES = ("boc", "numpy", "scipy", "faiss-cpu", "tantivy", "usearch")
HEAD = [
    "index", "setting", "recall", "validation", "p50_ms", "p50_least", "p50_most", "p95_ms", "p95_least", "p95_most",
    "p99_ms", "p99_least", "p99_most", "qps_1", "qps_1_least", "qps_1_most", "qps_2", "qps_2_least", "qps_2_most",
    "fit_s", "build_s", "build_peak_mb", "disk_mb", "anon_mb", "file_mb",
]  # fmt: skip


@dataclass
class Variant:
    """An index at a setting, and what was measured of it."""

    name: str
    engine: Engine
    setting: Setting
    validation: float
    recall: float = 0.0
    times: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))  # milliseconds (rounds, queries)
    qps: NDArray[np.float64] = field(default_factory=lambda: np.empty((2, 0)))  # on one processor and two (2, rounds)
    memory: tuple[int, ...] = ()  # bytes, its own and mapped; of those that are compared

    @property
    def label(self) -> str:
        if len(self.setting) == 2:
            return f"{self.setting[0]} R={self.setting[1]}"
        return " ".join(map(str, self.setting)) or "-"

    @property
    def medians(self) -> NDArray[np.float64]:
        """Of each round."""
        found: NDArray[np.float64] = np.median(self.times, axis=1)
        return found

    @property
    def p50(self) -> float:
        return median(self.medians.tolist())

    def row(self, facts: dict[str, float]) -> list[str]:
        percentiles = [cell for q in (50, 95, 99) for cell in spread(np.percentile(self.times, q, axis=1), 3)]
        rates = [cell for rates in self.qps for cell in spread(rates, 0)]
        memory = [f"{size / 1e6:.1f}" for size in self.memory] or ["", ""]
        seconds = [f"{facts[key]:.1f}" for key in ("fit", "build")]
        sizes = [f"{facts[key] / 1e6:.1f}" for key in ("peak", "disk")]
        recalls = [f"{self.recall:.4f}", f"{self.validation:.4f}"]
        return [self.name, self.label, *recalls, *percentiles, *rates, *seconds, *sizes, *memory]


def spread(values: NDArray[np.float64], digits: int) -> list[str]:
    """Median, least and most."""
    return [f"{f(values):.{digits}f}" for f in (np.median, np.min, np.max)] if len(values) else ["", "", ""]


def recall_of(engine: Engine, queries: Matrix, top: Sequence[set[int]]) -> float:
    """The share of the exact top 10 that is found."""
    found = [engine.rows(engine.ask(queries[i : i + 1])) for i in range(len(queries))]
    return float(np.mean([len(best.intersection(rows)) / K for best, rows in zip(top, found, strict=True)]))


def variants_of(data: Data, name: str) -> list[Variant]:
    """An index at the settings of its grid that no other clearly beats on the validation queries."""
    engine, (queries, top) = opened(data, name), (data.asked[1], data.top[1])
    found = []
    for setting in engine.grid:
        engine.choose(setting)
        recall_of(engine, queries[:WARM], top[:WARM])
        begun = time.perf_counter()
        recall = recall_of(engine, queries, top)
        found.append((setting, recall, time.perf_counter() - begun))
    kept = [
        Variant(name, engine, setting, recall)
        for setting, recall, seconds in found
        if not any(other >= recall and took < CLEAR * seconds for _, other, took in found)
    ]
    told(f"{name}: {len(kept)} of {len(found)} settings, recall to {max(v.validation for v in kept):.3f}")
    return kept


def measure(variants: Sequence[Variant], data: Data, rounds: int, seed: int) -> None:
    """Recall and times of all variants: in each round each answers all queries, in another order."""
    rng = np.random.default_rng(seed)
    queries, top = data.asked[0], data.top[0]
    for variant in variants:
        variant.times = np.empty((rounds, len(queries)))
    told(f"timing {len(variants)} settings")
    gc.collect()
    gc.freeze()
    for turn in range(rounds):
        for j in rng.permutation(len(variants)).tolist():
            variant, engine = variants[j], variants[j].engine
            engine.choose(variant.setting)
            order = rng.permutation(len(queries)).tolist()
            for i in order[:WARM]:
                engine.ask(queries[i : i + 1])
            for i in order:
                query = queries[i : i + 1]
                begun = time.perf_counter()
                engine.ask(query)
                variant.times[turn, i] = 1000 * (time.perf_counter() - begun)
        told(f"round {turn + 1} of {rounds}")
    for variant in variants:
        variant.engine.choose(variant.setting)
        variant.recall = recall_of(variant.engine, queries, top)


def measure_rates(variants: Sequence[Variant], data: Data, rounds: int) -> None:
    """Queries a second of batches, on one processor and on two."""
    queries = np.ascontiguousarray(data.asked[0])
    for variant in variants:
        variant.qps = np.empty((2, rounds))
    for threads, turn in product((1, 2), range(rounds)):
        use_threads(threads)
        for variant in variants:
            variant.engine.choose(variant.setting)
            begun = time.perf_counter()
            variant.engine.batch(queries, threads)
            variant.qps[threads - 1, turn] = len(queries) / (time.perf_counter() - begun)


def resident(data: Data, name: str, setting: Setting) -> tuple[int, int]:
    """In a process of its own: what opening an index and asking it adds to the memory of a process."""
    use_threads(1)
    for module in ("faiss", "scipy.sparse", "indexing.embedded", "tantivy", "usearch.index"):
        with suppress(ImportError):
            import_module(module)
    queries, _ = np.ascontiguousarray(data.asked[1][:ASKED]), data.modality  # read before, not counted
    before = status("RssAnon"), status("RssFile")
    engine = opened(data, name)
    engine.choose(setting)
    for i in range(len(queries)):
        engine.ask(queries[i : i + 1])
    gc.collect()
    return max(0, status("RssAnon") - before[0]), max(0, status("RssFile") - before[1])


def fastest(variants: Sequence[Variant], recall: float) -> Variant | None:
    """The fastest of one index that reaches a recall on the validation queries."""
    return min((v for v in variants if v.validation >= recall), key=lambda v: v.p50, default=None)


def picked(groups: dict[str, list[Variant]]) -> dict[float, dict[str, Variant]]:
    """By recall and name of the index: its fastest variant."""
    found = {recall: {name: fastest(group, recall) for name, group in groups.items()} for recall in RECALLS}
    return {recall: {name: v for name, v in best.items() if v} for recall, best in found.items()}


def compared(best: dict[str, Variant], facts: dict[str, dict[str, float]], recall: float) -> Iterator[str]:
    """Each index of ours with those over the same code and with those over vectors."""
    for a, b in product(best.values(), best.values()):
        (engine, _, code), (other, _, theirs) = a.name.partition(" "), b.name.partition(" ")
        if engine == "boc" and other != "boc" and theirs in ("", code):
            ratio = a.medians / b.medians
            ours, others = facts[a.name], facts[b.name]
            yield (
                f"at {recall:.2f}: {a.name} ({a.label}, {a.recall:.3f}) / {b.name} ({b.label}, {b.recall:.3f}): "
                f"p50 {np.median(ratio):.3f} ({ratio.min():.3f} to {ratio.max():.3f}), "
                f"build {ours['build'] / others['build']:.3f} "
                f"(with fitting {(ours['build'] + ours['fit']) / others['build']:.3f}), "
                f"disk {ours['disk'] / others['disk']:.3f}, {shares(a, b)}"
            )


def shares(a: Variant, b: Variant) -> str:
    """How their memory compares."""
    anon, both = a.memory[0] / max(1, b.memory[0]), sum(a.memory) / max(1, sum(b.memory))
    return f"memory {anon:.3f} of its own, {both:.3f} with mapped pages"


SCATTER = """
#include <stdint.h>
void scatter(const uint16_t *rows, const uint8_t *weights, long n, uint16_t *sums) {
    for (long i = 0; i < n; i++) sums[rows[i]] += weights[i];
}
"""


def scatter_ns(seed: int) -> float | None:
    """Nanoseconds of one ``sums[row] += weight`` in C over 65,536 sums; None without a compiler."""
    rng = np.random.default_rng(seed)
    n = 1 << 20
    rows = np.sort(rng.integers(0, 1 << 16, (n >> 12, 1 << 12)), axis=1).astype(np.uint16)  # lists of 4,096
    weights, sums = rng.integers(1, 16, n).astype(np.uint8), np.zeros(1 << 16, np.uint16)
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "scatter.c", Path(folder) / "scatter.so"
        source.write_text(SCATTER)
        try:
            subprocess.run(["cc", "-O3", "-shared", "-fPIC", "-o", library, source], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        scatter = ctypes.CDLL(str(library)).scatter
    arguments = [ctypes.c_void_p(array.ctypes.data) for array in (rows, weights, sums)]
    times = []
    for _ in range(21):
        begun = time.perf_counter()
        scatter(*arguments[:2], ctypes.c_long(n), arguments[2])
        times.append(time.perf_counter() - begun)
    return 1e9 * median(times) / n


def kernel(data: Data, chosen: Sequence[Variant], rounds: int, seed: int) -> Iterator[str]:
    """Nanoseconds a posting of our kernel alone, at the settings chosen."""
    from scipy import sparse

    from indexing._postings import Postings

    bound = scatter_ns(seed)
    against = "" if bound is None else f"; one scatter in C {bound:.2f} ns here"
    for variant in chosen:
        engine = variant.engine
        assert isinstance(engine, Ours)
        terms = sparse.vstack(list(encoded(data, variant.name.partition(" ")[2])), format="csr")
        postings = Postings.from_matrix(terms)
        engine.choose(variant.setting)
        queries = [engine.terms(query[None]) for query in data.asked[0]]
        lengths = postings.document_frequencies()
        read = np.array([lengths[query.indices].sum() for query in queries])
        took = np.empty((rounds, len(queries)))
        for turn, i in product(range(rounds), range(len(queries))):
            begun = time.perf_counter_ns()
            postings.top(queries[i], engine.depth)
            took[turn, i] = time.perf_counter_ns() - begun
        each = took.sum(axis=1) / read.sum()
        yield (
            f"kernel: {variant.name} ({variant.label}): {read.mean():.0f} postings a query, "
            f"{np.median(took) / 1e6:.3f} ms, {np.median(each):.3f} ns a posting "
            f"({each.min():.3f} to {each.max():.3f}){against}"
        )


def cold_start(data: Data, variant: Variant, starts: int) -> str:
    """Seconds of ``boc search`` as a process of its own, by a vector that is there."""
    with FeatureFile(data.queries) as file:
        item = file.ids(data.modality)[0]
    command = [sys.executable, "-c", "from boc.cli import main; main()", "search", NAME, "--features", data.queries]
    options = ["--id", item, "--at", f"file:{folder_of(data, variant.name)}", "--find", data.modality]
    arguments = [str(part) for part in [*command, *options, "--rm", variant.setting[1] / K]]
    times = []
    for _ in range(1 + starts):
        begun = time.perf_counter()
        subprocess.run(arguments, check=True, capture_output=True)
        times.append(time.perf_counter() - begun)
    warm = times[1:]
    return f"cold start: boc search in {variant.name}: {median(warm):.3f} s ({min(warm):.3f} to {max(warm):.3f})"


def about(threads: int) -> list[str]:
    """What was measured, and where."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        ", ".join([*libraries(), f"Python {sys.version.split()[0]}"]),
        f"{model}, {len(PROCESSORS)} processors, {memory:.0f} GiB, Linux {os.uname().release}; "
        f"built on {threads} threads, searched on one",
    ]


def libraries() -> Iterator[str]:
    """Those that are there, with their versions."""
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            yield f"{name} {version(name)}"


@click.command()
@click.argument("gallery", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("queries", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--validation", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Choose settings.")
@click.option("--synthetic", "count", type=int, help="Random data of so many items, in place of GALLERY and QUERIES.")
@click.option("--dim", default=1024, show_default=True, help="Of synthetic vectors.")
@click.option("--asked", default=300, show_default=True, help="Synthetic queries.")
@click.option(
    "--work", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of all that is built."
)
@click.option("--index", "names", multiple=True, help="Such as 'boc bits:64', 'scipy bits:64', hnsw32 [default: all].")
@click.option("--terms", type=int, help="Of the dictionary [default: by the size of the gallery].")
@click.option("--threads", default=2, show_default=True, help="To build with, for every index.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--starts", default=7, show_default=True, help="Cold starts of boc search, after one more.")
@click.option("--prepare", is_flag=True, help="Draw, answer exactly and build; measure nothing.")
def main(
    gallery: Path | None,
    queries: Path | None,
    validation: Path | None,
    count: int | None,
    dim: int,
    asked: int,
    work: Path,
    names: tuple[str, ...],
    terms: int | None,
    threads: int,
    rounds: int,
    seed: int,
    starts: int,
    prepare: bool,
) -> None:
    """Compare the embedded engine with others on GALLERY and QUERIES."""
    work.mkdir(parents=True, exist_ok=True)
    use_threads(threads)
    if count is not None:
        gallery, queries, validation = synthetic(work, count, dim, asked, seed)
    if gallery is None or queries is None:
        raise click.UsageError("give GALLERY and QUERIES, or --synthetic N")
    data = Data(work, gallery, queries, validation, terms, seed)
    data.check()
    chosen = list(names) or all_names()
    unknown = [name for name in chosen if name.partition(" ")[0] not in ENGINES]
    if unknown:
        raise click.UsageError(f"no index {unknown[0]!r}; known: {', '.join(all_names())}")
    n, (rows, width) = len(data.asked[0]), data.shape
    print(f"# {gallery.name}: {rows} x {width}, {n} queries ({len(data.asked[1])} to choose by), seed {seed}")
    for line in (f"{rounds} rounds, efConstruction {EF_CONSTRUCTION}", *about(threads)):
        print(f"# {line}")
    sys.stdout.flush()
    _ = data.top, data.halves  # before children need them
    facts = {name: built(data, name, threads) for name in chosen}
    if not prepare:
        report(data, facts, rounds, seed, starts)


def report(data: Data, facts: dict[str, dict[str, float]], rounds: int, seed: int, starts: int) -> None:
    """Measure and print."""
    use_threads(1)
    groups = {name: variants_of(data, name) for name in facts}
    every = [variant for group in groups.values() for variant in group]
    measure(every, data, rounds, seed)
    best = picked(groups)
    shown = [v for v in every if any(v is chosen for group in best.values() for chosen in group.values())]
    measure_rates(shown, data, rounds)
    use_threads(1)
    for variant in shown:
        variant.memory = child(resident, data, variant.name, variant.setting)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(HEAD)
    out.writerows(variant.row(facts[variant.name]) for variant in every)
    for recall, group in best.items():
        for line in compared(group, facts, recall):
            print(f"# {line}")
    ours = [variant for name, variant in best[RECALLS[-1]].items() if name.startswith("boc ")]
    for line in kernel(data, ours, rounds, seed):
        print(f"# {line}")
    for variant in ours if starts else []:
        print(f"# {cold_start(data, variant, starts)}")


if __name__ == "__main__":
    main()
