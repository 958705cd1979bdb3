"""boc verify."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from boc.cli import options

if TYPE_CHECKING:
    from boc.evaluate.verify import Verification

AGAINST = {
    "vectors": "the codes of the stored vectors",
    "features": "the codes of the feature files",
    "terms": "the stored frequencies",
    "nothing": "nothing, since files are damaged",
}


@click.command("verify")
@options.name
@click.option("--pairs", type=click.IntRange(1), default=1000, show_default=True, help="Pairs whose score is compared.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which pairs: another number, others.")
@click.option(
    "--features",
    type=options.PATH,
    multiple=True,
    metavar="FILE",
    help="Compute frequencies from the features that the index was made of, not from what it stores. Can be repeated.",
)
@options.as_json
@options.at
def command(name: str, pairs: int, seed: int, features: tuple[Path, ...], as_json: bool, at: str) -> None:
    """Compare the index NAME with itself: files with their checksums, scores with integer dot products, counts with its
    manifest.

    Asks for the codes of random items, and compares the score of each pair of a query and an item, hit or not, with
    the dot product of their term frequencies. Prints what is wrong, and exits with status 1 if anything is.

    \b
    Examples: boc verify photos
              boc verify photos --pairs 10000 --at elastic+https://localhost:9200
              boc verify photos --features photos.h5
    """
    from boc import plugins
    from boc.evaluate.verify import verify
    from boc.plugins import check_name

    found = verify(plugins.backend(at).open(check_name(name)), pairs=pairs, seed=seed, files=features)
    if as_json:
        counts = {part: {"found": count, "manifest": told} for part, (count, told) in found.counts.items()}
        click.echo(json.dumps({"name": name, "right": found.right, **asdict(found), "counts": counts}))
    else:
        _print(name, found)
    if not found.right:
        raise SystemExit(1)


def _print(name: str, found: Verification) -> None:
    for wrong in found.mismatches:
        click.echo(f"query {wrong.query}  item {wrong.item}  found {wrong.found:.10g}  expected {wrong.expected}")
    for path in found.damaged:
        click.echo(f"file {path}  its bytes are not those that were written; make the index anew")
    for key in found.repeated:
        click.echo(f"item {key}  is there more than once")
    for part, (count, told) in found.counts.items():
        if count != told:
            click.echo(f"{part}  found {count}  manifest {told}")
    for key in found.rounded:
        click.echo(f"note: {key} has frequencies one rounding away from its code", err=True)
    image, text, postings = (found.counts[part][0] for part in ("image", "text", "postings"))
    click.echo(
        f"{name}: {found.pairs} pairs of {found.queries} queries against {AGAINST[found.against]}, "
        f"{len(found.mismatches)} wrong; {image} pictures, {text} captions, {postings} postings, "
        + ("as the manifest says" if all(a == b for a, b in found.counts.values()) else "not what the manifest says")
    )
