"""Compare encoders on the same items in both directions, with a gradient-free baseline.

    python -m bench.paper.models MODEL...

Each MODEL has the form NAME=FILE[+FILE...][,METRIC]. The files contain embeddings of the same
pictures and captions. METRIC is dot or an alignment score of ``boc.rerank``. The scores of several
files are averaged. Each row, one per model and direction, contains Recall@1, 5, 10 in percent, the
standard error of R@10 (by picture), the median rank, NDCG@25 with relevance by ROUGE-L, and the
number of pictures. With folds, the figures are means over folds, and no standard error is computed.

The baseline ("floor") is canonical correlation analysis (Hotelling, Biometrika 1936) between the
mean of a picture's regions and the TF-IDF of a sentence, reduced by a singular value decomposition,
both learned on the training split. Each covariance is shrunk by SHRINK times its mean eigenvalue;
similarity is the cosine of the canonical variates, weighted by their correlations.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from bench.options import PATH
from bench.paper.ranking import DIRECTIONS, K, share
from bench.report.rows import Writer
from boc.evaluate.metrics import DEPTH, evaluate_ndcg, evaluate_recall, ranks
from boc.evaluate.runs import Gallery
from boc.inputs.features import FeatureFile
from boc.inputs.sources import open_source
from boc.names import METRICS
from boc.vectors import unit_rows

FOLD = 1000  # pictures per fold of the "1K" protocol
SVD = 600
SHRINK = 0.3
VARIATES = 128
COLUMNS = (
    "model",
    "scored by",
    "direction",
    "R@1",
    "R@5",
    "R@10",
    "R@10 +-",
    "median rank",
    f"NDCG@{DEPTH} ROUGE-L",
    "pictures",
)


class Model(NamedTuple):
    """Encoder, or ensemble of encoders, to compare."""

    name: str
    gallery: Gallery
    metric: str

    @classmethod
    def of(cls, spec: str) -> Model:
        """Read a model from NAME=FILE[+FILE...][,METRIC]."""
        name, equals, rest = spec.partition("=")
        files, comma, metric = rest.rpartition(",")
        if not equals or (comma and metric not in METRICS):
            raise click.UsageError(
                f"{spec!r} is not NAME=FILE[+FILE...][,METRIC], METRIC one of {', '.join(METRICS)}",
            )
        if not comma:
            files = rest
            metric = "dot"
        return cls(name, Gallery.of(*map(Path, files.split("+"))), metric)


def mean_regions(regions: FeatureFile, ids: list[str]) -> NDArray[np.float64]:
    """Return the mean region of each picture, or zero for pictures without regions."""
    number = {item.id: i for i, item in enumerate(regions.items("image"))}
    offsets = regions.memory_map("image", "offsets")
    features = regions.memory_map("image", "ragged/features")
    means = np.zeros((len(ids), features.shape[1]))
    for mean, i in zip(means, [number[key] for key in ids], strict=True):
        if offsets[i] < offsets[i + 1]:
            mean[:] = features[offsets[i] : offsets[i + 1]].mean(axis=0, dtype=np.float64)
    return means


def floor(regions: Path, train: Path, gallery: Gallery) -> NDArray[np.float32]:
    """Return the scores (n_texts, n_images) of the items in ``gallery``, whose pictures must have
    regions."""
    with FeatureFile(gallery.paths[0]) as file:
        pictures = file.ids("image")
    items = open_source(regions, train).items
    captions = [item for item in items if item.modality == "text"]
    ids = [item.id for item in items if item.modality == "image"]
    number = {key: i for i, key in enumerate(ids)}
    with FeatureFile(regions) as file:
        learned = mean_regions(file, list(number))
        unseen = mean_regions(file, pictures)
    words = TfidfVectorizer()
    frequencies = words.fit_transform([item.content for item in captions])
    reduce = TruncatedSVD(min(SVD, frequencies.shape[1] - 1), random_state=0)
    texts = reduce.fit_transform(frequencies)
    queries = reduce.transform(words.transform(gallery.captions))
    images = learned[[number[item.group] for item in captions]]
    to_image, to_text = variates(images, texts)
    sentences = (queries - texts.mean(axis=0)) @ to_text
    shown = (unseen - images.mean(axis=0)) @ to_image
    one, other = (unit_rows(side.astype(np.float32)) for side in (sentences, shown))
    return one @ other.T


def variates(
    X: NDArray[np.float64],
    Y: NDArray[np.float64],
    count: int = VARIATES,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return projections of both sides onto the first ``count`` canonical variates, weighted by
    their correlations."""
    X = X - X.mean(axis=0)
    Y = Y - Y.mean(axis=0)
    white_x, white_y = (inverse_root(Z.T @ Z / len(Z)) for Z in (X, Y))
    between = X.T @ Y / len(X)
    U, correlations, Vt = linalg.svd(white_x @ between @ white_y, full_matrices=False)
    weights = correlations[:count]
    to_x = white_x @ U[:, :count]
    to_y = white_y @ Vt.T[:, :count]
    return to_x * weights, to_y * weights


