"""Paint a gallery of captioned scenes for trials: ``python -m demo.gallery FOLDER --count 2000
--seed 1``."""

import sys
from pathlib import Path

import click

from demo.scene import draw_gallery


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--count",
    default=1000,
    show_default=True,
    type=click.IntRange(1),
    help="Number of pictures to paint.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Random seed. The same seed paints the same pictures.",
)
def main(folder: Path, count: int, seed: int) -> None:
    """Paint a gallery into FOLDER: pictures, captions.csv, fields.csv with values for filters, and
    scenes.json with the contents and boxes of each scene."""
    try:
        gallery = draw_gallery(folder, count, seed)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    with click.progressbar(
        gallery,
        length=count,
        label="drawing",
        file=sys.stderr,
        show_pos=True,
    ) as done:
        for _ in done:
            pass
    click.echo(f"{count} pictures with captions: {folder / 'captions.csv'}")


if __name__ == "__main__":
    main()
