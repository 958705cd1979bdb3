"""boc gallery."""

from __future__ import annotations

from pathlib import Path

import click

from boc.cli.options import PATH, show


@click.command("gallery")
@click.argument("folder", type=PATH)
@click.option("--count", type=click.IntRange(1), default=1000, show_default=True, help="Number of pictures to paint.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="The same seed paints the same pictures."
)
def command(folder: Path, count: int, seed: int) -> None:
    """Paint a gallery of captioned scenes into FOLDER, to try things on.

    FOLDER gets the pictures, captions.csv, and the contents of each scene with their boxes (scenes.json).

    \b
    Example: boc gallery scenes --count 2000
    """
    from boc.scenes import draw_gallery

    show("drawing", count, draw_gallery(folder, count, seed))
    click.echo(f"{count} pictures with captions: {folder / 'captions.csv'}")
