"""boc evaluate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from boc.cli import options
from boc.names import METRICS, Metric

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from boc.evaluate.metrics import Ndcg, Recalls
    from boc.evaluate.runs import Gallery


@click.command("evaluate")
@click.argument("features", type=options.PATH, nargs=-1, required=True)
@click.option(
    "--score",
    type=click.Choice(METRICS),
    help="Score of a pair: dot product of the vectors, or an alignment of the concept sets; with --name, what "
    "candidates are re-ranked by [default: dot; with --name, that of the index].",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Device that computes alignments without --name; cuda is for thousands of pictures.",
)
@click.option(
    "--name",
    shell_complete=options.complete_names,
    help="Rank through this index of the same items instead of by the dense vectors.",
)
@click.option("--rm", type=float, help="With --name: candidates re-ranked per hit [default: that of the index].")
@click.option(
    "--fold",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Number of pictures per fold, for galleries that are larger.",
)
@click.option(
    "--ndcg",
    metavar="RELEVANCE",
    help="Also print NDCG@25 by this relevance: rouge-l, or a file with the matrix of relevances.",
)
@options.at
@options.as_json
def command(
    features: tuple[Path, ...],
    score: Metric | None,
    device: str,
    name: str | None,
    rm: float | None,
    fold: int,
    ndcg: str | None,
    at: str,
    as_json: bool,
) -> None:
    """Measure retrieval of pictures by their captions, and of captions by their pictures, in FEATURES.

    Prints Recall@1, 5, 10 and the median rank over all items. If there are more than --fold pictures, it also prints
    the mean over folds of that size; through an index, each fold is copied to an index of its own.

    Several FEATURES of the same items by different encoders are measured as an ensemble: their scores are averaged.
    mwsr and symm are those of TERAN's paper; the code of its authors bounds each maximum in mwsr below by 0.

    NDCG also counts other pictures with similar captions, with the gain 2^relevance - 1. A file of relevances is a
    matrix of float32 without a header, captions by pictures in the order of FEATURES, as TERN's authors published.

    \b
    Examples: boc evaluate dev.h5
              boc evaluate dev.h5 --score mrsw
              boc evaluate coco5k.h5 --score mrsw --device cuda
              boc evaluate one.h5 other.h5
              boc evaluate dev.h5 --name dev --rm 1 --ndcg rouge-l
              boc evaluate dev.h5 --ndcg spice.f32
    """
    if name is not None and len(features) > 1:
        raise click.UsageError("several FEATURES are measured without an index; leave out --name")
    if name is None and options.on_command_line("rm"):
        raise click.UsageError("--rm is for an index: name it with --name, or leave it out")
    if device != "cpu" and (name is not None or score in (None, "dot")):
        raise click.UsageError("--device computes alignments: give --score mrsw or another, or leave it out")

    from boc.evaluate.runs import Gallery

    gallery, known = Gallery.of(*features), None
    if ndcg is not None:
        with options.bar("relevance", len(gallery.captions) * gallery.images) as bar:
            known = gallery.relevance(None if ndcg == "rouge-l" else Path(ndcg), tick=bar.update)
    tables: dict[str, dict[str, dict[str, float]]] = {}
    for label, recalls, gains in (
        _dense(gallery, score or "dot", device, fold, known)
        if name is None
        else _through(gallery, name, at, rm, score, fold, known)
    ):
        tables[label] = asdict(recalls)
        for side, value in asdict(gains).items() if gains is not None else ():
            tables[label][side]["ndcg"] = value
    if as_json:
        click.echo(json.dumps(tables))
        return
    for label, table in tables.items():
        click.echo(label)
        for direction, side in (("sentence to picture", "text_to_image"), ("picture to sentence", "image_to_text")):
            click.echo(f"  {direction}  {_line(**table[side])}")


def _line(r1: float, r5: float, r10: float, median_rank: float, ndcg: float | None = None) -> str:
    line = f"R@1 {r1:5.1f}  R@5 {r5:5.1f}  R@10 {r10:5.1f}  median rank {median_rank:g}"
    return line if ndcg is None else f"{line}  NDCG@25 {ndcg:.3f}"


def _dense(
    gallery: Gallery, score: str, device: str, fold: int, relevance: NDArray[np.float32] | None
) -> Iterator[tuple[str, Recalls, Ndcg | None]]:
    """Yield the label and the figures of each protocol; NDCG is None without a relevance."""
    from boc.evaluate.metrics import evaluate_ndcg, evaluate_recall

    if score == "dot":
        scores = gallery.scores()
    else:
        with options.bar("scores", len(gallery.captions)) as bar:
            scores = gallery.scores(score, device=device, tick=bar.update)
    for label, part in gallery.protocols(fold).items():
        ndcg = None if relevance is None else evaluate_ndcg(scores, gallery.owners, relevance, part)
        yield label, evaluate_recall(scores, gallery.owners, part), ndcg


def _through(
    gallery: Gallery,
    name: str,
    at: str,
    rm: float | None,
    rerank: Metric | None,
    fold: int,
    relevance: NDArray[np.float32] | None,
) -> Iterator[tuple[str, Recalls, Ndcg | None]]:
    """Yield the same through an index."""
    from boc.evaluate.runs import evaluate_index

    for label, part in gallery.protocols(fold).items():
        with options.bar("searching", gallery.images + len(gallery.captions)) as bar:
            figures = evaluate_index(
                gallery.paths[0], name, at, rm, rerank, fold=part, relevance=relevance, tick=bar.update
            )
        yield "index" if part is None else f"index, {label}", *figures
