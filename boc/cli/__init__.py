"""The command line: thin commands over the library. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import click

from boc import __version__
from boc.cli import (
    build_codebook,
    compact,
    convert,
    delete,
    estimate,
    evaluate,
    explain,
    extract,
    gallery,
    index,
    info,
    search,
    show_alignment,
    train,
    tune,
    verify,
)
from boc.errors import BocError, BocWarning


class Group(click.Group):
    """Turns the library's errors into one line and exit status 1, its warnings into notes."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _notes():
                return super().invoke(ctx)
        except BocError as error:
            raise click.ClickException(" ".join(str(error).split())) from error
        except KeyboardInterrupt:
            click.echo("\nStopped. Repeat the command to go on where it stopped.", err=True)
            ctx.exit(128 + signal.SIGINT)


@contextmanager
def _notes() -> Iterator[None]:
    """Show each BocWarning as a line on stderr; other warnings go where they went."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", BocWarning)
        others = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, BocWarning):
                click.echo(f"note: {' '.join(str(message).split())}", err=True)
            else:
                others(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="boc")
def main() -> None:
    """Search pictures by sentences, and sentences by pictures, on an inverted index."""


for module in (
    gallery, train, convert, extract, build_codebook, tune, index, delete, compact, search, explain, show_alignment,
    evaluate, verify, estimate, info,
):  # fmt: skip
    main.add_command(module.command)
