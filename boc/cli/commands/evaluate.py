"""boc evaluate."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from boc.cli import completers, options

if TYPE_CHECKING:
    from boc.evaluate.metrics import Gain, Recalls


@click.command("evaluate")
@click.argument("features", type=options.PATH, nargs=-1, required=True)
@click.option(
    "--score",
    type=click.Choice(["dot", "mrsw", "mwsr", "symm", "mravgw"]),
    default="dot",
    show_default=True,
    help="Score pairs by their vectors, or by an alignment of their concept sets.",
)
@click.option(
    "--name",
    shell_complete=completers.names,
    help="Rank through this index of the same items, not by the dense vectors.",
)
@click.option("--rm", type=float, help="With --name: candidates re-scored for each hit [default: the index's].")
@click.option("--rerank", help="With --name: how they are re-scored, as for boc search [default: the index's].")
@click.option(
    "--fold",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Pictures of a fold, for galleries that are larger.",
)
@click.option("--ndcg", is_flag=True, help="Print NDCG@25 too.")
@click.option(
    "--gain",
    type=click.Choice(["exponential", "linear"]),
    default="exponential",
    show_default=True,
    help="With --ndcg: 2^relevance - 1, or the relevance.",
)
@click.option(
    "--relevance", type=options.PATH, help="With --ndcg: matrix of relevances [default: ROUGE-L is computed]."
)
@click.option("--spice", metavar="COMMAND", help="With --relevance: make or finish that file by SPICE.")
@options.at
@options.as_json
def command(
    features: tuple[Path, ...],
    score: str,
    name: str | None,
    rm: float | None,
    rerank: str | None,
    fold: int,
    ndcg: bool,
    gain: Gain,
    relevance: Path | None,
    spice: str | None,
    at: str,
    as_json: bool,
) -> None:
    """Measure how well captions find their pictures, and pictures their captions, in FEATURES.

    Prints Recall@1, 5, 10 and the median rank, over all items and, where there are more than --fold pictures, as the
    mean over folds of so many. Through an index only the full gallery is measured.

    Several FEATURES of the same items, each by an encoder of its own, are measured as an ensemble: their scores are
    averaged. mwsr and symm are those of TERAN's paper; its authors' code takes no maximum below 0 in mwsr.

    NDCG also counts pictures that other captions describe alike: by ROUGE-L, or by a published or SPICE's matrix of
    float32, captions by pictures in the order of FEATURES.

    \b
    Examples: boc evaluate dev.h5
              boc evaluate dev.h5 --score mrsw
              boc evaluate one.h5 other.h5
              boc evaluate dev.h5 --name dev --rm 1
              boc evaluate dev.h5 --ndcg
              boc evaluate dev.h5 --ndcg --relevance spice.f32 --spice "java -Xmx8G -jar spice-1.0.jar"
    """
    if name is not None and (ndcg or score != "dot" or len(features) > 1):
        raise click.UsageError("--ndcg, --score and several FEATURES are measured without an index; leave out --name")
    if (relevance is not None and not ndcg) or (spice is not None and relevance is None):
        raise click.UsageError(
            "--relevance goes with --ndcg, and --spice with --relevance FILE, where its work is kept"
        )
    if name is None:
        tables = _dense(features, score, fold, gain if ndcg else None, relevance, spice)
    else:
        tables = {"index": asdict(_through(features[0], name, at, rm, rerank))}
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
    features: tuple[Path, ...], score: str, fold: int, gain: Gain | None, relevance: Path | None, spice: str | None
) -> dict[str, dict[str, dict[str, float]]]:
    """Figures by label and direction; with a ``gain``, NDCG among them."""
    from boc.evaluate.metrics import evaluate_ndcg, evaluate_recall
    from boc.evaluate.runs import Gallery

    gallery = Gallery.of(*features)
    known = None
    if gain is not None:
        with options.bar("relevance", len(gallery.captions) * gallery.images) as bar:
            known = gallery.relevance(relevance, spice, tick=bar.update)
    if score == "dot":
        scores = gallery.scores()
    else:
        with options.bar("scores", len(gallery.captions)) as bar:
            scores = gallery.scores(score, tick=bar.update)
    tables = {}
    for label, part in gallery.protocols(fold).items():
        tables[label] = asdict(evaluate_recall(scores, gallery.owners, part))
        if gain is not None and known is not None:
            for side, value in asdict(evaluate_ndcg(scores, gallery.owners, known, part, gain=gain)).items():
                tables[label][side]["ndcg"] = value
    return tables


def _through(features: Path, name: str, at: str, rm: float | None, rerank: str | None) -> Recalls:
    from boc.evaluate.runs import evaluate_index
    from boc.inputs.features import FeatureFile

    with FeatureFile(features) as file:
        total = file.count("image") + file.count("text")
    with options.bar("asking", total) as bar:
        return evaluate_index(features, name, at, rm, rerank, tick=bar.update)
