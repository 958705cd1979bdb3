"""Measure whether hits match the query sentence, on painted scenes with known contents.

    python -m bench.paper.scene_truth GALLERY FEATURES --index NAME

GALLERY is a folder painted by ``demo.gallery``, FEATURES contains the features of all or some of
the pictures, and NAME is an index of these pictures (by default, a temporary index). A row contains
a family of sentences (see bench/datasets/gallery_truth.py), a re-ranking metric, and a measure: the
fraction of sentences whose first hit matches all parts of the sentence, or only its kinds, colours,
background, or relation; R@10, the fraction of sentences with a right picture among the first ten
hits; or NDCG@10. ``chance`` is the expected value for a random order.

The pointing game (Zhang et al., Top-down Neural Attention by Excitation Backprop, ECCV 2016) uses
the sentence "a COLOUR KIND" for each thing in a picture, and measures the fraction of sentences for
which the centre of the chosen region lies on the thing. The chosen region is either the region most
similar to the noun ("word") or the region with the strongest mark in ``boc explain`` ("explain").
``chance`` is the expected value for a random region.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from bench.datasets.gallery_truth import (
    DEPTH,
    FAMILIES,
    Measure,
    Picture,
    Sentence,
    judge,
    lies_on,
    queries,
    read_gallery,
)
from bench.options import PATH
from bench.report.rows import Writer
from boc.explain.score import explain
from boc.inputs.features import FeatureFile
from boc.labels import whole_words
from boc.manage.build import build_index
from boc.names import METRICS, Metric
from boc.rerank import check_metric
from boc.search.searcher import Searcher
from boc.vectors import unit_rows

COLUMNS = ("family", "by", "measure", "share", "chance", "count")
THINGS = {1: "one thing", 2: "two things", 3: "three things"}


def families(
    searcher: Searcher,
    gallery: Sequence[Picture],
    numbers: Mapping[str, int],
    metrics: Sequence[Metric],
    most: int,
) -> Iterator[tuple[str, str, str, Measure]]:
    """Yield the measures of all families."""
    sentences = queries(gallery, most)
    for metric in metrics:
        texts = [query.sentence.text for query in sentences]
        hits = searcher.search_texts(texts, k=DEPTH, find="image", rerank=metric)
        rankings = [[numbers[hit.item.id] for hit in row] for row in hits]
        for family in FAMILIES:
            mine = [i for i, query in enumerate(sentences) if query.family == family]
            if mine:
                measures = judge([sentences[i] for i in mine], [rankings[i] for i in mine])
                yield from ((family, metric, name, measure) for name, measure in measures.items())


def pointing(
    searcher: Searcher,
    gallery: Sequence[Picture],
    file: FeatureFile,
    explained: int,
) -> Iterator[tuple[str, str, str, Measure]]:
    """Yield the measures of the pointing game, by words and by the marks in ``explained``
    pictures."""
    drawn = set(np.random.default_rng(0).permutation(len(gallery))[:explained].tolist())
    plays_by: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for number, (picture, rows) in enumerate(zip(gallery, file.batches("image", 1), strict=True)):
        assert rows.embeddings.concepts is not None
        assert rows.embeddings.boxes is not None
        regions = rows.embeddings.concepts[0]
        boxes = rows.embeddings.boxes[0]
        for thing, box in zip(picture.scene.things, picture.boxes, strict=True):
            on = np.array([lies_on(region, box) for region in boxes])
            text = Sentence(((thing.kind, thing.colour),)).text
            pairs = [("word", nearest_region)]
            for by, point in pairs + [("explain", strongest_region)] * (number in drawn):
                place = point(searcher, rows.items[0].id, text, thing.kind, regions)
                plays_by.setdefault((len(picture.scene.things), by), []).append(
                    (float(on[place]), float(on.mean())),
                )
    for (things, by), plays in sorted(plays_by.items()):
        hit, chance = map(float, np.mean(plays, axis=0))
        yield THINGS[things], by, "pointing", Measure(hit, chance, len(plays))


def nearest_region(
    searcher: Searcher,
    id: str,
    text: str,
    noun: str,
    regions: NDArray[np.float32],
) -> int:
    """Return the region with the highest cosine similarity to the noun."""
    encoded = searcher.encoder.encode_texts([text])
    assert encoded.concepts is not None
    assert encoded.words is not None
    names, of = whole_words(encoded.words[0])
    pieces = [names[n] == noun for n in of]
    cosines = unit_rows(encoded.concepts[0][pieces]) @ unit_rows(regions).T
    return int(cosines.max(axis=0, initial=-1).argmax())


def strongest_region(
    searcher: Searcher,
    id: str,
    text: str,
    noun: str,
    regions: NDArray[np.float32],
) -> int:
    """Return the region with the strongest mark in an explanation."""
    weights = explain(searcher, id, text, labelled=0).weights
    assert weights is not None
    return int(weights.argmax())


def summary(rows: Mapping[tuple[str, str, str], Measure], metric: str) -> Iterator[str]:
    """Yield the two lines of the summary."""
    place = {
        name: measure
        for (family, by, name), measure in rows.items()
        if (family, by) == ("place", metric)
    }
    count = next(iter(place.values())).count
    shares = ", ".join(
        f"{name.removeprefix('first: ')} {100 * measure.value:.0f} %"
        for name, measure in place.items()
    )
    yield f'{count} sentences such as "a red rocket over the desert", first hit right: {shares}'
    points = [(things, measure) for (things, by, _), measure in rows.items() if by == "word"]
    yield "the noun points at the thing: " + ", ".join(
        f"{100 * m.value:.0f} % ({things})" for things, m in points
    )


def all_measures(
    searcher: Searcher,
    pictures: Sequence[Picture],
    file: FeatureFile,
    metrics: Sequence[Metric],
    most: int,
    explained: int,
) -> Iterator[tuple[str, str, str, Measure]]:
    """Yield all measures for the pictures in ``file``. ``pictures`` maps their ids to picture
    numbers."""
    numbers = {id: i for i, id in enumerate(file.ids("image"))}
    shown = [pictures[int(Path(id).stem)] for id in numbers]
    yield from families(searcher, shown, numbers, metrics, most)
    yield from pointing(searcher, shown, file, explained)


@contextmanager
def open_index(features: Path, name: str | None, at: str) -> Iterator[Searcher]:
    """Yield the index ``name``, or a temporary index of FEATURES with the default code."""
    if name is not None:
        yield Searcher.open(name, at)
        return
    with tempfile.TemporaryDirectory() as folder:
        build_index("bench", features, at=f"file:{folder}", rerank="mrsw")
        yield Searcher.open("bench", f"file:{folder}")


@click.command()
@click.argument("gallery", type=PATH)
@click.argument("features", type=PATH)
@click.option(
    "--index",
    "name",
    help="Index of the pictures [default: a temporary index with the default code].",
)
@click.option("--at", default="file:boc-data", show_default=True, help="Address of --index.")
@click.option(
    "--rerank",
    "metrics",
    multiple=True,
    type=click.Choice(METRICS),
    help="Metric for re-ranking; can be repeated [default: the index's metric].",
)
@click.option(
    "--queries",
    "most",
    default=300,
    show_default=True,
    help="Maximum number of sentences per family.",
)
@click.option(
    "--explained",
    default=50,
    show_default=True,
    help="Number of pictures whose explanations are judged.",
)
@click.option("--brief", is_flag=True, help="Print a two-line summary instead of the rows.")
def main(
    gallery: Path,
    features: Path,
    name: str | None,
    at: str,
    metrics: tuple[Metric, ...],
    most: int,
    explained: int,
    brief: bool,
) -> None:
    """Compare searches for the pictures in FEATURES with the true contents in GALLERY."""
    pictures = read_gallery(gallery / "scenes.json")
    with FeatureFile(features) as file, open_index(features, name, at) as searcher:
        metrics = metrics or (check_metric(searcher.index.manifest.rerank),)
        measures = all_measures(searcher, pictures, file, metrics, most, explained)
        if brief:
            click.echo(
                "\n".join(
                    summary({(a, b, c): measure for a, b, c, measure in measures}, metrics[0]),
                ),
            )
            return
        settings = {**click.get_current_context().params, "metrics": metrics}
        with Writer(sys.stdout, __file__, settings, COLUMNS) as out:
            for *key, measure in measures:
                out.write(
                    *key,
                    f"{measure.value:.4f}",
                    f"{measure.chance:.4f}",
                    measure.count,
                )


if __name__ == "__main__":
    main()
