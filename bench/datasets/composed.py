"""Compose a gallery of pictures for searches by sentences, in which queries and items have
different distributions.

    boc extract captions.csv -o regions.h5 --regions 'efficientnet:lite2?cells=3&crops=2'
    python -m bench.datasets.composed regions.h5 train.ids.txt composed.h5

Each picture is composed of regions drawn from two training photographs. Pictures and captions are
projected onto canonical variates (models.py), learned from the training photographs. The picture
side is the mean region, after a signed square root and scaling to unit variance, and the caption
side is a latent semantic analysis of the captions. OUT contains the composed pictures, and the
captions of the training photographs as sentences. Captions of the held-out photographs are the
queries. Half of these captions are written to a file with ``-queries`` added to the stem of OUT.
The other half is used to choose settings, and is written to a file with ``-validation`` added to
the stem. All files are feature files of unit vectors in float16. The script prints the fraction of
held-out captions whose photograph is among the first ten hits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from bench.datasets.caption_vectors import write
from bench.datasets.captions import DataError
from bench.options import FILE
from bench.paper.models import variates
from bench.race.data import K, Matrix, log, unit
from boc.inputs.features import FeatureFile, Header
from boc.types import Item

LATENT = 600  # dimensions of the latent semantic analysis


@dataclass(frozen=True)
class Photographs:
    """Photographs with regions: the projected regions (r, d), and the first and last position of
    each photograph's regions."""

    regions: Matrix
    spans: NDArray[np.int64]

    def compose(self, rng: np.random.Generator, count: int) -> Matrix:
        """Compose pictures (count, d). Each picture is the mean of regions drawn from two
        photographs."""
        pictures = np.empty((count, self.regions.shape[1]), np.float32)
        pairs = rng.integers(len(self.spans), size=(count, 2))
        for picture, pair in zip(pictures, pairs, strict=True):
            drawn = []
            for start, stop in self.spans[pair]:
                size = rng.integers(1, stop - start + 1)
                drawn.append(rng.choice(np.arange(start, stop), size, replace=False))
            picture[:] = self.regions[np.concatenate(drawn)].mean(axis=0)
        return pictures


def scaled_regions(file: FeatureFile) -> Matrix:
    """Return the signed square roots of all regions, with zero mean and unit variance in each
    component."""
    regions = file.memory_map("image", "ragged/features").astype(np.float32)
    np.multiply(np.sign(regions), np.sqrt(np.abs(regions)), out=regions)
    regions -= regions.mean(axis=0)
    regions /= np.maximum(regions.std(axis=0), 1e-3)
    return regions


def project(file: FeatureFile, train: set[str], dim: int) -> tuple[Photographs, list[Item], Matrix]:
    """Return the training photographs, and all captions with their projections (n, dim)."""
    items = file.items("image")
    offsets = file.memory_map("image", "offsets")
    regions = scaled_regions(file)
    places = {item.id: i for i, item in enumerate(items) if offsets[i] < offsets[i + 1]}
    captions = [item for item in file.items("text") if item.group in places]
    learned = [item for item in captions if item.group in train]
    if not learned or len(learned) == len(captions):
        raise DataError(
            "give regions of photographs with captions, some of them training photographs and "
            "some not",
        )
    means = np.zeros((len(items), regions.shape[1]), np.float32)
    for mean, (start, stop) in zip(means, pairwise(offsets), strict=True):
        if start < stop:
            mean[:] = regions[start:stop].mean(axis=0)
    words = TfidfVectorizer(
        sublinear_tf=True,
        min_df=min(3, len(learned)),
        ngram_range=(1, 2),
        max_features=12_000,
    )
    frequencies = words.fit_transform([item.content for item in learned])
    latent = TruncatedSVD(min(LATENT, frequencies.shape[1] - 1), random_state=0)
    texts = latent.fit_transform(frequencies)
    images = means[[places[item.group] for item in learned]]
    to_image, to_text = variates(images.astype(np.float64), texts, dim)
    regions, means = (
        (rows - images.mean(axis=0)) @ to_image.astype(np.float32) for rows in (regions, means)
    )
    counts = words.transform([item.content for item in captions])
    sentences = latent.transform(counts) - texts.mean(axis=0)
    sentences = unit((sentences @ to_text).astype(np.float32))
    _report(
        captions,
        sentences,
        means,
        {key: i for key, i in places.items() if key not in train},
    )
    spans = [(offsets[i], offsets[i + 1]) for key, i in places.items() if key in train]
    return Photographs(regions, np.array(spans)), captions, sentences


def _report(
    captions: Sequence[Item],
    sentences: Matrix,
    means: Matrix,
    held_out: dict[str, int],
) -> None:
    asking = [i for i, item in enumerate(captions) if item.group in held_out]
    scores = sentences[asking] @ unit(means[list(held_out.values())]).T
    rows = {key: row for row, key in enumerate(held_out)}
    owners = [rows[captions[i].group] for i in asking]
    own = scores[np.arange(len(asking)), owners]
    better = (scores > own[:, None]).sum(axis=1)
    share = (better < K).mean()
    log(
        f"{share:.3f} of {len(asking)} held-out captions find theirs of {len(held_out)} "
        f"photographs among {K}",
    )


@click.command()
@click.argument("regions", type=FILE)
@click.argument("train", type=FILE)
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--count", default=200_000, show_default=True, help="Number of composed pictures.")
@click.option("--dim", default=256, show_default=True, help="Maximum number of canonical variates.")
@click.option("--seed", default=0, show_default=True)
def main(regions: Path, train: Path, out: Path, count: int, dim: int, seed: int) -> None:
    """Compose a gallery from the photographs in REGIONS that are listed in TRAIN. Captions of the
    other photographs are the queries."""
    learned = set(train.read_text(encoding="utf-8").split())
    with FeatureFile(regions) as file:
        photographs, captions, sentences = project(file, learned, dim)
        source = file.header.source
    pictures = unit(photographs.compose(np.random.default_rng(seed), count))
    names = [f"{i:08d}.jpg" for i in range(count)]
    items = [Item(name, "image", name, name) for name in names]
    order = np.random.default_rng(seed).permutation(
        sorted({item.group for item in captions} - learned),
    )
    choosing = set(order[: len(order) // 2].tolist())
    groups = {"": learned, "-queries": set(order.tolist()) - choosing, "-validation": choosing}
    settings = f"{source} {sorted(learned)} {count} {dim} {seed}"
    made = hashlib.sha256(settings.encode()).hexdigest()
    for suffix, group in groups.items():
        rows = [i for i, item in enumerate(captions) if item.group in group]
        parts = [([captions[i] for i in rows], sentences[rows])]
        if not suffix:
            parts.insert(0, (items, pictures))
        header = Header("embeddings", "composed", made, sentences.shape[1], "float16", made)
        write(out.with_name(f"{out.stem}{suffix}{out.suffix}"), header, parts)


if __name__ == "__main__":
    main()
