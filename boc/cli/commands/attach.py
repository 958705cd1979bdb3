"""Define the command boc attach."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boc.cli import options

if TYPE_CHECKING:
    from boc.codecs import Code


@click.command("attach", epilog=options.code_help())
@options.name
@click.argument("sources", metavar="FEATURES...", type=options.PATH, nargs=-1)
@click.option(
    "--id-field",
    "key",
    help="Document field that contains item ids [default: _id].",
)
@options.code
@click.option(
    "--detach",
    is_flag=True,
    help="Remove the codes from all documents; omit FEATURES.",
)
@click.option(
    "--yes",
    is_flag=True,
    help="Change the mapping and the documents without confirmation.",
)
@options.as_json
@options.at
def command(
    name: str,
    sources: tuple[Path, ...],
    key: str | None,
    code: Code,
    detach: bool,
    yes: bool,
    as_json: bool,
    at: str,
) -> None:
    """Add codes to the documents of another program. NAME is an index of this program; FEATURES are
    feature files.

    Documents whose ids match items get an object named boc; other fields are not changed. The
    command first shows the change to the mapping and asks for confirmation. Other programs can
    write to the index at the same time. If the command is killed, run it again to resume; run it
    later to add new and changed items. boc search NAME then finds these documents, and --filter
    accepts their fields.

    --detach removes the object boc from the documents. The fields of this object stay in the
    mapping, because Elasticsearch and OpenSearch cannot remove fields.

    \b
    Examples: boc attach articles photos.h5 --at elastic+https://USER@HOST:9200
              boc attach articles photos.h5 --id-field sku --code bits:32 --yes
              boc attach articles --detach --at elastic+https://USER@HOST:9200
    """
    from boc.manage import attach as library

    if detach == bool(sources):
        raise click.UsageError("give either FEATURES or --detach")
    if detach:
        if not yes:
            click.confirm(f"Remove the codes from all documents of {name}?", abort=True, err=True)
        count = library.detach_index(name, at=at)
        click.echo(
            f"{name}: removed the codes from {count} documents; the empty fields stay in the "
            "mapping",
        )
        return

    def confirm(change: dict[str, Any]) -> bool:
        click.echo(f"PUT {name}/_mapping\n{json.dumps(change, indent=2)}", err=True)
        return yes or click.confirm(
            f"Add this to the mapping of {name}? The addition cannot be removed later.",
            err=True,
        )

    with options.bars() as progress:
        report = library.attach_index(
            name,
            sources,
            at=at,
            key=key,
            code=code,
            confirm=confirm,
            progress=progress,
        )
    if report is None:
        options.tell("Nothing was changed.")
        raise SystemExit(1)
    if as_json:
        options.print_json(asdict(report))
    else:
        click.echo(
            f"{name}: {report.documents} documents have codes ({report.written} new, "
            f"{report.unchanged} unchanged)",
        )
    for message, ids in (
        (f"{report.without} items have no document, for example", report.missing),
        (
            "another program removed or replaced documents meanwhile; run the command again:",
            report.lost,
        ),
    ):
        if ids:
            options.tell(f"{message} {', '.join(ids)}")
    if report.without or report.lost:
        raise SystemExit(1)
