"""Define the command boc add."""

from pathlib import Path
from typing import Any

import click

import boc
from boc.cli import options


@click.command("add")
@options.name
@options.sources
@options.at
@options.encoder
@options.metadata
@options.ocr
@options.verbose
def command(name: str, sources: tuple[Path, ...], **keywords: Any) -> None:
    """Add items to the index NAME. Items with the same ids are replaced.

    SOURCE is any source that boc index accepts (feature files, folders of pictures, a CSV, or a
    regions file), or single pictures. The id of a single picture is its file name. The command uses
    the encoder and the code of the index. If the command is killed, run it again to resume.

    \b
    Examples: boc add photos new.h5
              boc add photos /media/card/DCIM
              boc add photos new.jpg other.png
              boc add photos new.h5 --metadata new.csv
    """
    from boc.inputs.images import is_picture
    from boc.manage.build import add_items

    if not options.on_command_line("encoder"):
        keywords["encoder"] = None
    with options.bars() as progress:
        if all(map(is_picture, sources)) and keywords["images"] is None:
            report = boc.open(name, keywords["at"], encoder=keywords["encoder"]).add(
                sources,
                metadata=keywords["metadata"],
                ocr=keywords["ocr"],
                progress=progress,
            )
        else:
            report = add_items(name, sources, progress=progress, **keywords)
    others = f", replacing {options.amount(report.replaced, 'item')}" if report.replaced else ""
    click.echo(
        f"{name}: {options.amount(report.images, 'picture')} and "
        f"{options.amount(report.texts, 'caption')} added{others}",
    )
    options.report(report.failed, report.images + report.texts)
