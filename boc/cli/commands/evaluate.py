"""boc evaluate."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from boc.cli import options
from boc.names import METRICS, RELEVANCES, Metric, Relevance

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from boc.evaluate.metrics import Gain
    from boc.evaluate.runs import Gallery

    Known = Callable[[Gallery], NDArray[np.float32]]
    """Computes the relevance (captions, pictures) of a gallery."""


@click.command("evaluate")
@click.argument("features", type=options.PATH, nargs=-1, required=True)
@click.option(
    "--score",
    type=click.Choice(METRICS),
    default="dot",
    show_default=True,
    help="Score of a pair: dot product of the vectors, or an alignment of the concept sets.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="With --score: device that computes alignments; cuda is for thousands of pictures.",
)
@click.option(
    "--name",
    shell_complete=options.complete_names,
    help="Rank through this index of the same items instead of by the dense vectors.",
)
@click.option("--rm", type=float, help="With --name: candidates re-ranked per hit [default: that of the index].")
@click.option(
    "--rerank",
    type=click.Choice(METRICS),
    help="With --name: how candidates are re-ranked, as for boc search [default: that of the index].",
)
@click.option(
    "--fold",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Number of pictures per fold, for galleries that are larger.",
)
@click.option("--ndcg", is_flag=True, help="Also print NDCG@25.")
@click.option(
    "--gain",
    type=click.Choice(["exponential", "linear"]),
    default="exponential",
    show_default=True,
    help="With --ndcg: gain of an item: 2^relevance - 1, or the relevance itself as in the papers, where queries of "
    "NDCG 0 count too.",
)
@click.option(
    "--by",
    type=click.Choice(RELEVANCES),
    help="With --ndcg: relevance by the words that captions share in order (rouge-l), or by their objects, attributes "
    "and relations (graph) [default: rouge-l].",
)
@click.option(
    "--relevance",
    type=options.PATH,
    help="With --ndcg: file with the matrix of relevances, instead of --by.",
)
@click.option(
    "--spice", metavar="COMMAND", help="With --relevance: command that runs SPICE, to make or complete that file."
)
@options.at
@options.as_json
def command(
    features: tuple[Path, ...],
    score: str,
    device: str,
    name: str | None,
    rm: float | None,
    rerank: Metric | None,
    fold: int,
    ndcg: bool,
    gain: Gain,
    by: Relevance | None,
    relevance: Path | None,
    spice: str | None,
    at: str,
    as_json: bool,
) -> None:
    """Measure retrieval of pictures by their captions, and of captions by their pictures, in FEATURES.

    Prints Recall@1, 5, 10 and the median rank over all items. If there are more than --fold pictures, it also prints
    the mean over folds of that size; through an index, each fold is copied to an index of its own.

    Several FEATURES of the same items by different encoders are measured as an ensemble: their scores are averaged.
    mwsr and symm are those of TERAN's paper; the code of its authors bounds each maximum in mwsr below by 0.

    NDCG also counts other pictures with similar captions. Relevance is ROUGE-L, the F1 of caption graphs (a small
    parser in the place of SPICE's, for English), or a matrix of float32, captions by pictures in the order of FEATURES,
    that is published or made with SPICE.

    \b
    Examples: boc evaluate dev.h5
              boc evaluate dev.h5 --score mrsw
              boc evaluate coco5k.h5 --score mrsw --device cuda
              boc evaluate one.h5 other.h5
              boc evaluate dev.h5 --name dev --rm 1 --ndcg
              boc evaluate dev.h5 --ndcg --by graph
              boc evaluate dev.h5 --ndcg --relevance spice.f32 --spice "java -Xmx8G -jar spice-1.0.jar"
    """
    if name is not None and (score != "dot" or len(features) > 1):
        raise click.UsageError(
            "--score and several FEATURES are measured without an index; leave out --name, or align with --rerank"
        )
    if name is None and (options.given("rm") or options.given("rerank")):
        raise click.UsageError("--rm and --rerank are for an index: name it with --name, or take --score without one")
    if not ndcg and options.given("gain"):
        raise click.UsageError("--gain is that of NDCG: add --ndcg, or leave it out")
    if device != "cpu" and score == "dot":
        raise click.UsageError("--device computes alignments: give --score mrsw or another, or leave it out")
    if by is not None and (not ndcg or relevance is not None):
        raise click.UsageError("--by goes with --ndcg, and without --relevance, whose file tells the relevance")
    if (relevance is not None and not ndcg) or (spice is not None and relevance is None):
        raise click.UsageError(
            "--relevance goes with --ndcg, and --spice with --relevance FILE, where its work is kept"
        )

    def known(gallery: Gallery) -> NDArray[np.float32]:
        with options.bar("relevance", len(gallery.captions) * gallery.images) as bar:
            return gallery.relevance(relevance, spice, by=by or "rouge-l", tick=bar.update)

    if name is None:
        tables = _dense(features, score, device, fold, gain if ndcg else None, known)
    else:
        tables = _through(features[0], name, at, rm, rerank, fold, gain if ndcg else None, known)
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
    features: tuple[Path, ...], score: str, device: str, fold: int, gain: Gain | None, relevance: Known
) -> dict[str, dict[str, dict[str, float]]]:
    """Figures by label and direction; with a ``gain``, NDCG among them."""
    from boc.evaluate.metrics import evaluate_ndcg, evaluate_recall
    from boc.evaluate.runs import Gallery

    gallery = Gallery.of(*features)
    known = None if gain is None else relevance(gallery)
    if score == "dot":
        scores = gallery.scores()
    else:
        with options.bar("scores", len(gallery.captions)) as bar:
            scores = gallery.scores(score, device=device, tick=bar.update)
    tables = {}
    for label, part in gallery.protocols(fold).items():
        tables[label] = asdict(evaluate_recall(scores, gallery.owners, part))
        if gain is not None and known is not None:
            for side, value in asdict(evaluate_ndcg(scores, gallery.owners, known, part, gain=gain)).items():
                tables[label][side]["ndcg"] = value
    return tables


def _through(
    features: Path,
    name: str,
    at: str,
    rm: float | None,
    rerank: Metric | None,
    fold: int,
    gain: Gain | None,
    relevance: Known,
) -> dict[str, dict[str, dict[str, float]]]:
    """The same through an index."""
    from boc.evaluate.runs import Gallery, evaluate_index

    gallery = Gallery.of(features)
    known = None if gain is None else relevance(gallery)
    tables = {}
    for label, part in gallery.protocols(fold).items():
        with options.bar("asking", gallery.images + len(gallery.captions)) as bar:
            recalls, ndcg = evaluate_index(
                features, name, at, rm, rerank, fold=part, relevance=known, gain=gain or "exponential", tick=bar.update
            )
        label = "index" if part is None else f"index, {label}"
        tables[label] = asdict(recalls)
        for side, value in asdict(ndcg).items() if ndcg is not None else ():
            tables[label][side]["ndcg"] = value
    return tables
