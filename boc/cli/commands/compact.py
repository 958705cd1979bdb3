"""Define the command boc compact."""

import click

from boc.cli import options


@click.command("compact")
@options.name
@options.at
def command(name: str, at: str) -> None:
    """Compact the index NAME. The command merges all segments into one and drops deleted and
    replaced items, which saves space and speeds up searches.

    The index can be searched meanwhile. Results do not change.

    \b
    Examples: boc compact photos
              boc compact photos --at elastic+https://localhost:9200
    """
    from boc.manage.whole_index import compact_index

    report = compact_index(name, at=at)
    click.echo(f"{name}: {report.before / 1e6:.1f} MB before, {report.after / 1e6:.1f} MB after")
