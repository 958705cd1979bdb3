"""boc gallery."""

from __future__ import annotations

from pathlib import Path

import click

from boc.cli.options import PATH, show


@click.command("gallery")
@click.argument("folder", type=PATH)
@click.option("--count", type=click.IntRange(1), default=1000, show_default=True, help="Number of pictures.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed draws the same pictures.")
def command(folder: Path, count: int, seed: int) -> None:
    """Draw a gallery of captioned scenes into FOLDER, to try things on.

    It holds the pictures, captions.csv, and what is in each scene (scenes.json).

    \b
    Example: boc gallery scenes --count 2000
    """
    from boc.atomic_files import check_writable
    from boc.scenes import draw_gallery

    check_writable(folder / "captions.csv")
    show("drawing", count, draw_gallery(folder, count, seed))
    click.echo(f"{count} pictures with captions: {folder / 'captions.csv'}")
