"""How much of a gallery must be read until the first hits by MrSw are certain, by a bound that ``late`` allows?

    python -m bench.paper.certificate dev.h5 --fit train.h5

A word w at the angle t from its centroid c has at most cos(max(0, angle(v, c) - t)) in common with a region v, by the
triangle inequality of angles. ``late`` stores for each picture its largest cosine s with c, rounded, or that this is
below a threshold. So a sum over the words of cos(max(0, arccos(s) - t)) is an upper bound on the MrSw of any picture
that has regions, from posting lists alone. Pictures are compared exactly in the order of their bounds; as soon as the
next bound is below the k-th score, the hits are certain. With several ``lists`` per word the least bound of as many
nearest centroids counts.

Without FEATURES, sets are drawn whose size is that of document pages: --pages of them with --patches vectors, some of
which are near to one of a thousand topics; a query is noisy patches of one page. A row holds the gallery, the settings
of ``late``; the share of queries that are certain after a tenth of the gallery, and the median share that must be read;
the median angle of words to centroids in degrees; the medians of the k-th score, of the bound of a picture in none of
the lists, and of the mean distance of bounds to scores of the k hits, all per word; and the share read if each angle
were 0, which is what the words of the vocabulary themselves would take.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from bench.report.rows import Writer
from boc.clustering.kmeans import Floats
from boc.codecs.late_interaction import TOP, LateInteraction
from boc.inputs.features import FeatureFile
from boc.rerank.alignment import alignments
from boc.types import Ragged, TermMatrix
from boc.vectors import unit_rows

K = 10
TENTH = 0.1
ROUNDING = 1e-5  # of cosines in float32
DIM, TOPICS, NOISE, SHARE, WORDS = 128, 1000, 0.5, 0.7, 15  # of drawn pages
COLUMNS = (
    "gallery", "items", "vectors per item", "queries", "terms", "density", "lists", "certain", "read", "angle",
    "k-th score", "unseen", "slack", "read at angle 0",
)  # fmt: skip


def largest_cosines(code: LateInteraction, pictures: TermMatrix) -> Floats:
    """Return upper bounds on the largest cosine of each picture with each centroid, float32 (n, p), from what is
    stored: a frequency, or none, which stands for all below the threshold."""
    bounds: Floats = (code.thresholds_ + (pictures.toarray() + 0.5) / TOP + ROUNDING).astype(np.float32)
    return np.minimum(bounds, 1)


def upper_bounds(code: LateInteraction, words: Floats, cosines: Floats, lists: int, angle: float = 1.0) -> Floats:
    """Return bounds (n,) on the MrSw of pictures with the words (m, d) of one sentence, where ``cosines`` (n, p) are
    bounds of ``largest_cosines``; angles of words to centroids count times ``angle``, of which only 1 gives bounds."""
    near = unit_rows(words) @ code.centroids_.T
    chosen = np.argsort(-near, axis=1, kind="stable")[:, :lists]
    angles = angle * np.arccos(np.clip(np.take_along_axis(near, chosen, axis=1) - ROUNDING, -1, 1))
    apart = np.arccos(np.clip(cosines[:, chosen], -1, 1)) - angles
    total: Floats = np.cos(np.maximum(0, apart)).min(axis=2).sum(axis=1) + len(words) * ROUNDING
    return total


def read_until_certain(bounds: Floats, exact: Floats, k: int) -> tuple[NDArray[np.int64], int]:
    """Compare pictures in the order of their bounds until no other can be among the first ``k``: return these, best
    first, and how many were compared."""
    order = np.argsort(-bounds, kind="stable")
    best: list[tuple[float, int]] = []
    for count, row in enumerate(order.tolist()):
        if len(best) == k and bounds[row] < best[-1][0]:
            return np.array([row for _, row in best]), count
        best = sorted([*best, (float(exact[row]), row)], key=lambda pair: (-pair[0], pair[1]))[:k]
    return np.array([row for _, row in best]), len(order)


def measure(code: LateInteraction, words: Ragged, cosines: Floats, exact: Floats, lists: int) -> list[str]:
    """Return the figures of a fitted code, whose bounds of largest cosines are (n, p), by exact scores (q, n)."""
    unseen = (code.thresholds_ + 0.5 / TOP + ROUNDING)[None]
    read, angles, at_zero, per_word = [], [], [], []
    for number in range(len(words)):
        sentence, scores = words[number], exact[number]
        bounds = upper_bounds(code, sentence, cosines, lists)
        hits, count = read_until_certain(bounds, scores, K)
        read.append(count / len(cosines))
        at_zero.append(read_until_certain(upper_bounds(code, sentence, cosines, lists, 0), scores, K)[1] / len(cosines))
        angles += np.degrees(np.arccos(np.clip((unit_rows(sentence) @ code.centroids_.T).max(axis=1), -1, 1))).tolist()
        none = float(upper_bounds(code, sentence, unseen, lists)[0])
        figures = (scores[hits[-1]], none, (bounds[hits] - scores[hits]).mean())
        per_word.append([float(figure) / len(sentence) for figure in figures])
    middle = np.median(per_word, axis=0)
    return [
        f"{np.mean(np.array(read) <= TENTH):.3f}", f"{np.median(read):.3f}", f"{np.median(angles):.1f}",
        *(f"{value:.3f}" for value in middle), f"{np.median(at_zero):.3f}",
    ]  # fmt: skip


def drawn(pages: int, patches: int, seed: int, topics: Floats) -> tuple[Ragged, Ragged]:
    """Draw pages, and a query of each."""
    rng = np.random.default_rng(seed)
    sets, queries = [], []
    for _ in range(pages):
        own = topics[rng.choice(len(topics), 20, replace=False)]
        near = rng.random(patches) < SHARE
        values = np.where(near[:, None], own[rng.integers(len(own), size=patches)], 0)
        page = unit_rows((values + rng.standard_normal(values.shape) * NOISE / np.sqrt(DIM)).astype(np.float32))
        words = page[rng.choice(np.flatnonzero(near), WORDS)]
        noise = rng.standard_normal(words.shape) * NOISE / np.sqrt(DIM)
        sets.append(page)
        queries.append(unit_rows((words + noise).astype(np.float32)))
    return Ragged.from_sets(queries, DIM), Ragged.from_sets(sets, DIM)


def concepts(path: Path) -> tuple[Ragged, Ragged]:
    """Return the words and the regions of a feature file."""
    with FeatureFile(path) as file:
        words, regions = (file.batch(m, 0, file.count(m)).embeddings.concepts for m in ("text", "image"))
    assert words is not None
    assert regions is not None
    return words, regions


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("features", type=FILE, required=False)
@click.option("--fit", type=FILE, help="Feature file to learn from; needed with FEATURES.")
@click.option("--queries", default=200, show_default=True, help="Queries, at most about so many.")
@click.option("--pages", default=500, show_default=True, help="Sets drawn without FEATURES.")
@click.option("--patches", default=300, show_default=True, help="Vectors of each.")
@click.option("--terms", multiple=True, default=(256, 1024), show_default=True, help="Centroids.")
@click.option("--density", multiple=True, default=(20, 100), show_default=True, help="Percent of pictures with a term.")
def main(
    features: Path | None, fit: Path | None, queries: int, pages: int, patches: int, terms: tuple[int, ...],
    density: tuple[int, ...],
) -> None:  # fmt: skip
    """Measure how much must be read until hits by MrSw are certain."""
    if (features is None) != (fit is None):
        raise click.UsageError("FEATURES and --fit go together; without both, pages are drawn")
    settings = {"features": features, "fit": fit, "queries": queries, "pages": pages, "patches": patches}
    with Writer(sys.stdout, __file__, settings, COLUMNS) as out:
        if features is not None and fit is not None:
            (words, regions), (learned, pictures) = concepts(features), concepts(fit)
        else:
            topics = unit_rows(np.random.default_rng(0).standard_normal((TOPICS, DIM)).astype(np.float32))
            (words, regions), (learned, pictures) = (drawn(pages, patches, seed, topics) for seed in (1, 2))
        asked = words.take(list(range(0, len(words), max(1, len(words) // queries))))
        kinds = ["text"] * len(learned) + ["image"] * len(pictures)
        sample = Ragged.concatenate([learned, pictures])
        head = [features.stem if features else "pages", len(regions), f"{len(regions.values) / len(regions):.0f}"]
        exact = alignments(asked, regions, "mrsw")
        for count, percent in product(terms, density):
            code = LateInteraction(count, percent).fit(sample, kinds)
            cosines = largest_cosines(code, code.encode_documents(regions, "image"))
            for lists in (1, 4):
                figures = measure(code, asked, cosines, exact, lists)
                out.write(*head, len(asked), len(code.centroids_), percent, lists, *figures)


if __name__ == "__main__":
    main()
