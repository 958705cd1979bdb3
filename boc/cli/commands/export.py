"""boc export."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from boc.cli import options


@click.command("export")
@options.name
@click.argument("file", type=options.PATH)
@options.at
@click.option("--replace", is_flag=True, help="Replace FILE if it is a feature file.")
@options.as_json
def command(name: str, file: Path, at: str, replace: bool, as_json: bool) -> None:
    """Write the index NAME to FILE (.h5), from which boc index makes it again, anywhere.

    The file holds every item with its metadata, vectors, concept sets and terms, and the code. Neither the encoder nor
    the pictures are needed, here or there; hits and scores are the same. After a kill, the same command continues where
    it stopped. FILE appears when it is complete, and a sample of it is then compared with the index.

    \b
    Examples: boc export photos photos.h5
              boc export photos photos.h5 --at elastic+https://search.example.org:9200 --replace
    """
    from boc.indexes.export import export_index

    with options.bars() as progress:
        report = export_index(name, file, at=at, replace=replace, progress=progress)
    told = (
        f"{file}: {report.images} pictures and {report.texts} captions of {name}, {report.compared} items compared "
        "without a difference"
    )
    click.echo(json.dumps({"file": str(file), **asdict(report)}) if as_json else told)
