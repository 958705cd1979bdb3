"""Define the command boc evaluate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from boc.cli import options
from boc.names import METRICS, Metric

if TYPE_CHECKING:
    from boc.evaluate.metrics import Ndcg, Recalls
    from boc.evaluate.runs import Gallery
    from boc.vectors import Floats


@click.command("evaluate")
@click.argument("features", type=options.PATH, nargs=-1, required=True, metavar="FEATURES...")
@click.option(
    "--score",
    type=click.Choice(METRICS),
    help="Score of a pair; with --name, the score for re-ranking [default: dot, or the setting of "
    "the index].",
)
@click.option(
    "--name",
    help="Index of the same items; measures searches of this index instead of exact scores.",
)
@click.option(
    "--rm",
    type=float,
    help="With --name, candidates to re-rank per hit [default: the setting of the index].",
)
@click.option(
    "--fold",
    type=click.IntRange(1),
    default=1000,
    help="Pictures per fold, if the gallery is larger.",
)
@click.option(
    "--ndcg",
    metavar="RELEVANCE",
    help="Relevance measure for NDCG@25: rouge-l, or a relevance file.",
)
@click.option(
    "--run",
    "runs",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder in which to write the measured rankings as TREC runs and qrels.",
)
@options.at
@options.as_json
def command(
    features: tuple[Path, ...],
    score: Metric | None,
    name: str | None,
    rm: float | None,
    fold: int,
    ndcg: str | None,
    runs: Path | None,
    at: str,
    as_json: bool,
) -> None:
    """Measure searches of pictures by captions and vice versa. FEATURES contains both.

    The command prints Recall@1, 5 and 10 and the median rank over all items. Without --name, if the
    gallery has more than --fold pictures, the command also prints the means over folds.

    If several FEATURES with the same items are given, the scores of the encoders are averaged. mwsr
    and symm follow the TERAN paper; the authors' code replaces negative maxima in mwsr by 0.

    NDCG also rewards other pictures with similar captions, with a gain of 2^relevance - 1. A
    relevance file, as published by the authors of TERN, is a float32 matrix of captions by
    pictures, in the order of FEATURES and without a header.

    \b
    Examples: boc evaluate dev.h5
              boc evaluate dev.h5 --score mrsw
              boc evaluate one.h5 other.h5
              boc evaluate dev.h5 --name dev --rm 1 --ndcg rouge-l
              boc evaluate dev.h5 --ndcg spice.f32
              boc evaluate dev.h5 --name dev --run runs
    """
    unfit, measured = ("rm", "FEATURES without --name") if name is None else ("fold", "an index")
    if options.on_command_line(unfit):
        raise click.UsageError(f"--{unfit} cannot be used with {measured}; omit this option")
    if name is not None and len(features) > 1:
        raise click.UsageError(
            "--name needs a single FEATURES file; omit --name or the other files",
        )
    from boc.evaluate.runs import Gallery

    gallery = Gallery.of(*features)
    known = None
    if ndcg is not None:
        with options.bars() as bars:
            tick = bars.ticks("relevance", len(gallery.captions) * gallery.images)
            path = None if ndcg == "rouge-l" else Path(ndcg)
            known = gallery.relevance(path, tick=tick)
    if name is None:
        protocols = measure_features(gallery, score or "dot", fold, known)
    else:
        protocols = measure_index(gallery, name, at, rm, score, known)
    tables = {}
    heads = []
    for label, head, recalls, gains in protocols:
        heads.append(head)
        tables[label] = asdict(recalls)
        if gains is not None:
            for side, value in asdict(gains).items():
                tables[label][side]["ndcg"] = value
    if runs is not None:
        gallery.write_runs(runs, name, at, rm=rm, score=score)
    if as_json:
        options.print_json(tables)
        return
    for head, table in zip(heads, tables.values(), strict=True):
        click.echo(head)
        for direction, side in (
            ("sentence to picture", "text_to_image"),
            ("picture to sentence", "image_to_text"),
        ):
            line = "R@1 {r1:5.1f}  R@5 {r5:5.1f}  R@10 {r10:5.1f}  median rank {median_rank:g}"
            if known is not None:
                line += "  NDCG@25 {ndcg:.3f}"
            click.echo(f"  {direction}  {line.format(**table[side])}")


def measure_features(
    gallery: Gallery,
    score: str,
    fold: int,
    relevance: Floats | None,
) -> Iterator[tuple[str, str, Recalls, Ndcg | None]]:
    """Yield the label, heading, recall and NDCG of each protocol. NDCG is None without a relevance
    matrix."""
    from boc.evaluate.metrics import evaluate_ndcg, evaluate_recall

    with options.bars() as bars:
        scores = gallery.scores(score, tick=bars.ticks("scores", len(gallery.captions)))
    for label, part in gallery.protocols(fold).items():
        gains = None
        if relevance is not None:
            gains = evaluate_ndcg(scores, gallery.owners, relevance, part)
        yield label, label, evaluate_recall(scores, gallery.owners, part), gains


def measure_index(
    gallery: Gallery,
    name: str,
    at: str,
    rm: float | None,
    rerank: Metric | None,
    relevance: Floats | None,
) -> Iterator[tuple[str, str, Recalls, Ndcg | None]]:
    """Yield the label, heading, recall and NDCG of searches of an index. If ``rm`` is None, also
    evaluate the code, at the budgets of the index and without re-ranking."""
    from boc.evaluate.runs import evaluate_index
    from boc.plan import ALL_COMPARED, usual_way
    from boc.search.searcher import Searcher

    searcher = Searcher.open(name, at)
    budgets = {"index": rm}
    if rm is None:
        budgets |= {"code": searcher.index.manifest.rm, "code alone": 1}
    for label, each in budgets.items():
        with options.bars() as bars:
            tick = bars.ticks("searching", gallery.images + len(gallery.captions))
            report = evaluate_index(
                gallery.paths[0],
                name,
                at,
                each,
                rerank,
                relevance=relevance,
                tick=tick,
            )
        about = "as a search"
        if each == 1:
            about = "ranked by its terms"
        elif each is not None:
            about = f"re-ranked from {each:g} candidates per hit"
        elif usual_way(searcher.index) == "all":
            about += f"; {ALL_COMPARED}"
        yield label, f"{label}, {about}", report.recalls, report.ndcg
