"""boc compact."""

import click

from boc.cli import options


@click.command("compact")
@options.name
@options.at
def command(name: str, at: str) -> None:
    """Make the index NAME smallest and fastest. It becomes one segment, without deleted and
    replaced rows.

    Searches continue meanwhile and give the same results.

    \b
    Examples: boc compact photos
              boc compact photos --at elastic+https://localhost:9200
    """
    from boc import plugins
    from boc.plugins import check_name

    backend = plugins.backend(at)
    before = sum(backend.open(check_name(name)).sizes().values())
    backend.compact(name)
    after = sum(backend.open(name).sizes().values())
    click.echo(f"{name}: {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after")
