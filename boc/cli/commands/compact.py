"""boc compact."""

from __future__ import annotations

import click

from boc.cli import options


@click.command("compact")
@options.name
@options.as_json
@options.at
def command(name: str, as_json: bool, at: str) -> None:
    """Make the index NAME as small and fast as it gets: one segment, without what was deleted or replaced.

    Searches go on meanwhile, and find the same. An index of an older format becomes one of this.

    \b
    Examples: boc compact photos
              boc compact photos --at elastic+https://localhost:9200
    """
    import json

    from boc import plugins
    from boc.plugins import check_name

    backend = plugins.backend(at)
    before = sum(backend.open(check_name(name)).sizes().values())
    backend.compact(name)
    after = sum(backend.open(name).sizes().values())
    if as_json:
        click.echo(json.dumps({"name": name, "bytes_before": before, "bytes": after}))
    else:
        click.echo(f"{name}: {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB now")
