"""Command line interface, a thin layer over the library. Results are printed to stdout, everything
else to stderr."""

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
        "Get or train an encoder": "model train convert extract evaluate",
        "Build an index": "build_codebook index add sync attach",
        "Search": "search serve explain",
        "Maintain indexes": "info verify copy duplicates compact delete",
        "Check the installation": "doctor",
    }.items()
}
ESCAPES = "boc.escapes"


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that the output cannot encode with JSON escapes."""
    assert isinstance(error, UnicodeEncodeError)
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)), error.end


codecs.register_error(ESCAPES, _escape)


class CommandGroup(click.Group):
    """Command group that prints library errors on one line, exits with status 1 after an error, and
    prints warnings as notes."""

    def invoke(self, ctx: click.Context) -> Any:
        # On a busy machine, OpenMP threads should sleep instead of spinning while they wait.
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
                f"{error.object!a} is not valid UTF-8; encode it as UTF-8",
            ) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader closed the pipe, so click exits silently
            where = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(
                plain(f"{where}{error.strerror or error}; {advice(error)}"),
            ) from error
        except KeyboardInterrupt:
            click.echo("\nStopped. Run the command again to resume.", err=True)
            ctx.exit(128 + signal.SIGINT)

    def resolve_command(
        self,
        ctx: click.Context,
        args: list[str],
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Apply the settings in boc.toml, and suggest a command if the name is unknown."""
        name = args[0]
        if name not in self.commands and not name.startswith("-") and not ctx.resilient_parsing:
            typed = name.lower()
            # Prefer commands that contain the typed text to commands with similar spelling.
            near = [known for known in self.commands if len(typed) > 2 and typed in known]
            near += get_close_matches(typed, self.commands, 1, 0.5)
            hint = f"Did you mean {near[0]}?" if near else "boc --help lists all commands."
            ctx.fail(f"No such command {name!r}. {hint}")
        try:
            ctx.default_map = settings.defaults(self)
        except BocError:  # help, completion and boc doctor must work with invalid settings
            if not (ctx.resilient_parsing or name == "doctor" or {"-h", "--help"} & set(args)):
                raise
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by purpose instead of alphabetically."""
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
    """Print each BocWarning as one line on stderr, and show other warnings as usual."""
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
    epilog="For examples, run boc COMMAND --help. Options can be set in ./boc.toml, in "
    "~/.config/boc/boc.toml, and in environment variables; see docs/reference/configuration.md.",
)
@click.version_option(__version__, message="boc, version %(version)s")
def main() -> None:
    """Search for pictures by sentences, and for sentences by pictures."""


for modules in SECTIONS.values():
    for module in modules:
        main.add_command(module.command)
