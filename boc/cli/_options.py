"""Options that several commands share, and the progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)

at = click.option(
    "--at", envvar="BOC_AT", default="file:boc-data", show_default=True, help="Where indexes live: file:DIR."
)
encoder = click.option("--encoder", metavar="KIND:PATH", help="Encoder, for example tern:models/photos.")
device = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where the encoder runs.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


def source(function: F) -> F:
    """The argument SOURCE with the options that narrow it."""
    return _narrowed(click.argument("source", type=PATH)(function))


def sources(function: F) -> F:
    """The same for one or more, SOURCE..., as ``sources``."""
    return _narrowed(click.argument("sources", metavar="SOURCE...", type=PATH, nargs=-1, required=True)(function))


def _narrowed(function: F) -> F:
    for option in (
        click.option(
            "--images", type=PATH, help="Folder of a CSV's pictures [default: the CSV's own, or images/ in it]."
        ),
        click.option(
            "--ids", type=PATH, help="Only the pictures listed in this file, one id a line, and their captions."
        ),
    ):
        function = option(function)
    return function


def bar(label: str, total: int) -> ProgressBar[int]:
    """A progress bar on stderr."""
    return click.progressbar(length=total, label=label, file=sys.stderr, show_pos=True)


def show(label: str, total: int, done: Iterator[int]) -> None:
    """A progress bar on stderr over an iterator of counts of finished items."""
    with bar(label, total) as shown:
        position = 0
        for count in done:
            shown.update(count - position)
            position = count


def report(failed: list[tuple[str, str]]) -> None:
    """Name what was left out on stderr, and exit with status 1 if anything was."""
    for _, reason in failed:
        click.echo(f"left out: {reason}", err=True)
    if failed:
        click.echo(f"{len(failed)} items could not be used; all others are done.", err=True)
        raise SystemExit(1)
