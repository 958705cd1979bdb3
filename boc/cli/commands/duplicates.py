"""boc duplicates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boc.cli import options

if TYPE_CHECKING:
    from boc.indexes.duplicates import Group


@click.command("duplicates")
@options.name
@click.option(
    "--threshold", type=float, help="Smallest cosine of near duplicates [default: by the cosines of random pairs]."
)
@click.option("--html", type=options.PATH, help="Write the groups to this page, with their pictures.")
@options.as_json
@options.at
def command(name: str, threshold: float | None, html: Path | None, as_json: bool, at: str) -> None:
    """List exact and near duplicates among the pictures of the index NAME, or its captions if it has none, as groups.

    The first item of a group is the one to keep: it has the most near items. Each other item is near it. Nothing is
    deleted; boc delete removes items.

    \b
    Examples: boc duplicates photos
              boc duplicates photos --threshold 0.98 --html duplicates.html
              boc duplicates photos --json
    """
    from boc.indexes.duplicates import find_duplicates
    from boc.outputs import begins, check_output
    from boc.search.searcher import Searcher

    if html is not None:
        check_output(html, begins(*options.PAGE))
    with options.bars() as progress:
        groups = find_duplicates(Searcher.open(name, at), threshold, progress=progress)
    if as_json:
        click.echo(json.dumps([_record(group) for group in groups], ensure_ascii=False))
    else:
        _print(name, groups)
    if html is not None:
        _write_page(html, groups)


def _print(name: str, groups: list[Group]) -> None:
    for group in groups:
        click.echo(options.plain(group.item.id))
        for one in group.duplicates:
            click.echo(f"    {'equal' if one.exact else f'{one.score:.4f}'}  {options.plain(one.item.id)}")
    count = sum(len(group.duplicates) for group in groups)
    click.echo(f"{name}: {len(groups)} groups with {count} duplicates", err=True)


def _record(group: Group) -> dict[str, Any]:
    others = [{"id": one.item.id, "score": one.score, "exact": one.exact} for one in group.duplicates]
    return {"kept": group.item.id, "duplicates": others}


def _write_page(path: Path, groups: list[Group]) -> None:
    from boc.cli.contact_sheet import write_sheet
    from boc.types import Hit

    sheets = [
        (group.item.id, [Hit(group.item, 1.0), *(Hit(one.item, one.score) for one in group.duplicates)])
        for group in groups
    ]
    write_sheet(path, sheets)
