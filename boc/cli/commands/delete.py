"""boc delete."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from boc.cli import options
from boc.errors import ManifestError

if TYPE_CHECKING:
    from boc.plugins import Backend


@click.command("delete")
@options.name
@click.argument("given", nargs=-1, metavar="[ID]...")
@click.option("--ids", type=options.PATH, help="Delete the items listed in this file, one id a line.")
@click.option("--all", "everything", is_flag=True, help="Remove the whole index.")
@options.at
def command(name: str, given: tuple[str, ...], ids: Path | None, everything: bool, at: str) -> None:
    """Delete items from the index NAME, or all of it.

    A picture's captions are items of their own, with ids of their own.

    \b
    Examples: boc delete photos 3265162450_5b4e3c5f1b.jpg
              boc delete photos --ids gone.txt
              boc delete photos --all
    """
    if sum((bool(given), ids is not None, everything)) != 1:
        raise click.UsageError("give one of ID..., --ids FILE or --all")
    from boc import plugins
    from boc.build import delete
    from boc.plugins import check_name

    if everything:
        backend = plugins.backend(at)
        held = _count(backend, check_name(name))
        backend.remove(name)
        click.echo(f"{name}: {held} deleted, the index is removed")
        return
    count, unknown = delete(at, name, list(given) if ids is None else _listed(ids))
    click.echo(f"{name}: {count} items deleted")
    if unknown:
        for key in unknown:
            click.echo(f"no item {key!r} in {name}", err=True)
        raise SystemExit(1)


def _count(backend: Backend, name: str) -> str:
    try:
        return f"{sum(backend.open(name).manifest.items.values())} items"
    except ManifestError:  # damaged: all the more to be removed
        return "everything"


def _listed(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{path}: not a readable list of ids ({error}); give one id a line") from error
    ids = [line.strip() for line in lines if line.strip()]
    if not ids:
        raise click.ClickException(f"{path}: lists no ids; give one id a line")
    return ids
