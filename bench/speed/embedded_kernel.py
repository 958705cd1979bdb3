"""The parts of a search in the embedded engine: nanoseconds per posting of its kernel, and a cold start.

    python -m bench.speed.embedded_kernel captions.h5 captions-queries.h5 --validation captions-validation.h5 \
        --work m30k

The arguments, the folder and the data are those of race.py; indexes that are not there are built. Of each index that
setting is measured that was the fastest to reach ``--recall`` on the validation queries. Of ``p50_ms`` ``encode_ms``
makes the terms of the query, ``kernel_ms`` finds the candidates in the posting lists; the rest re-ranks them and makes
hits. ``postings`` are read by a query on average, ``ns`` are of the kernel alone over all queries, the median over
rounds with minimum and maximum; ``scatter_ns`` is one ``sums[row] += weight`` in C over 65,536 sums, the bound,
empty without a compiler. ``cold_s`` are seconds of ``boc search`` as a separate process, by a vector that is there,
after a first start that does not count.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median

import click
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bench.race import engines
from bench.race.codes import NAME, Ours, code_of, encoded
from bench.race.data import Data, K
from bench.race.engine import Clock, folder_of, use_threads
from bench.race.options import Given, on_data
from bench.race.timing import Variant, fastest, measure, variants_of
from bench.report.rows import Writer
from boc.inputs.features import FeatureFile
from indexing.embedded.postings import Postings

HEAD = (
    "index", "setting", "recall", "p50_ms", "encode_ms", "postings", "kernel_ms", "ns", "ns_least", "ns_most",
    "scatter_ns", "cold_s", "cold_least", "cold_most",
)  # fmt: skip
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


def parts(data: Data, variant: Variant, rounds: int) -> tuple[float, NDArray[np.float64]]:
    """Mean of the postings that a query reads, and nanoseconds (2, rounds, queries) to encode it, and of our kernel."""
    engine = variant.engine
    assert isinstance(engine, Ours)
    terms = sparse.vstack(list(encoded(data, code_of(variant.name.partition(" ")[2]), Clock())), format="csr")
    postings = Postings.from_matrix(terms)
    engine.choose(variant.setting)
    queries = [engine.terms(query[None]) for query in data.asked[0]]
    lengths = postings.document_frequencies()
    took = np.empty((2, rounds, len(queries)))
    for turn, i in product(range(rounds), range(len(queries))):
        begun = time.perf_counter_ns()
        engine.terms(data.asked[0][i : i + 1])
        encoded_at = time.perf_counter_ns()
        postings.top(queries[i], engine.depth)
        took[:, turn, i] = encoded_at - begun, time.perf_counter_ns() - encoded_at
    return float(np.mean([lengths[query.indices].sum() for query in queries])), took


def cold_starts(data: Data, variant: Variant, starts: int) -> list[float]:
    """Seconds of ``boc search`` as a separate process, by a vector that is there."""
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
    return times[1:]


def cells(found: Sequence[float], digits: int) -> list[str]:
    """Median, minimum and maximum; nothing of nothing."""
    return [f"{f(found):.{digits}f}" for f in (median, min, max)] if len(found) else [""] * 3


@click.command()
@on_data
@click.option("--index", "names", multiple=True, default=("boc bits:32", "boc dictionary:2"), show_default=True)
@click.option("--recall", default=0.95, show_default=True)
@click.option("--starts", default=7, show_default=True, help="Cold starts; 0 leaves them out.")
def main(given: Given, names: tuple[str, ...], recall: float, starts: int) -> None:
    """Measure the kernel, and cold starts, on GALLERY and QUERIES."""
    data, rounds = given.data(), given.rounds
    gallery, (items, dim) = given.gallery or data.gallery, data.shape
    settings = {"gallery": gallery, "items": items, "dim": dim, "rounds": rounds, "starts": starts, "recall": recall}
    with Writer(sys.stdout, __file__, settings, HEAD, seed=given.seed) as out:
        bound = scatter_ns(given.seed)
        for name in names:
            engines.built(data, name, given.threads)
            use_threads(1)
            variant = fastest_of(data, name, recall, rounds)
            postings, (encoding, took) = parts(data, variant, rounds)
            each = took.sum(axis=1) / (postings * took.shape[1])
            scatter = "" if bound is None else f"{bound:.3f}"
            cold = cells(cold_starts(data, variant, starts) if starts else [], 3)
            of_query = [f"{variant.p50:.3f}", f"{np.median(encoding) / 1e6:.4f}"]
            of_kernel = [f"{postings:.0f}", f"{np.median(took) / 1e6:.4f}", *cells(each.tolist(), 3)]
            out.write(name, variant.label, f"{variant.recall:.4f}", *of_query, *of_kernel, scatter, *cold)


def fastest_of(data: Data, name: str, recall: float, rounds: int) -> Variant:
    """The setting of an index that is the fastest to reach a recall; of those that do not, the nearest to it."""
    found = variants_of(data, name, engines.opened(data, name))
    measure(found, data, rounds, data.seed)
    return fastest(found, recall) or max(found, key=lambda variant: variant.validation)


if __name__ == "__main__":
    main()
