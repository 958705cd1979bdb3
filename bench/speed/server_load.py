"""Loads a million items into one server: rate, memory of the loader, bytes, latency.

    python -m bench.speed.server_load elastic+http://localhost:9200 --count 1000000

The items are synthetic: unit vectors around 2,000 random directions, drawn with a seed and written as a feature file.
The code is fitted first; then a separate process does what ``boc index`` does, from the file to the published index,
and its greatest resident memory is taken. Prints one line: settings, seconds, items per second, megabytes of memory,
bytes per item by part, and the median and 95th percentile of a search in milliseconds, query encoding and re-ranking
included.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from bench.report.rows import Writer
from boc import plugins
from boc.cli.options import CodeType
from boc.codecs import Code, SurrogateCodec
from boc.indexes.learn import fit_code
from boc.indexes.load import load_index, new_manifest
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import FeatureFile, Header
from boc.manifest import Manifest
from boc.search.searcher import Searcher
from boc.types import Batch, Embeddings, Item

NAME = "boc-bench-load"
DIRECTIONS = 2000
SPREAD = 0.7  # of a vector around its direction, in lengths of it
BATCH = 20_000


def drawn(count: int, dim: int, seed: int) -> Iterator[NDArray[np.float32]]:
    """Unit vectors (at most BATCH, dim) until there are ``count``."""
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((DIRECTIONS, dim)).astype(np.float32) / dim**0.5
    for start in range(0, count, BATCH):
        n = min(BATCH, count - start)
        rows = directions[rng.integers(DIRECTIONS, size=n)]
        rows = rows + rng.standard_normal((n, dim)).astype(np.float32) * (SPREAD / dim**0.5)
        yield rows / np.linalg.norm(rows, axis=1, keepdims=True)


def write(path: Path, count: int, dim: int, seed: int) -> None:
    """Write a feature file of pictures that do not exist."""
    header = Header("embeddings", "synthetic:vectors", f"{seed:064x}", dim, "float16", f"{count:064x}")
    with FeatureWriter(path, header) as writer:
        start = 0
        for rows in drawn(count, dim, seed):
            items = [Item(f"{i:08d}.jpg", "image", f"/photos/{i:08d}.jpg", f"{i:08d}.jpg") for i in range(start, start + len(rows))]  # fmt: skip  # noqa: E501
            writer.append(len(rows), [Batch(items, Embeddings("image", rows))])
            start += len(rows)
        writer.finish()


def peak() -> int:
    """Greatest resident memory of this process in kilobytes; rusage would count that of the one it was started from."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def load(path: Path, at: str, folder: Path, told: Any) -> None:
    """In a separate process: the file into the index; sends seconds and kilobytes."""
    with FeatureFile(path) as file, np.load(folder / "codec.npz", allow_pickle=False) as arrays:
        manifest = Manifest.from_json((folder / "manifest.json").read_text(), where="manifest")
        codec = SurrogateCodec.restore(manifest.codec, dict(arrays))
        begun = time.perf_counter()
        for _ in load_index(file, at, NAME, codec, manifest):
            pass
        told.send((time.perf_counter() - begun, peak()))


@click.command()
@click.argument("at")
@click.option("--count", default=1_000_000, show_default=True)
@click.option("--dim", default=256, show_default=True)
@click.option("--code", type=CodeType(), default="dictionary(terms=16384)", show_default=True)
@click.option("--queries", default=200, show_default=True)
@click.option("--rm", default=30.0, show_default=True)
@click.option("--seed", default=1, show_default=True)
def main(at: str, count: int, dim: int, code: Code, queries: int, rm: float, seed: int) -> None:
    """Load COUNT items at AT, and search them."""
    backend = plugins.backend(at)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "items.h5", count, dim, seed)
        with FeatureFile(folder / "items.h5") as file:
            codec = fit_code(file, code.codec(dim))
            (folder / "manifest.json").write_text(new_manifest(file, codec, rm).to_json())
        arrays: dict[str, Any] = codec.arrays()
        np.savez(folder / "codec.npz", **arrays)
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        child = context.Process(target=load, args=(folder / "items.h5", at, folder, there))
        child.start()
        there.close()
        seconds, kilobytes = here.recv()
        child.join()
    try:
        searcher = Searcher.open(NAME, at)
        sizes = searcher.index.sizes()
        times = []
        for row in next(drawn(2 * queries, dim, seed + 1)):
            begun = time.perf_counter()
            searcher.search_vectors(Embeddings("image", row[None]), k=10)
            times.append(1000 * (time.perf_counter() - begun))
    finally:
        backend.remove(NAME)
    p50, p95 = np.percentile(times[queries:], [50, 95])  # the first half warms the server up
    parts = {f"{part}_bytes": f"{size / count:.1f}" for part, size in sizes.items()}
    head = ["place", "code", "items", "dim", "seconds", "items_per_s", "loader_mb", *parts, "p50_ms", "p95_ms"]
    settings = {"queries": queries, "rm": rm}
    with Writer(sys.stdout, __file__, settings, head, seed=seed, extras=("elasticsearch", "opensearch-py")) as out:
        row = [at.partition("://")[0], code, count, dim, f"{seconds:.0f}", f"{count / seconds:.0f}"]
        out.write(*row, f"{kilobytes / 1000:.0f}", *parts.values(), f"{p50:.1f}", f"{p95:.1f}")


if __name__ == "__main__":
    main()
