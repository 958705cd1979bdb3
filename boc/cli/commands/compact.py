"""Define the command boc compact."""

import click

from boc.cli import options


@click.command("compact")
@options.name
@options.at
def command(name: str, at: str) -> None:
    """Compact the index NAME. The result is one segment without deleted and replaced rows, which is
    smallest and fastest.

    Searches continue meanwhile, with the same results.

    \b
    Examples: boc compact photos
              boc compact photos --at elastic+https://localhost:9200
    """
    from boc.manage.whole_index import compact_index

    report = compact_index(name, at=at)
    click.echo(f"{name}: {report.before / 1e6:.1f} MB before, {report.after / 1e6:.1f} MB after")
