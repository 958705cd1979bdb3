"""What re-ranking costs: numkong on rows as they are stored, or numpy after converting them to float32.

CSV on stdout: task, candidates, variant, median_ms, q1_ms, q3_ms. Sets are random: regions of candidates against the
words of a query, the dense vectors of candidates against one query, and the reading of candidates from a memory-mapped
file. Variants take turns within one run, so that what else the machine does meets all of them.
"""

from __future__ import annotations

import csv
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from boc.rerank.alignment import align
from boc.rerank.dot import dot, products
from boc.rerank.storage import CONCEPT_DTYPES, store
from boc.types import Ragged, StoredConcepts
from indexing.embedded.segment import take_sets

Variants = dict[str, Callable[[], object]]


def converted(query: NDArray[np.float32], rows: StoredConcepts) -> NDArray[np.float32]:
    """Cosines by numpy: to float32, then a product of matrices."""
    found = query @ rows.values.astype(np.float32).T
    return found if rows.scales is None else found * rows.scales


def sets_of(rng: np.random.Generator, n: int, regions: int, dim: int) -> Ragged:
    rows = rng.standard_normal((n * regions, dim), dtype=np.float32)
    return Ragged(rows, np.arange(n + 1, dtype=np.int64) * regions)


def time_in_turns(variants: Variants, repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each call; the first round warms up and is left out."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats + 1):
        for name, call in variants.items():
            start = time.perf_counter()
            call()
            times[name].append(1000 * (time.perf_counter() - start))
    return {name: measured[1:] for name, measured in times.items()}


@click.command()
@click.option("--candidates", multiple=True, type=click.IntRange(1), default=(100, 500), show_default=True)
@click.option("--regions", default=49, show_default=True, help="Of a picture.")
@click.option("--words", default=12, show_default=True, help="Of the query.")
@click.option("--dim", default=384, show_default=True)
@click.option("--gallery", default=2000, show_default=True, help="Pictures in the file that candidates are read from.")
@click.option("--repeats", default=50, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(
    candidates: tuple[int, ...], regions: int, words: int, dim: int, gallery: int, repeats: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    query = rng.standard_normal((words, dim), dtype=np.float32)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["task", "candidates", "variant", "median_ms", "q1_ms", "q3_ms"])

    def measure(task: str, n: int, variants: Variants) -> None:
        for name, times in time_in_turns(variants, repeats).items():
            low, middle, high = np.percentile(times, [25, 50, 75])
            out.writerow([task, n, name, f"{middle:.3f}", f"{low:.3f}", f"{high:.3f}"])

    with tempfile.TemporaryDirectory() as folder:
        for dtype in CONCEPT_DTYPES:
            whole = store(sets_of(rng, gallery, regions, dim), dtype)
            np.save(Path(folder) / f"{dtype}.npy", whole.values, allow_pickle=False)
            mapped = np.asarray(np.load(Path(folder) / f"{dtype}.npy", mmap_mode="r", allow_pickle=False))
            for n in candidates:
                some = store(sets_of(rng, n, regions, dim), dtype)
                vectors = some.values[:n]
                chosen = rng.permutation(gallery)[:n]
                measure(
                    f"cosines {dtype}",
                    n,
                    {
                        "numkong": lambda some=some: products(query, some.values),
                        "numpy": lambda some=some: converted(query, some),
                    },
                )
                measure(
                    f"symm {dtype}",
                    n,
                    {"numkong": lambda some=some: align(query, some, "symm", asks_by_words=True)},
                )
                measure(
                    f"read {dtype}",
                    n,
                    {"take_sets": lambda m=mapped, c=chosen, w=whole: take_sets(replace(w, values=m), c)},
                )
                if dtype == "float16":
                    measure(
                        "dot float16",
                        n,
                        {
                            "C": lambda v=vectors: dot(query[0], v),
                            "numkong": lambda v=vectors: products(query[:1], v),
                            "numpy": lambda v=vectors: v.astype(np.float32) @ query[0],
                        },
                    )


if __name__ == "__main__":
    main()
