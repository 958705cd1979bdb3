"""boc delete."""

import click

from boc.cli import options
from boc.errors import ManifestError


@click.command("delete")
@options.name
@click.argument("ids", type=options.ID, nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="Remove the whole index.")
@options.at
def command(name: str, ids: tuple[str, ...], everything: bool, at: str) -> None:
    """Delete items from the index NAME, or the whole index.

    Captions are items with ids of their own. For the ID - ids are read from the standard input, one
    per line.

    \b
    Examples: boc delete photos 3265162450_5b4e3c5f1b.jpg
              boc delete photos - < gone.txt
              boc delete photos --all
    """
    if bool(ids) == everything:
        raise click.UsageError("give one of ID... or --all")
    from boc import plugins
    from boc.manage.build import delete
    from boc.plugins import check_name

    if everything:
        backend = plugins.backend(at)
        try:
            size = f"{sum(backend.open(check_name(name)).manifest.items.values())} items"
        except ManifestError:  # a damaged index is to be removed all the more
            size = "everything"
        backend.remove(name)
        click.echo(f"{name}: {size} deleted, the index is removed")
        return
    keys = list(ids)
    if keys == ["-"]:
        keys = options.read_lines("-", "the standard input", "ids")
    count, unknown = delete(name, keys, at=at)
    click.echo(f"{name}: {count} items deleted")
    for key in unknown:
        click.echo(f"no item {options.plain(key)} in {name}", err=True)
    if not count:
        raise SystemExit(1)
