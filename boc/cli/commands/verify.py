"""Define the command boc verify."""

from __future__ import annotations

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
    "nothing": "nothing, because files are damaged",
}


@click.command("verify")
@options.name
@click.option(
    "--features",
    type=options.PATH,
    multiple=True,
    metavar="FILE",
    help="Feature file to compare with instead of the stored vectors; can be repeated.",
)
@options.as_json
@options.at
def command(name: str, features: tuple[Path, ...], as_json: bool, at: str) -> None:
    """Check that the index NAME is complete and exact.

    The command checks file checksums, counts and scores. The queries are the codes of random items.
    For 1,000 pairs of a query and an item, including items that are not hits, the score must equal
    the dot product of the term frequencies. The command prints all mismatches and exits with status
    1 if there are any.

    \b
    Examples: boc verify photos
              boc verify photos --at elastic+https://localhost:9200
              boc verify photos --features photos.h5
    """
    from boc import plugins
    from boc.evaluate.verify import verify

    report = verify(plugins.backend(at).open(plugins.check_name(name)), files=features)
    if as_json:
        counts = {
            part: {"found": count, "manifest": expected}
            for part, (count, expected) in report.counts.items()
        }
        options.print_json(
            {"name": name, "right": report.right, **asdict(report), "counts": counts},
        )
    else:
        print_report(name, report)
    if not report.right:
        raise SystemExit(1)


def print_report(name: str, report: Verification) -> None:
    """Print all mismatches and the counts."""
    for wrong in report.mismatches:
        pair = f"query {options.plain(wrong.query)}  item {options.plain(wrong.item)}"
        click.echo(f"{pair}  found {wrong.found:.10g}  expected {wrong.expected}")
    for path in report.damaged:
        click.echo(f"file {path}  has changed since it was written; rebuild the index")
    for key in report.repeated:
        click.echo(f"item {options.plain(key)}  occurs more than once")
    for part, (count, expected) in report.counts.items():
        if count != expected:
            click.echo(f"{part}  found {count}  manifest {expected}")
    for key in report.rounded:
        options.tell(f"note: {key} has frequencies that differ from its code by a rounding error")
    image, text, postings = (report.counts[part][0] for part in ("image", "text", "postings"))
    state = "which differ from the manifest"
    if all(count == expected for count, expected in report.counts.values()):
        state = "which agree with the manifest"
    click.echo(
        f"{name}: {report.pairs} pairs of {report.queries} queries against "
        f"{AGAINST[report.against]}, {len(report.mismatches)} wrong; {image} pictures, {text} "
        f"captions, {postings} postings, {state}",
    )
