"""The command line: thin commands over the library. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, TextIO

import click

from boc import __version__
from boc.cli import settings
from boc.cli.commands import (
    build_codebook,
    compact,
    completion,
    convert,
    delete,
    doctor,
    estimate,
    evaluate,
    explain,
    extract,
    gallery,
    index,
    info,
    search,
    serve,
    show_alignment,
    train,
    tune,
    verify,
)
from boc.errors import BocError, BocWarning

SECTIONS = {
    "Pictures to try things on": (gallery,),
    "Make an encoder": (train, convert, extract, evaluate, show_alignment),
    "Make an index": (build_codebook, index, tune, estimate),
    "Search": (search, serve, explain),
    "Look after indexes": (info, verify, compact, delete),
    "Look after boc": (doctor, completion),
}
WITHOUT_SETTINGS = {"completion", "doctor"}
"""They have to work where the settings do not."""


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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Take the settings of the command from boc.toml, and say which one may be meant if there is none."""
        name = args[0]
        if name not in self.commands and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}. {_meant(name.lower(), list(self.commands))}")
        tolerant = ctx.resilient_parsing or name in WITHOUT_SETTINGS or {"-h", "--help"} & set(args)
        try:
            ctx.default_map = settings.defaults(self)
        except BocError:
            if not tolerant:
                raise
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """In sections, by what they are for, rather than by the alphabet."""
        width = max(map(len, self.commands))
        for title, modules in SECTIONS.items():
            with formatter.section(title):
                limit = formatter.width - width - 6
                rows = [(str(m.command.name).ljust(width), m.command.get_short_help_str(limit)) for m in modules]
                formatter.write_dl(rows)


def _meant(typed: str, known: list[str]) -> str:
    """The command that holds what was typed, else the one most like it."""
    near = [name for name in known if len(typed) > 2 and typed in name] or get_close_matches(typed, known, 1, 0.5)
    return f"Did you mean {near[0]}?" if near else "boc --help lists them."


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


def _versions(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if not asked or context.resilient_parsing:
        return
    from boc.doctor import versions

    click.echo(f"boc, version {__version__}")
    for name, version in versions().items():
        click.echo(f"{name:14s} {version}")
    context.exit()


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="boc COMMAND --help has examples. Options can be set in boc.toml and in the environment: see "
    "docs/configuration.md.",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_versions, help="Versions that matter."
)
def main() -> None:
    """Search pictures by sentences, and sentences by pictures, on an inverted index."""


for modules in SECTIONS.values():
    for module in modules:
        main.add_command(module.command)
settings.name_variables(main)
