"""Define the command boc duplicates."""

import click

from boc.cli import options


@click.command("duplicates")
@options.name
@click.option(
    "--threshold",
    type=float,
    help="Minimum cosine similarity of near-duplicates [default: estimated from random pairs].",
)
@options.as_json
@options.at
def command(name: str, threshold: float | None, as_json: bool, at: str) -> None:
    """List exact and near-duplicates in the index NAME. The command compares pictures or, if the
    index contains no pictures, captions.

    The first item of each group, which has the smallest id, is the item to keep. The command does
    not delete items; use boc delete.

    \b
    Examples: boc duplicates photos
              boc duplicates photos --threshold 0.98 --json
    """
    from boc.manage.duplicates import find_duplicates
    from boc.search.searcher import Searcher

    with options.bars() as progress:
        groups = find_duplicates(Searcher.open(name, at), threshold, progress=progress)
    if as_json:
        records = [
            {
                "kept": group.item.id,
                "duplicates": [
                    {"id": one.item.id, "score": one.score, "exact": one.exact}
                    for one in group.duplicates
                ],
            }
            for group in groups
        ]
        options.print_json(records)
        return
    for group in groups:
        click.echo(options.plain(group.item.id))
        for one in group.duplicates:
            score = "equal" if one.exact else f"{one.score:.4f}"
            click.echo(f"    {score}  {options.plain(one.item.id)}")
    count = sum(len(group.duplicates) for group in groups)
    options.tell(f"{name}: {len(groups)} groups with {count} duplicates")
