"""Measures what is above the line that a search draws by the confidence of its hits.

    python -m bench.paper.cutoff FEATURES --gallery GALLERY

GALLERY is a folder of ``demo.gallery``, FEATURES the features of its pictures. A row has a family of sentences
(bench/datasets/gallery_truth.py) and a re-rank metric: the precision of the hits of confidence 0.5 and more (mean over
the sentences that have any), the share of right pictures among them (recall), their number, and the share of empty
answers. Two families have no right picture: "nowhere" are sentences about things that are in no gallery, "left out" the
names of things, each searched for in an index without the pictures that show it.

Without GALLERY the families are "caption", sentences of FEATURES, whose own picture alone is right (so precision is a
lower bound, since other pictures fit too), "left out", the same sentences in an index without their pictures, and
"nowhere".
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from bench.datasets.gallery_truth import FAMILIES, Picture, Sentence, queries, read_gallery
from bench.report.rows import Writer
from boc.indexes.build import build_index, delete
from boc.inputs.features import FeatureFile
from boc.names import METRICS, Metric
from boc.search.searcher import Searcher

COLUMNS = ("family", "by", "count", "precision", "recall", "shown", "empty")
LINE = 0.5  # confidence where the line is drawn
NOWHERE = (
    "a submarine", "a violin", "an elephant eating bananas", "a chess board", "a microscope", "two men shaking hands",
    "a plate of spaghetti", "a football match", "a spreadsheet on a computer screen", "a wedding dress",
    "an aircraft engine", "a bowl of soup", "a dentist at work", "a slice of pizza", "a traffic jam at night",
    "a bookshelf in a library", "a pair of scissors", "a newspaper", "a zebra crossing a street", "a grand piano",
)  # fmt: skip


@contextmanager
def temporary_index(features: Path) -> Iterator[tuple[Path, Searcher]]:
    """Yield a temporary index of FEATURES, and the folder of its back end."""
    with tempfile.TemporaryDirectory() as folder:
        build_index("bench", features, at=f"file:{folder}", concepts="float16")
        yield Path(folder), Searcher.open("bench", f"file:{folder}")


@contextmanager
def without(place: Path, ids: Sequence[str], whole: Searcher) -> Iterator[Searcher]:
    """Yield a copy of the index ``whole``, whose back end is the folder ``place``, without some of its pictures."""
    with tempfile.TemporaryDirectory() as folder:
        at = f"file:{shutil.copytree(place, Path(folder) / 'copy')}"
        delete("bench", ids, at=at)
        rest = Searcher.open("bench", at)
        rest.encoder = whole.encoder
        yield rest


def above(searcher: Searcher, texts: Sequence[str], metric: Metric) -> list[list[str]]:
    """Return the ids above the line, of each sentence."""
    most = searcher.index.manifest.items["image"]
    answers = searcher.search_texts(texts, k=most, rm=1, find="image", rerank=metric, min_confidence=LINE)
    return [[hit.item.id for hit in hits] for hits in answers]


def measures(
    shown: Sequence[Sequence[str]], right: Sequence[set[str]]
) -> tuple[float | None, float | None, float, float]:
    """Return precision, recall, number shown, and share of empty answers; None where there is nothing to divide by."""
    pairs = list(zip(map(set, shown), right, strict=True))
    precision = [len(hits & relevant) / len(hits) for hits, relevant in pairs if hits]
    recall = [len(hits & relevant) / len(relevant) for hits, relevant in pairs if relevant]
    return (
        float(np.mean(precision)) if precision else None,
        float(np.mean(recall)) if recall else None,
        float(np.mean([len(hits) for hits in shown])),
        float(np.mean([not hits for hits in shown])),
    )


def of_scenes(
    features: Path, ids: Sequence[str], pictures: Sequence[Picture], metrics: Sequence[Metric], most: int, kinds: int
) -> Iterator[tuple[object, ...]]:
    """Yield the rows of a gallery."""
    sentences = queries(pictures, most)
    with temporary_index(features) as (place, searcher):
        for metric in metrics:
            for family in FAMILIES:
                mine = [query for query in sentences if query.family == family]
                right = [select_ids(ids, query.relevance == 1) for query in mine]
                if mine:
                    shown = above(searcher, [query.sentence.text for query in mine], metric)
                    yield family, metric, len(mine), *measures(shown, right)
            yield "nowhere", metric, len(NOWHERE), *measures(above(searcher, NOWHERE, metric), [set()] * len(NOWHERE))
        kinds_shown = sorted({thing.kind for picture in pictures for thing in picture.scene.things})[:kinds]
        without_kind: dict[Metric, list[list[str]]] = {metric: [] for metric in metrics}
        for kind in kinds_shown:
            having = [any(thing.kind == kind for thing in picture.scene.things) for picture in pictures]
            with without(place, sorted(select_ids(ids, np.array(having))), searcher) as rest:
                for metric, shown in without_kind.items():
                    shown += above(rest, [Sentence(((kind, ""),)).text], metric)
        for metric, shown in without_kind.items():
            yield "left out", metric, len(kinds_shown), *measures(shown, [set()] * len(kinds_shown))


def of_captions(
    features: Path, file: FeatureFile, metrics: Sequence[Metric], most: int
) -> Iterator[tuple[object, ...]]:
    """Yield the rows of captioned photographs."""
    items = [item for batch in file.batches("text", 1024) for item in batch.items]
    drawn = np.random.default_rng(0).permutation(len(items))[:most]
    sentences = [items[i] for i in sorted(drawn.tolist())]
    texts, pictures = [item.content for item in sentences], [{item.group} for item in sentences]
    with (
        temporary_index(features) as (place, searcher),
        without(place, sorted(set().union(*pictures)), searcher) as rest,
    ):
        for metric in metrics:
            yield "caption", metric, len(sentences), *measures(above(searcher, texts, metric), pictures)
            yield "left out", metric, len(sentences), *measures(above(rest, texts, metric), [set()] * len(sentences))
            yield "nowhere", metric, len(NOWHERE), *measures(above(searcher, NOWHERE, metric), [set()] * len(NOWHERE))


def select_ids(ids: Sequence[str], mask: NDArray[np.bool_]) -> set[str]:
    return {id for id, taken in zip(ids, mask.tolist(), strict=True) if taken}


def share(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else ""


@click.command()
@click.argument("features", type=click.Path(path_type=Path))
@click.option("--gallery", type=click.Path(path_type=Path), help="The truth about the pictures.")
@click.option("--rerank", "metrics", multiple=True, type=click.Choice(METRICS), default=("mrsw", "dot"))
@click.option("--queries", "most", default=300, show_default=True, help="Sentences of a family at most.")
@click.option("--kinds", default=100, show_default=True, help="Largest number of things to leave out.")
def main(features: Path, gallery: Path | None, metrics: tuple[Metric, ...], most: int, kinds: int) -> None:
    """Measure what a search among the pictures of FEATURES shows above its line."""
    settings = {"features": features, "gallery": gallery, "rerank": metrics, "queries": most, "kinds": kinds}
    with FeatureFile(features) as file, Writer(sys.stdout, __file__, settings, COLUMNS) as out:
        if gallery is None:
            rows = of_captions(features, file, metrics, most)
        else:
            pictures, ids = read_gallery(gallery / "scenes.json"), file.ids("image")
            rows = of_scenes(features, ids, [pictures[int(Path(id).stem)] for id in ids], metrics, most, kinds)
        for family, by, count, precision, recall, shown, empty in rows:
            out.write(family, by, count, share(precision), share(recall), f"{shown:.2f}", f"{empty:.4f}")


if __name__ == "__main__":
    main()
