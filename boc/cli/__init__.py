"""The command line: thin commands over the library. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import signal
from typing import Any

import click

from boc import __version__
from boc.cli import (
    build_codebook,
    convert,
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
)
from boc.errors import BocError


class Group(click.Group):
    """Turns the library's errors into one line and exit status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BocError as error:
            raise click.ClickException(" ".join(str(error).split())) from error
        except KeyboardInterrupt:
            click.echo("\nStopped. Repeat the command to go on where it stopped.", err=True)
            ctx.exit(128 + signal.SIGINT)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="boc")
def main() -> None:
    """Search pictures by sentences, and sentences by pictures, on an inverted index."""


for module in (
    gallery, train, convert, extract, build_codebook, tune, index, search, explain, show_alignment, evaluate, info,
):  # fmt: skip
    main.add_command(module.command)
