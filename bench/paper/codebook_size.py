"""The effect of the size of a codebook, and of the sample it is learned from, on the Bag of Concepts.

    python -m bench.paper.codebook_size FEATURES --fit LEARN

Each number of clusters learns from the largest sample, and each smaller sample gives as many clusters as the paper has
(or as near to it as there are). A row an assignment and direction: clusters, sample asked for and concepts it held,
z kept of a concept, sparsity 1 - z / p, seconds to learn (told, not to be compared: one run on a machine that may be
busy), bytes of the codebook, terms per item, postings read per query, bytes of these terms per item, in percent R@10 of
the dense vectors and of the code, without re-ranking, and its standard error (by picture). Soft codes keep 8 centroids
of a concept, and a hundredth of all.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from bench.paper.ranking import DIRECTIONS, Gallery, share
from bench.report.rows import Writer
from boc.clustering.codebook import Codebook
from boc.clustering.make_codebook import cluster
from boc.codecs import concept_code
from boc.inputs.features import FeatureFile

CLUSTERS = (256, 512, 1000, 2048, 4096)
SAMPLES = (5000, 20_000, 100_000)
PAPER = 1000
FEW = 8
SHARE = 100
COLUMNS = (
    "clusters", "sample", "concepts", "seed", "assignment", "z", "sparsity", "direction", "seconds", "codebook bytes",
    "terms", "postings", "bytes", "dense", "R@10", "R@10 +-",
)  # fmt: skip


def grid(clusters: Sequence[int], samples: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs (clusters, sample), each once."""
    usual = min(clusters, key=lambda size: abs(size - PAPER))
    pairs = [(size, max(samples)) for size in clusters] + [(usual, sample) for sample in samples]
    return sorted(dict.fromkeys(pairs))


def rows(gallery: Gallery, fit: FeatureFile, book: Codebook) -> Iterator[list[object]]:
    """Assignment, z, sparsity, direction, and then what follows the bytes of the codebook."""
    p = len(book)
    one = fit.batch("image", 0, 1).embeddings
    soft = [(f"soft {aggregate}", z) for aggregate in ("sum", "max") for z in sorted({min(FEW, p), max(1, p // SHARE)})]
    for assignment, z in [("hard", 1), *soft]:
        kind, _, aggregate = assignment.partition(" ")
        options: dict[str, Any] = {"z": z, "aggregate": aggregate} if aggregate else {}
        codec = concept_code(book, kind, **options).fit(one)
        for asking, target in DIRECTIONS:
            found = gallery.search(codec, asking, target, (1,))
            groups = gallery.groups[asking]
            dense = share(gallery.exact(asking, target), groups)[0]
            shares = (dense, *share(found.hits[:, 0], groups))
            yield [
                assignment, z, round(1 - z / p, 4), f"{asking} to {target}", round(found.terms, 2),
                round(found.postings, 1), round(found.size, 1), *(f"{value:.2f}" for value in shares),
            ]  # fmt: skip


@click.command()
@click.argument("features", type=click.Path(path_type=Path))
@click.option("--fit", required=True, type=click.Path(path_type=Path), help="Embeddings to learn from.")
@click.option("--clusters", multiple=True, type=click.IntRange(1), default=CLUSTERS, show_default=True)
@click.option("--sample", "samples", multiple=True, type=click.IntRange(1), default=SAMPLES, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(features: Path, fit: Path, clusters: tuple[int, ...], samples: tuple[int, ...], seed: int) -> None:
    """Recall of FEATURES under codebooks of several sizes."""
    parameters = {"features": features, "fit": fit, "clusters": clusters, "samples": samples}
    with ExitStack() as stack:
        searched, learned = (stack.enter_context(FeatureFile(path)) for path in (features, fit))
        gallery = Gallery(searched)
        out = stack.enter_context(Writer(sys.stdout, __file__, parameters, COLUMNS, seed=seed))
        for size, sample in grid(clusters, samples):
            click.echo(f"{size} clusters of {sample} concepts", err=True)
            begun = time.monotonic()
            book = cluster([learned], size, sample=sample, seed=seed)
            made = [len(book), sample, book.concepts, seed]
            learning = [f"{time.monotonic() - begun:.1f}", book.centroids.nbytes]
            for row in rows(gallery, learned, book):
                out.write(*made, *row[:4], *learning, *row[4:])


if __name__ == "__main__":
    main()