def inverse_root(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the inverse square root of a shrunk covariance."""
    values, vectors = linalg.eigh(covariance)
    root: NDArray[np.float64] = vectors / np.sqrt(values + SHRINK * values.mean()) @ vectors.T
    return root


def rows(
    model: str,
    metric: str,
    scores: NDArray[np.float32],
    owners: NDArray[np.int64],
    relevance: NDArray[np.float32],
    fold: int | None,
) -> Iterator[list[object]]:
    """Yield one row per direction."""
    recalls = evaluate_recall(scores, owners, fold)
    graded = evaluate_ndcg(scores, owners, relevance, fold)
    numbers = np.arange(scores.shape[1])
    for asking, target in DIRECTIONS:
        side = f"{asking}_to_{target}"
        recall = getattr(recalls, side)
        sides = (scores, owners, numbers) if asking == "text" else (scores.T, numbers, owners)
        error = None if fold else f"{share(ranks(*sides) < K, sides[1])[1]:.2f}"
        yield [
            model,
            metric,
            f"{asking} to {target}",
            *(f"{value:.2f}" for value in (recall.r1, recall.r5, recall.r10)),
            error,
            f"{recall.median_rank:g}",
            f"{getattr(graded, side):.4f}",
            fold or len(numbers),
        ]


@click.command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option(
    "--floor",
    "regions",
    type=PATH,
    help="Regions of both splits, for the floor.",
)
@click.option(
    "--train",
    type=PATH,
    help="File with the ids of the training split, for the floor.",
)
@click.option(
    "--fold",
    type=click.IntRange(1),
    default=FOLD,
    show_default=True,
    help="Number of pictures per fold.",
)
def main(models: tuple[str, ...], regions: Path | None, train: Path | None, fold: int) -> None:
    """Measure recall, median rank and NDCG of several MODELs."""
    if (regions is None) != (train is None):
        raise click.UsageError("--floor requires --train, and --train requires --floor")
    encoders = [Model.of(spec) for spec in models]
    gallery = Gallery.of(
        *(path for model in encoders for path in model.gallery.paths),
    )  # raises an error if the files contain different items
    with click.progressbar(
        length=len(gallery.captions) * gallery.images,
        label="relevance",
        file=sys.stderr,
    ) as bar:
        relevance = gallery.relevance(tick=bar.update)
    part = fold if gallery.images > fold else None
    models = tuple(
        f"{m.name}={'+'.join(path.name for path in m.gallery.paths)},{m.metric}" for m in encoders
    )
    settings = {"models": models, "floor": regions, "train": train, "fold": fold}
    with Writer(sys.stdout, __file__, settings, COLUMNS, extras=("scikit-learn",)) as out:

        def write(name: str, metric: str, scores: NDArray[np.float32]) -> None:
            for row in rows(name, metric, scores, gallery.owners, relevance, part):
                out.write(*row)

        if regions is not None and train is not None:
            write("closed form", "cosine of variates", floor(regions, train, gallery))
        for model in encoders:
            click.echo(f"{model.name} by {model.metric}", err=True)
            write(model.name, model.metric, model.gallery.scores(model.metric))


if __name__ == "__main__":
    main()
