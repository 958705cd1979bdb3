"""Growth of the embedded engine with the number of items, and its speed with less memory than the index takes.

    python -m bench.speed.embedded_growth --work growth
    python -m bench.speed.embedded_growth --work growth --n 1000000 --dim 1024 --memory-limit 0.25

The data is synthetic; the code is one and the same, a dictionary with its vocabulary by the size of the collection
unless ``--terms`` fixes it. Recall is held at ``--recall`` by the candidates: for each number of query terms the fewest
that reach it on the validation queries are looked for, and the fastest of these pairs is taken. Other queries are
reported: recall, milliseconds of one query at a time on one thread (medians over rounds, with minimum and maximum),
seconds to fit, to encode and to build (without encoding), processor seconds of all three, largest memory of the
builder, bytes on disk, and the memory of a fresh process that opens the index and answers 100 queries, its own and
mapped.

``--memory-limit F`` measures something else: building and searching while a control group holds the process to F of the
size of the index on disk, page cache included, beside the same without a limit. What Python and its libraries had
before the index was opened does not count; the cached pages of the files are dropped first (memory_group.py).
"""

from __future__ import annotations

import gc
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from bench.race.codes import QUERY_Z, Ours
from bench.race.data import Data, K, synthetic, told
from bench.race.engine import Setting, child, folder_of, use_threads
from bench.race.engines import built, memory, opened
from bench.race.timing import Variant, measure, recall_of
from bench.report.rows import Writer
from bench.speed.memory_group import ROOM, Group, drop_cache
from boc.codecs import parse_code

COUNTS = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
MOST = 5000  # candidates
HEAD = [
    "n", "setting", "recall", "validation", "p50_ms", "p50_least", "p50_most", "p95_ms", "p95_least", "p95_most",
    "p99_ms", "p99_least", "p99_most", "fit_s", "encode_s", "build_s", "cpu_s", "build_peak_mb", "disk_mb", "anon_mb",
    "file_mb",
]  # fmt: skip
LIMITED = [
    "n", "index_mb", "limit_mb", "build_s", "build_used_mb", "setting", "recall", "p50_ms", "p95_ms", "p99_ms",
    "major_faults", "read_kb", "used_mb",
]  # fmt: skip


