"""Define the command boc copy."""

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
@click.option(
    "--to",
    help="Backend address of the copy, or a file FILE.zip or FILE.h5 [default: the backend of "
    "NAME].",
)
@click.option(
    "--code",
    type=options.code_of,
    metavar="CODE",
    help="Code for the copy, computed from the stored vectors [default: copy the terms unchanged].",
)
@click.option(
    "--rm",
    type=click.FloatRange(1),
    help="Candidates to re-rank per hit [default: the setting of NAME].",
)
@options.recall
@click.option(
    "--replace",
    is_flag=True,
    help="Replace an existing index or file with the same name.",
)
def command(name: str, new: str | None, to: str | None, **keywords: Any) -> None:
    """Copy the index NAME, or convert it to another code. NEW is the name of the copy; --to is the
    backend or the file.

    Copying needs neither the encoder nor the pictures. Without --code, the copy returns the same
    hits with the same scores. From FILE.zip, boc index recreates the index on any machine. FILE.h5
    is a feature file with the items and their vectors. If the command is killed, run it again to
    resume. The copy becomes visible only when it is complete; use boc verify to check it. A copy
    with the same name and backend replaces NAME and needs --replace.

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
    """Return a one-line summary of a finished copy or load."""
    state = " is up to date" if report.up_to_date else ""
    pictures = options.amount(report.images, "picture")
    return f"{name}{state}: {pictures} and {options.amount(report.texts, 'caption')}"
