"""boc evaluate."""

from __future__ import annotations

import csv
import json
import sys
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
@click.argument("features", type=options.PATH, nargs=-1, required=True, metavar="FEATURES...")
@click.option(
    "--score",
    type=click.Choice(METRICS),
    help="Score of a pair; with --name, of re-ranking [default: dot, as the index].",
)
@click.option(
    "--name",
    shell_complete=options.complete_names,
    help="Rank through this index of the same items instead.",
)
@click.option(
    "--rm",
    type=float,
    help="With --name: candidates re-ranked per hit [default: that of the index].",
)
@click.option(
    "--fold",
    type=click.IntRange(1),
    default=1000,
    help="Pictures per fold, of galleries that are larger.",
)
@click.option(
    "--ndcg",
    metavar="RELEVANCE",
    help="Print NDCG@25, too, by rouge-l or by a file of relevances.",
)
@click.option(
    "--run",
    "runs",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write runs of TREC and qrels to this folder.",
)
@click.option(
    "--qrels",
    type=options.PATH,
    help="Measure runs, given in place of FEATURES, by these judgements.",
)
@click.option(
    "--per-query",
    is_flag=True,
    help="With --qrels: a line of CSV per query, in place of means.",
)
@click.option(
    "--compare",
    is_flag=True,
    help="With --qrels: differences of two runs with interval and p.",
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
    qrels: Path | None,
    per_query: bool,
    compare: bool,
    at: str,
    as_json: bool,
) -> None:
    """Measure how well captions find their pictures. FEATURES has both; the other direction is
    measured, too.

    Prints Recall@1, 5, 10 and the median rank over all items, and without --name also the mean over
    folds of --fold pictures, if there are more.

    Several FEATURES of the same items by different encoders are measured as an ensemble: their
    scores are averaged. mwsr and symm are those of TERAN's paper; the code of its authors bounds
    each maximum in mwsr below by 0.

    NDCG also counts other pictures with similar captions, with the gain 2^relevance - 1. A file of
    relevances is a matrix of float32 without a header, captions by pictures in the order of
    FEATURES, as TERN's authors published.

    With --qrels, FEATURES are runs of TREC, of any system, which ir_measures measures. p is that of
    a paired randomisation test in which queries with the same right items, such as the captions of
    a picture, stay together; the p of Holm is for all measures of the table at once.

    \b
    Examples: boc evaluate dev.h5
              boc evaluate dev.h5 --score mrsw
              boc evaluate one.h5 other.h5
              boc evaluate dev.h5 --name dev --rm 1 --ndcg rouge-l
              boc evaluate dev.h5 --ndcg spice.f32
              boc evaluate dev.h5 --name dev --run runs
              boc evaluate runs/text-to-image.run --qrels runs/text-to-image.qrels --per-query
              boc evaluate --compare one.run other.run --qrels runs/text-to-image.qrels
    """
    if qrels is not None:
        others = ("score", "name", "rm", "fold", "ndcg", "runs")
        if unfit := [name for name in others if options.is_set(name)]:
            raise click.UsageError(
                f"--qrels measures runs; leave out --{unfit[0].replace('runs', 'run')}",
            )
        _of_runs(features, qrels, per_query=per_query, compare=compare, as_json=as_json)
        return
    if per_query or compare:
        raise click.UsageError(
            "--per-query and --compare are of runs; name their judgements with --qrels",
        )
    if name is not None and len(features) > 1:
        raise click.UsageError("several FEATURES are measured without an index; leave out --name")
    if name is not None and options.on_command_line("fold"):
        raise click.UsageError(
            "an index is measured over all pictures; leave out --fold, or --name",
        )
    if name is None and options.on_command_line("rm"):
        raise click.UsageError("--rm is for an index: name it with --name, or leave it out")

    from boc.evaluate.runs import Gallery

    gallery = Gallery.of(*features)
    known = None
    if ndcg is not None:
        with options.bars() as bars:
            tick = bars.ticks("relevance", len(gallery.captions) * gallery.images)
            known = gallery.relevance(None if ndcg == "rouge-l" else Path(ndcg), tick=tick)
    tables: dict[str, dict[str, dict[str, float]]] = {}
    for label, recalls, gains in (
        _dense(gallery, score or "dot", fold, known)
        if name is None
        else _through(gallery, name, at, rm, score, known)
    ):
        tables[label] = asdict(recalls)
        for side, value in asdict(gains).items() if gains is not None else ():
            tables[label][side]["ndcg"] = value
    if runs is not None:
        gallery.write_runs(runs, name, at, rm=rm, score=score)
    if as_json:
        click.echo(json.dumps(tables))
        return
    for label, table in tables.items():
        click.echo(label)
        for direction, side in (
            ("sentence to picture", "text_to_image"),
            ("picture to sentence", "image_to_text"),
        ):
            click.echo(f"  {direction}  {_line(**table[side])}")


