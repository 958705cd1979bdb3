"""boc detach."""

from __future__ import annotations

import click

from boc.cli import options


@click.command("detach")
@options.name
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.at
def command(name: str, yes: bool, at: str) -> None:
    """Remove what boc attach added to the documents of the index NAME.

    The object boc is removed from the documents, and nothing else. Its empty fields stay in the mapping, since these
    servers cannot remove fields. After a kill, the same command continues.

    \b
    Examples: boc detach articles --at elastic+https://USER@HOST:9200
              boc detach articles --yes
    """
    from boc.indexes.attach import detach

    if not yes:
        click.confirm(f"Remove the code from all documents of {name}?", abort=True, err=True)
    count = detach(name, at=at)
    click.echo(f"{name}: the code was removed from {count} documents; its empty fields stay in the mapping")
