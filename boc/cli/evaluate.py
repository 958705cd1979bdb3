"""boc evaluate."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from boc.cli import _options

if TYPE_CHECKING:
    from boc.evaluation import Recalls


@click.command("evaluate")
@click.argument("features", type=_options.PATH)
@click.option("--name", help="Rank through this index of the same items, not by the dense vectors.")
@click.option("--rm", type=float, help="With --name: candidates re-scored for each hit [default: the index's].")
@click.option(
    "--fold",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Pictures of a fold, for galleries that are larger.",
)
@_options.at
@_options.as_json
def command(features: Path, name: str | None, rm: float | None, fold: int, at: str, as_json: bool) -> None:
    """Measure how well captions find their pictures, and pictures their captions, in FEATURES.

    Prints Recall@1, 5, 10 and the median rank, over all items and, where there are more than --fold pictures, as the
    mean over folds of so many. Through an index only the full gallery is measured.

    \b
    Examples: boc evaluate dev.h5
              boc evaluate dev.h5 --name dev --rm 1
    """
    from boc.measure import evaluate_dense

    tables = evaluate_dense(features, fold) if name is None else {"index": _through(features, name, at, rm)}
    if as_json:
        click.echo(json.dumps({label: asdict(recalls) for label, recalls in tables.items()}))
        return
    for label, recalls in tables.items():
        click.echo(f"{label}")
        for direction, r in (
            ("sentence to picture", recalls.text_to_image),
            ("picture to sentence", recalls.image_to_text),
        ):
            click.echo(
                f"  {direction}  R@1 {r.r1:5.1f}  R@5 {r.r5:5.1f}  R@10 {r.r10:5.1f}  median rank {r.median_rank:g}"
            )


def _through(features: Path, name: str, at: str, rm: float | None) -> Recalls:
    from boc.features import FeatureFile
    from boc.measure import evaluate_index

    with FeatureFile(features) as file:
        total = file.count("image") + file.count("text")
    with _options.bar("asking", total) as bar:
        return evaluate_index(features, name, at, rm, tick=bar.update)
