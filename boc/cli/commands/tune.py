"""boc tune."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from boc.cli import options

if TYPE_CHECKING:
    from boc.evaluate.tune import Cost, Trial
    from boc.types import Embeddings, Identity, Modality


@click.command("tune")
@options.name
@click.option(
    "--target-recall",
    "targets",
    type=float,
    multiple=True,
    default=(0.95,),
    show_default=True,
    help="Share of the exact nearest items to be found, 0 to 1; may be given several times.",
)
@click.option("-k", default=10, show_default=True, help="How many nearest items count.")
@click.option("--queries", type=options.PATH, help="Feature file of typical queries [default: items of the index].")
@click.option("--find", type=click.Choice(["image", "text"]), help="What is found [default: pictures, if any].")
@click.option(
    "--by",
    type=click.Choice(["postings", "bytes"]),
    default="postings",
    show_default=True,
    help="What is to be little.",
)
@click.option("--sample", type=click.IntRange(1), default=100_000, show_default=True, help="Items tried on, at most.")
@click.option(
    "--asked",
    type=click.IntRange(2),
    default=4000,
    show_default=True,
    help="Queries asked, at most: half choose, half judge.",
)
@click.option("--seed", default=0, show_default=True, help="Draws the sample.")
@options.as_json
@options.at
def command(
    name: str,
    targets: tuple[float, ...],
    k: int,
    queries: Path | None,
    find: str | None,
    by: str,
    sample: int,
    asked: int,
    seed: int,
    as_json: bool,
    at: str,
) -> None:
    """Find the cheapest code, budgets and Rm for the items of the index NAME that reach a recall.

    Tries the codes on a sample, chooses by one half of the queries, and says what the choice gives on the other half,
    with a 95 % confidence interval. Exit status 1 if a target is out of reach.

    \b
    Examples: boc tune photos --target-recall 0.95
              boc tune photos --queries asked.h5 --target-recall 0.8 --target-recall 0.99
    """
    from boc.evaluate.tune import draw, grid, tune
    from boc.search import Searcher

    searcher = Searcher.open(name, at)
    index, wanted = searcher.index, searcher.target(cast("Modality | None", find))
    given = _queries(queries, index.manifest.identity) if queries is not None else None
    drawn = draw(index, wanted, given, size=sample, asked=asked, seed=seed)
    candidates = grid(index.manifest.identity.dim)
    with options.bar("trying", sum(len(c.z) * len(c.query_z) for c in candidates)) as bar:
        best = tune(drawn, targets, k=k, by=cast("Cost", by), candidates=candidates, tick=bar.update)
    if as_json:
        click.echo(json.dumps([{"target": t, **(asdict(best[t]) if t in best else {})} for t in targets]))
    else:
        for aim in targets:
            click.echo(_sentence(name, aim, best[aim]) if aim in best else f"{aim:g}: no setting reaches it")
    missed = [f"{aim:g}" for aim in targets if aim not in best]
    if missed:
        raise click.ClickException(
            f"no setting reaches a recall of {', '.join(missed)}; ask for less, or index with --shift, "
            "which keeps the order of the vectors"
        )


def _queries(path: Path, identity: Identity) -> Embeddings:
    """All queries of one modality of a feature file: the sentences, if it has any."""
    import numpy as np

    from boc.inputs.query_files import read_queries
    from boc.types import Embeddings

    found = [batch for _, batch in read_queries(path, identity, None)]
    modality = found[-1].modality
    return Embeddings(modality, np.concatenate([batch.vectors for batch in found if batch.modality == modality]))


def _sentence(name: str, aim: float, trial: Trial) -> str:
    settings = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in trial.options.items())
    judged = trial.judged
    return (
        f"{aim:g}: boc index {name} SOURCE {settings} --rm {trial.rm:g} --replace\n"
        f"      recall {judged.mean:.3f} ({judged.low:.3f} to {judged.high:.3f}) on held-out queries, "
        f"{trial.postings:.0f} postings a query, {trial.terms:.1f} terms an item"
    )
