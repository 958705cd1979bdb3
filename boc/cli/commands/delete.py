"""Define the command boc delete."""

import click

from boc.cli import options


@click.command("delete")
@options.name
@click.argument("ids", type=options.ID, nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="Remove the whole index.")
@options.at
def command(name: str, ids: tuple[str, ...], everything: bool, at: str) -> None:
    """Delete items from the index NAME, or the whole index.

    Captions are items with ids of their own. If ID is -, the command reads ids from standard input,
    one per line.

    \b
    Examples: boc delete photos 3265162450_5b4e3c5f1b.jpg
              boc delete photos - < gone.txt
              boc delete photos --all
    """
    if bool(ids) == everything:
        raise click.UsageError("give either ids or --all")
    from boc.manage.build import delete_items
    from boc.manage.whole_index import delete_index

    if everything:
        count = delete_index(name, at=at)
        size = "everything" if count is None else options.amount(count, "item")
        click.echo(f"{name}: {size} deleted, index removed")
        return
    keys = list(ids)
    if keys == ["-"]:
        keys = options.read_lines("-", "the standard input", "ids")
    report = delete_items(name, keys, at=at)
    click.echo(f"{name}: {options.amount(report.deleted, 'item')} deleted")
    for key in report.unknown:
        options.tell(f"no item {key} in {name}")
    if not report.deleted:
        raise SystemExit(1)
