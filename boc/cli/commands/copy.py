"""boc copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from boc.cli import options

if TYPE_CHECKING:
    from boc.manage.build import LoadReport
    from boc.manage.copy import CopyReport


@click.command("copy")
@options.name
@click.argument("new", required=False)
@options.at
@click.option("--to", help="Address of the backend of the copy, or FILE.zip [default: the same].")
@click.option(
    "--code",
    type=options.CodeType(),
    help="Encode the stored vectors with this code [default: copy the terms].",
)
@click.option(
    "--rm",
    type=click.FloatRange(1),
    help="Candidates re-ranked per hit [default: as NAME].",
)
@options.recall
@click.option(
    "--replace",
    is_flag=True,
    help="Replace an existing index of that name, or a file.",
)
def command(name: str, new: str | None, to: str | None, **keywords: Any) -> None:
    """Copy the index NAME to another name, place, file or code. NEW is the name, --to the place or
    file, --code the code.

    The copy needs no encoder and no pictures, only the index. Without --code the copy has the same
    hits with the same scores. From a FILE.zip, boc index makes the same index again, anywhere; a
    FILE.h5 has the items and their vectors, for commands that read features. After a kill, the same
    command continues where it stopped. The copy is published as a whole at the end; boc verify
    checks it. A copy with the name and place of NAME replaces NAME, and needs --replace.

    \b
    Examples: boc copy photos --to elastic+https://search.example.org:9200
              boc copy photos --at elastic+https://search.example.org:9200 --to file:here
              boc copy photos --to photos.zip
              boc copy photos photos2 --code dictionary:2/64 --rm 30
              boc copy photos --code dictionary --recall 0.99 --replace
    """
    from boc.manage.copy import copy_index

    with options.bars() as progress:
        report = copy_index(name, new, to=to, progress=progress, **keywords)
    click.echo(
        sentence(
            to if to is not None and to.lower().endswith((".zip", ".h5", ".hdf5")) else new or name,
            report,
        ),
    )


def sentence(name: str, report: CopyReport | LoadReport) -> str:
    """Return a line about a finished copy or load."""
    state = " is up to date" if report.up_to_date else ""
    pictures = options.amount(report.images, "picture")
    return f"{name}{state}: {pictures} and {options.amount(report.texts, 'caption')}"
