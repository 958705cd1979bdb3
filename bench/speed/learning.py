"""What learning a dictionary takes, and the recall of its candidates, by learner.

    python -m bench.speed.learning --work learning --n 100000 --dim 1024

Ours learns from some rows per centroid. SuperKMeans (Kuffo, Hepkema and Boncz, 2026) is compared if it is installed:
hierarchical, without and with two rounds of refinement; its centroids are put into our cells. All learn the same number
of centroids on one thread; an item has 2 terms. Recall is the share of the exact top ten among the first R candidates
of a query of 24 terms.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from bench.race.data import Data, K, synthetic, told
from bench.race.engine import use_threads
from bench.report.rows import Writer
from boc.clustering.cell_index import Centroids, Directions, in_cells, rounded, spherical_kmeans
from boc.codecs import Center, Dictionary
from boc.codecs.dictionary import vocabulary_size
from boc.topk import topk_positive

ROWS = (2, 4, 8, 12, 16)  # per centroid
QUERY_Z = 24
DEPTHS = (100, 300, 1000)
HEAD = ["learner", "rows", "terms", "processor_s", "cosine", *(f"recall_{depth}" for depth in DEPTHS), "candidates"]

Learner = Callable[[NDArray[np.float32], int], Centroids]


def ours(sample: NDArray[np.float32], terms: int) -> Centroids:
    return spherical_kmeans(Directions(*rounded(sample)), terms, 0)


def superkmeans(refinements: int) -> Learner:
    def learn(sample: NDArray[np.float32], terms: int) -> Centroids:
        from superkmeans import SuperKMeans

        found: Any = SuperKMeans(
            terms, sample.shape[1], hierarchical=True, angular=True, iters_refinement=refinements, n_threads=1,
            sampling_fraction=1.0, unrotate_centroids=True,
        )  # fmt: skip
        centroids = np.ascontiguousarray(found.train(sample), np.float32)
        return in_cells(Directions(*rounded(centroids)), np.random.default_rng(0))

    return learn


def learners(n: int, terms: int) -> Iterator[tuple[str, int, Learner]]:
    """Name, rows of the sample, and what learns."""
    for rows in ROWS:
        if rows * terms < n or rows == ROWS[-1]:
            yield f"boc, {rows} rows per centroid", min(n, rows * terms), ours
    if find_spec("superkmeans") is None:
        told("SuperKMeans is not installed; pip install superkmeans")
        return
    for refinements in (0, 2):
        yield f"SuperKMeans, {refinements} refinements", min(n, ROWS[-1] * terms), superkmeans(refinements)


def judged(data: Data, center: Center, centroids: Centroids) -> list[str]:
    """Mean cosine of a query to its nearest centroid; recall by depth, and candidates per query."""
    step = Dictionary(query_z=QUERY_Z)
    step.n_features_in_ = data.shape[1]
    step.centroids_, step.scales_, step.starts_ = centroids.vectors, centroids.scales, centroids.starts
    step.heads_, step.head_scales_ = centroids.heads, centroids.head_scales
    items = [step.transform(center.transform(block)) for _, block in data.blocks()]
    queries = center.transform(np.concatenate(data.asked))
    scores = [step.encode_queries(queries, data.modality).astype(np.int64) @ part.T for part in items]
    starts = np.cumsum([0, *(part.shape[0] for part in items)])
    shares, counts = np.zeros(len(DEPTHS)), 0
    for i, best in enumerate([*data.top[0], *data.top[1]]):
        found = [part[[i]].tocoo() for part in scores]
        rows = np.concatenate([one.col + start for one, start in zip(found, starts, strict=False)])
        values = np.concatenate([one.data for one in found])
        order = rows[topk_positive(values, min(DEPTHS[-1], len(values)))]
        shares += [len(best.intersection(order[:depth].tolist())) / K for depth in DEPTHS]
        counts += len(rows)
    cosine = centroids.nearest(queries, 1, len(centroids.heads))[1].mean()
    n = len(queries)
    return [f"{cosine:.4f}", *(f"{share / n:.4f}" for share in shares), f"{counts / n:.0f}"]


@click.command()
@click.option(
    "--work", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of what is drawn."
)
@click.option("--n", default=100_000, show_default=True)
@click.option("--dim", default=1024, show_default=True)
@click.option("--asked", default=300, show_default=True, help="Queries, and as many again.")
@click.option("--seed", default=0, show_default=True)
def main(work: Path, n: int, dim: int, asked: int, seed: int) -> None:
    """Compare learners over drawn vectors."""
    settings = {"n": n, "dim": dim, "queries": 2 * asked, "query_z": QUERY_Z}
    with Writer(sys.stdout, __file__, settings, HEAD, seed=seed) as out:
        folder = work / f"{n}x{dim}"
        folder.mkdir(parents=True, exist_ok=True)
        use_threads(1)
        data = Data(folder, *synthetic(folder, n, dim, asked, seed), None, seed)
        data.check()
        _ = data.top
        terms = vocabulary_size(n)
        center = Center().fit(data.stored[::10].astype(np.float32))
        for name, rows, learn in learners(n, terms):
            sample = center.transform(data.stored[np.arange(rows) * n // rows].astype(np.float32))
            before = time.process_time()
            centroids = learn(sample, terms)
            took = time.process_time() - before
            out.write(name, str(rows), str(len(centroids)), f"{took:.2f}", *judged(data, center, centroids))
            told(name)


if __name__ == "__main__":
    main()
