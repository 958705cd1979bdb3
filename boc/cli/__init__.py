"""Command line: a thin layer of commands over the library. Results go to stdout, everything else
goes to stderr."""

import codecs
import errno
import io
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from boc import __version__
from boc.cli import settings
from boc.cli.options import is_verbose, one_line, plain, tell
from boc.errors import BocError, BocWarning, LeftOut, advice

SECTIONS = {
    title: [import_module(f"boc.cli.commands.{name}") for name in names.split()]
    for title, names in {
        "Get or make an encoder": "model train convert extract evaluate",
        "Make an index": "build_codebook index add sync attach",
        "Search": "search serve explain",
        "Look after indexes": "info verify copy duplicates compact delete",
        "Look after boc": "doctor",
    }.items()
}
ESCAPES = "boc.escapes"


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that the terminal or file cannot encode with JSON escapes."""
    assert isinstance(error, UnicodeEncodeError)
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)), error.end


codecs.register_error(ESCAPES, _escape)


class CommandGroup(click.Group):
    """Command group that prints an error of the library on one line and exits with status 1, and
    prints warnings as notes."""

    def invoke(self, ctx: click.Context) -> Any:
        # On a busy machine, waiting OpenMP threads should sleep instead of spinning.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors=ESCAPES)
        try:
            with _notes():
                return super().invoke(ctx)
        except BocError as error:
            raise click.ClickException(one_line(error)) from error
        except UnicodeEncodeError as error:
            raise click.ClickException(
                f"{error.object!a} is not UTF-8; write it in UTF-8",
            ) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader closed the output; click ends silently
            where = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(
                plain(f"{where}{error.strerror or error}; {advice(error)}"),
            ) from error
        except KeyboardInterrupt:
            click.echo("\nStopped. Repeat the command to continue where it stopped.", err=True)
            ctx.exit(128 + signal.SIGINT)

    def resolve_command(
        self,
        ctx: click.Context,
        args: list[str],
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Apply the settings of boc.toml, and suggest a command for an unknown name."""
        name = args[0]
        if name not in self.commands and not name.startswith("-") and not ctx.resilient_parsing:
            typed = name.lower()
            # A command that contains the text is nearer than a command of similar letters.
            near = [known for known in self.commands if len(typed) > 2 and typed in known]
            near += get_close_matches(typed, self.commands, 1, 0.5)
            hint = f"Did you mean {near[0]}?" if near else "boc --help lists them."
            ctx.fail(f"No such command {name!r}. {hint}")
        try:
            ctx.default_map = settings.defaults(self)
        except BocError:  # help, completion and boc doctor must still work
            if not (ctx.resilient_parsing or name == "doctor" or {"-h", "--help"} & set(args)):
                raise
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in sections by purpose instead of alphabetically."""
        width = max(map(len, self.commands))
        for title, modules in SECTIONS.items():
            with formatter.section(title):
                limit = formatter.width - width - 6
                rows = [
                    (str(m.command.name).ljust(width), m.command.get_short_help_str(limit))
                    for m in modules
                ]
                formatter.write_dl(rows)


@contextmanager
def _notes() -> Iterator[None]:
    """Show each BocWarning as one line on stderr, and other warnings as usual."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", BocWarning)
        others = warnings.showwarning

        def show(message: Warning | str, *where: Any, **file: Any) -> None:
            if isinstance(message, BocWarning):
                tell(f"note: {one_line(message)}")
                if isinstance(message, LeftOut) and is_verbose():
                    for reason in message.reasons:
                        tell(f"left out: {reason}")
            else:
                others(message, *where, **file)

        warnings.showwarning = show
        yield


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="boc COMMAND --help has examples. Options can be set in ./boc.toml or "
    "~/.config/boc/boc.toml, and in the "
    "environment: see docs/reference/configuration.md.",
)
@click.version_option(__version__, message="boc, version %(version)s")
def main() -> None:
    """Search pictures by sentences, and sentences by pictures."""


for modules in SECTIONS.values():
    for module in modules:
        main.add_command(module.command)
