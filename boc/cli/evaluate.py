"""boc evaluate."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from boc.cli import _options

if TYPE_CHECKING:
    from boc.evaluation import Gain, Ndcg, Recalls


@click.command("evaluate")
@click.argument("features", type=_options.PATH)
@click.option("--name", help="Rank through this index of the same items, not by the dense vectors.")
@click.option("--rm", type=float, help="With --name: candidates re-scored for each hit [default: the index's].")
@click.option("--rerank", help="With --name: how they are re-scored, as for boc search [default: the index's].")
@click.option(
    "--fold",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Pictures of a fold, for galleries that are larger.",
)
@click.option("--ndcg", is_flag=True, help="Print NDCG@25 too, of the dense vectors.")
@click.option(
    "--gain",
    type=click.Choice(["exponential", "linear"]),
    default="exponential",
    show_default=True,
    help="With --ndcg: 2^relevance - 1, or the relevance.",
)
@click.option(
    "--relevance", type=_options.PATH, help="With --ndcg: matrix of relevances [default: ROUGE-L is computed]."
)
@click.option("--spice", metavar="COMMAND", help="With --relevance: make or finish that file by SPICE.")
@_options.at
@_options.as_json
def command(
    features: Path,
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

    NDCG also counts pictures that other captions describe alike: by ROUGE-L, or by a published or SPICE's matrix of
    float32, captions by pictures in the order of FEATURES.

    \b
    Examples: boc evaluate dev.h5
              boc evaluate dev.h5 --name dev --rm 1
              boc evaluate dev.h5 --ndcg
              boc evaluate dev.h5 --ndcg --relevance spice.f32 --spice "java -Xmx8G -jar spice-1.0.jar"
    """
    from boc.measure import evaluate_dense

    if ndcg and name is not None:
        raise click.UsageError("--ndcg is measured by the dense vectors; leave out --name")
    if (relevance is not None and not ndcg) or (spice is not None and relevance is None):
        raise click.UsageError(
            "--relevance goes with --ndcg, and --spice with --relevance FILE, where its work is kept"
        )
    ranked = _ndcgs(features, fold, gain, relevance, spice) if ndcg else {}
    recalls = evaluate_dense(features, fold) if name is None else {"index": _through(features, name, at, rm, rerank)}
    tables = {label: asdict(both) for label, both in recalls.items()}
    for label, both in ranked.items():
        for side, value in asdict(both).items():
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


def _ndcgs(features: Path, fold: int, gain: Gain, relevance: Path | None, spice: str | None) -> dict[str, Ndcg]:
    from boc.features import FeatureFile
    from boc.measure import evaluate_dense_ndcg

    with FeatureFile(features) as file:
        cells = file.count("image") * file.count("text")
    with _options.bar("relevance", cells) as bar:
        return evaluate_dense_ndcg(features, fold, gain=gain, relevance=relevance, spice=spice, tick=bar.update)


def _through(features: Path, name: str, at: str, rm: float | None, rerank: str | None) -> Recalls:
    from boc.features import FeatureFile
    from boc.measure import evaluate_index

    with FeatureFile(features) as file:
        total = file.count("image") + file.count("text")
    with _options.bar("asking", total) as bar:
        return evaluate_index(features, name, at, rm, rerank, tick=bar.update)
