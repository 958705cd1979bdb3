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
    help="Document field that contains the item id [default: _id].",
)
@options.code
@click.option(
    "--detach",
    is_flag=True,
    help="Remove the added object from all documents; leave out FEATURES.",
)
@click.option("--yes", is_flag=True, help="Change mapping and documents without confirmation.")
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
    """Add codes to the documents of another program. NAME is the program's index; the codes come
    from feature files.

    The document whose id matches an item gets an object named boc; no other field changes. The
    command first shows the addition to the mapping and asks for confirmation. Other programs may
    keep writing. If the command is killed, run it again to continue; run it later to add new and
    changed items. boc search NAME then finds these documents, and --filter accepts their fields.

    --detach removes only the object boc from the documents. Its empty fields stay in the mapping,
    since these servers cannot remove fields.

    \b
    Examples: boc attach articles photos.h5 --at elastic+https://USER@HOST:9200
              boc attach articles photos.h5 --id-field sku --code bits:32 --yes
              boc attach articles --detach --at elastic+https://USER@HOST:9200
    """
    from boc.manage import attach as library

    if detach == bool(sources):
        raise click.UsageError("give FEATURES to attach, or --detach without FEATURES")
    if detach:
        if not yes:
            click.confirm(f"Remove the code from all documents of {name}?", abort=True, err=True)
        count = library.detach_index(name, at=at)
        click.echo(
            f"{name}: the code was removed from {count} documents; its empty fields stay in the "
            "mapping",
        )
        return

    def confirm(change: dict[str, Any]) -> bool:
        click.echo(f"PUT {name}/_mapping\n{json.dumps(change, indent=2)}", err=True)
        return yes or click.confirm(
            f"Add this to the mapping of {name}? It stays in the mapping.",
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
        (f"{report.without} items have no document, such as", report.missing),
        ("removed or replaced by another program meanwhile, so repeat the command:", report.lost),
    ):
        if ids:
            options.tell(f"{message} {', '.join(ids)}")
    if report.without or report.lost:
        raise SystemExit(1)
