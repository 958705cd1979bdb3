"""Types of script arguments and options, and options of several scripts."""

from pathlib import Path

import click

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
PATH = click.Path(path_type=Path)

WORK = click.option("--work", required=True, type=FOLDER, help="Folder for all files of a run.")
SHARES = click.option(
    "--share",
    "shares",
    multiple=True,
    type=click.FloatRange(0, 1),
    default=(0.0005, 0.001, 0.01, 0.1, 0.5),
    show_default=True,
)
CLUSTERS = click.option(
    "--clusters",
    default=1000,
    show_default=True,
    help="Size of the codebooks.",
)
CODEBOOKS = click.option("--codebooks", type=PATH, help="Folder in which codebooks are cached.")