def _of_runs(
    runs: tuple[Path, ...],
    qrels: Path,
    *,
    per_query: bool,
    compare: bool,
    as_json: bool,
) -> None:
    if compare and (len(runs) != 2 or per_query):
        raise click.UsageError("--compare takes two runs, without --per-query")
    from boc.evaluate.trec import MEASURES, Judgements

    judgements = Judgements(qrels)
    if compare:
        differences = judgements.compare(*runs)
        if as_json:
            click.echo(json.dumps({name: each._asdict() for name, each in differences.items()}))
            return
        click.echo(
            f"{options.plain(str(runs[0]))} minus {options.plain(str(runs[1]))}, interval of 95 %",
        )
        for name, (mean, low, high, p, corrected) in differences.items():
            click.echo(
                f"  {name:10}  {mean:+.4f}  [{low:+.4f}, {high:+.4f}]  p {p:.4f}  Holm "
                f"{corrected:.4f}",
            )
        return
    tables = {str(run): judgements.measure(run) for run in runs}
    if per_query:
        rows = csv.writer(sys.stdout, lineterminator="\n")
        rows.writerow(["run", "query", *MEASURES])
        for run, table in tables.items():
            rows.writerows(
                [run, query, *row]
                for query, row in zip(judgements.queries, table.tolist(), strict=True)
            )
        return
    means = {
        run: dict(zip(MEASURES, table.mean(axis=0).tolist(), strict=True))
        for run, table in tables.items()
    }
    if as_json:
        click.echo(json.dumps(means))
        return
    for run, values in means.items():
        click.echo(options.plain(run))
        click.echo("  " + "  ".join(f"{name} {value:.4f}" for name, value in values.items()))


def _line(r1: float, r5: float, r10: float, median_rank: float, ndcg: float | None = None) -> str:
    line = f"R@1 {r1:5.1f}  R@5 {r5:5.1f}  R@10 {r10:5.1f}  median rank {median_rank:g}"
    return line if ndcg is None else f"{line}  NDCG@25 {ndcg:.3f}"


def _dense(
    gallery: Gallery,
    score: str,
    fold: int,
    relevance: NDArray[np.float32] | None,
) -> Iterator[tuple[str, Recalls, Ndcg | None]]:
    """Yield the label and the figures of each protocol; NDCG is None without a relevance."""
    from boc.evaluate.metrics import evaluate_ndcg, evaluate_recall

    if score == "dot":
        scores = gallery.scores()
    else:
        with options.bars() as bars:
            scores = gallery.scores(score, tick=bars.ticks("scores", len(gallery.captions)))
    for label, part in gallery.protocols(fold).items():
        ndcg = None if relevance is None else evaluate_ndcg(scores, gallery.owners, relevance, part)
        yield label, evaluate_recall(scores, gallery.owners, part), ndcg


def _through(
    gallery: Gallery,
    name: str,
    at: str,
    rm: float | None,
    rerank: Metric | None,
    relevance: NDArray[np.float32] | None,
) -> Iterator[tuple[str, Recalls, Ndcg | None]]:
    """Yield the same through an index."""
    from boc.evaluate.runs import evaluate_index

    with options.bars() as bars:
        tick = bars.ticks("searching", gallery.images + len(gallery.captions))
        report = evaluate_index(
            gallery.paths[0],
            name,
            at,
            rm,
            rerank,
            relevance=relevance,
            tick=tick,
        )
    yield "index", report.recalls, report.ndcg