def held(engine: Ours, data: Data, code: str, recall: float) -> Setting:
    """The fastest pair of query terms and candidates that reaches a recall on the validation queries; the largest if
    none does."""
    queries, top = data.asked[1], data.top[1]
    found = []
    for query_z in [z for z in QUERY_Z[parse_code(code).name] if z <= engine.codec.n_terms]:
        low, high = K - 1, min(MOST, data.shape[0])
        engine.choose((query_z, high))
        if recall_of(engine, queries, top) < recall:
            continue
        while high - low > max(1, low // 20):
            middle = (low + high) // 2
            engine.choose((query_z, middle))
            low, high = (low, middle) if recall_of(engine, queries, top) >= recall else (middle, high)
        engine.choose((query_z, high))
        begun = time.perf_counter()
        recall_of(engine, queries, top)
        found.append((time.perf_counter() - begun, (query_z, high)))
    return min(found)[1] if found else (QUERY_Z[parse_code(code).name][-1], min(MOST, data.shape[0]))


def chosen(data: Data, code: str, recall: float) -> Variant:
    """The index at the setting that holds the recall."""
    engine = opened(data, f"boc {code}")
    assert isinstance(engine, Ours)
    setting = held(engine, data, code, recall)
    engine.choose(setting)
    reached = recall_of(engine, data.asked[1], data.top[1])
    return Variant(f"boc {code}", engine, setting, reached)


def grown(data: Data, code: str, recall: float, threads: int, rounds: int) -> list[str]:
    """The row of one size."""
    facts = built(data, f"boc {code}", threads)
    use_threads(1)
    variant = chosen(data, code, recall)
    measure([variant], data, rounds, data.seed)
    taken = memory(data, variant.name, variant.setting)
    seconds = [f"{value:.2f}" for value in (facts.fit, facts.encode, facts.build, facts.cpu)]
    sizes = [f"{size / 1e6:.3f}" for size in (facts.peak or 0, facts.disk, *taken)]
    recalls = [f"{variant.recall:.4f}", f"{variant.validation:.4f}"]
    return [str(data.shape[0]), variant.label, *recalls, *variant.percentile_cells(), *seconds, *sizes]


def ready(group: Group) -> None:
    """Import everything that an index needs before joining the memory group."""
    use_threads(1)
    import_module("indexing.embedded.index")
    group.join()


def limited_build(data: Data, code: str, folder: str, group: Group) -> float:
    """In a separate process: seconds to build into ``folder``."""
    drop_cache(data.gallery)
    ready(group)
    took = Ours.build(data, Path(folder), code, 1)
    return took.encode + took.build


def read_from_disk() -> int:
    """Bytes that this process had the disk read, ahead or not."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def limited_search(data: Data, code: str, setting: Setting, group: Group) -> tuple[NDArray[Any], float, int, int]:
    """In a separate process: milliseconds of each query after those of validation, recall, major faults, and bytes read
    from the disk."""
    (queries, warming), (top, warming_top), _ = data.asked, data.top, data.rows
    drop_cache(folder_of(data, f"boc {code}"))
    ready(group)
    engine = opened(data, f"boc {code}")
    engine.choose(setting)
    recall_of(engine, warming, warming_top)
    before, read, times, answers = resource.getrusage(resource.RUSAGE_SELF).ru_majflt, read_from_disk(), [], []
    for i in range(len(queries)):
        begun = time.perf_counter()
        answers.append(engine.ask(queries[i : i + 1]))
        times.append(1000 * (time.perf_counter() - begun))
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before
    shares = [len(best.intersection(engine.rows(got))) / K for best, got in zip(top, answers, strict=True)]
    return np.array(times), float(np.mean(shares)), faults, read_from_disk() - read


def beyond_memory(
    data: Data, code: str, recall: float, fraction: float, threads: int, building: bool
) -> Iterator[list[str]]:
    """The rows of one size: with room for all, and with the limit. Only with ``building`` it is built in both."""
    disk = built(data, f"boc {code}", threads).disk
    variant = chosen(data, code, recall)
    setting, label = variant.setting, variant.label
    del variant  # it maps the files, whose pages would stay
    gc.collect()
    for limit in (ROOM, int(fraction * disk)):
        row = [str(data.shape[0]), f"{disk / 1e6:.1f}", "none" if limit == ROOM else f"{limit / 1e6:.1f}"]
        if building:
            with Group(limit) as group, tempfile.TemporaryDirectory(dir=data.work) as folder:
                try:
                    seconds = f"{child(limited_build, data, code, folder, group):.1f}"
                except BrokenProcessPool as error:
                    told(str(error))
                    seconds = "killed"
                row += [seconds, f"{group.used / 1e6:.1f}"]
        else:
            row += ["", ""]
        row.append(label)
        with Group(limit) as group:
            try:
                times, reached, faults, read = child(limited_search, data, code, setting, group)
                row += [
                    f"{reached:.4f}",
                    *(f"{value:.3f}" for value in np.percentile(times, (50, 95, 99))),
                    str(faults),
                    f"{read / len(times) / 1e3:.1f}",
                ]
            except BrokenProcessPool as error:
                told(str(error))
                row += ["killed", "", "", "", "", ""]
            row.append(f"{group.used / 1e6:.1f}")
        yield row


@click.command()
@click.option(
    "--work", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of what is built."
)
@click.option("--n", "counts", multiple=True, type=int, default=COUNTS, show_default=True)
@click.option("--dim", default=256, show_default=True)
@click.option("--asked", default=300, show_default=True, help="Queries, and as many to choose settings by.")
@click.option("--code", default="dictionary:2", show_default=True, help="Name and terms per item: NAME:Z.")
@click.option("--terms", type=int, help="Of the dictionary [default: by the number of items].")
@click.option("--recall", default=0.95, show_default=True)
@click.option("--threads", default=2, show_default=True, help="To build with.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--memory-limit", "fraction", type=float, help="Share of the size of the index that it may use.")
@click.option("--build/--no-build", "building", default=True, help="Build with the limit too, and not only search.")
def main(
    work: Path,
    counts: tuple[int, ...],
    dim: int,
    asked: int,
    code: str,
    terms: int | None,
    recall: float,
    threads: int,
    rounds: int,
    seed: int,
    fraction: float | None,
    building: bool,
) -> None:
    """Measure one code at several sizes."""
    settings = {
        "n": sorted(counts), "dim": dim, "queries": asked, "chosen_by": asked, "code": code, "terms": terms,
        "recall": recall, "threads_to_build": threads, "rounds": rounds, "memory_limit": fraction,
    }  # fmt: skip
    with Writer(sys.stdout, __file__, settings, HEAD if fraction is None else LIMITED, seed=seed) as out:
        for n in sorted(counts):
            folder = work / f"{n}x{dim}"
            folder.mkdir(parents=True, exist_ok=True)
            use_threads(threads)
            data = Data(folder, *synthetic(folder, n, dim, asked, seed), terms, seed)
            data.check()
            _ = data.top
            if fraction is None:
                out.write(*grown(data, code, recall, threads, rounds))
            else:
                for row in beyond_memory(data, code, recall, fraction, threads, building):
                    out.write(*row)


if __name__ == "__main__":
    main()
