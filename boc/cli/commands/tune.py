"""boc tune."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boc.cli import options

if TYPE_CHECKING:
    from boc.evaluate.tune import Trial
    from boc.types import Embeddings, Identity


@click.command("tune")
@options.name
@click.option(
    "--target-recall",
    "targets",
    type=float,
    multiple=True,
    default=(0.95,),
    show_default=True,
    help="Recall to reach: share of the exact nearest items, 0 to 1; can be repeated.",
)
@click.option("-k", default=10, show_default=True, help="Number of nearest items that recall counts.")
@click.option("--queries", type=options.PATH, help="Feature file of typical queries [default: items of the index].")
@click.option("--apply", "applied", is_flag=True, help="Encode the index NAME again with the setting found, in place.")
@options.as_json
@options.at
def command(
    name: str,
    targets: tuple[float, ...],
    k: int,
    queries: Path | None,
    applied: bool,
    as_json: bool,
    at: str,
) -> None:
    """Find the cheapest code, budgets and Rm for the items of the index NAME that reach a recall.

    Tries the codes on at most 100,000 items. Of at most 4,000 queries one half chooses; the recall of the choice is
    printed for the other half, with a 95 % confidence interval. The exit status is 1 if no setting reaches a target.

    With --apply the stored vectors are encoded again with this setting, as boc copy does, and the result takes the
    place of NAME at the end; until then searches see NAME as it was.

    \b
    Examples: boc tune photos --target-recall 0.95
              boc tune photos --queries asked.h5 --target-recall 0.8 --target-recall 0.99
              boc tune photos --target-recall 0.95 --apply
    """
    if applied and len(targets) != 1:
        raise click.UsageError(f"--apply takes one --target-recall, got {len(targets)}; give the one to apply")
    from boc.evaluate.tune import draw, grid, tune
    from boc.search.searcher import Searcher

    searcher = Searcher.open(name, at)
    index = searcher.index
    typical = _queries(queries, index.manifest.identity) if queries is not None else None
    sample = draw(index, searcher.target(None), typical)
    candidates = grid(index.manifest.identity.dim)
    with options.bar("trying", sum(len(c.z) * len(c.query_z) for c in candidates)) as bar:
        best = tune(sample, targets, k=k, candidates=candidates, tick=bar.update)
    if as_json:
        click.echo(json.dumps([{"target": t, **(_json(best[t]) if t in best else {})} for t in targets]))
    else:
        for aim in targets:
            click.echo(_sentence(name, aim, best[aim]) if aim in best else f"{aim:g}: no setting reaches it")
    missed = [f"{aim:g}" for aim in targets if aim not in best]
    if missed:
        raise click.ClickException(
            f"no setting reaches a recall of {', '.join(missed)}; ask for less, or for fewer hits (-k)"
        )
    if applied:
        _apply(name, at, best[targets[0]], quiet=as_json)


def _apply(name: str, at: str, trial: Trial, *, quiet: bool) -> None:
    """Put the index encoded by the setting of ``trial`` in the place of ``name``."""
    from boc.cli.commands.copy import sentence
    from boc.indexes.copy import copy_index

    with options.bars() as progress:
        report = copy_index(name, at=at, code=trial.code, rm=trial.rm, replace=True, progress=progress)
    if not quiet:
        click.echo(sentence(name, report))


def _queries(path: Path, identity: Identity) -> Embeddings:
    """Return all queries of one modality of a feature file: the sentences, if it has any."""
    import numpy as np

    from boc.inputs.features import read_queries
    from boc.types import Embeddings

    batches = [batch for _, batch in read_queries(path, identity, None)]
    modality = batches[-1].modality
    return Embeddings(modality, np.concatenate([batch.vectors for batch in batches if batch.modality == modality]))


def _json(trial: Trial) -> dict[str, Any]:
    return {**asdict(trial), "code": str(trial.code)}


def _sentence(name: str, aim: float, trial: Trial) -> str:
    recall = trial.judged
    return (
        f'{aim:g}: boc copy {name} --code "{trial.code}" --rm {trial.rm:g} --replace\n'
        f"      recall {recall.mean:.3f} ({recall.low:.3f} to {recall.high:.3f}) on held-out queries, "
        f"{trial.postings:.0f} postings per query, {trial.terms:.1f} terms per item"
    )
