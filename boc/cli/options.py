"""Define options that several commands share, and show progress bars."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from boc.codecs import ARGUMENTS, CODES, Code, parse_code
from boc.errors import BocError, leave_out, worded
from boc.inputs.text_lines import text_lines
from boc.paths import escaped_bytes

if TYPE_CHECKING:
    from boc.progress import Bars


F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)


def sentence(value: str) -> str:
    """Check that a text argument, which the system passes as bytes, is valid UTF-8."""
    if value.encode(errors="ignore").decode() != value:
        raise click.BadParameter(
            f"{value!a} is not valid UTF-8; set the locale of the terminal to UTF-8",
        )
    return value


class TextCommand(click.Command):
    """Command whose TEXT can begin with a minus. Unknown options are moved behind --."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, and treat unknown options as TEXT."""
        known = {
            name: option
            for option in self.get_params(ctx)
            for name in (*option.opts, *option.secondary_opts)
        }
        left = iter(args)
        flags = list[str]()
        texts = list[str]()
        for arg in left:
            option = known.get(arg)
            if arg == "--":
                texts += left
            elif isinstance(option, click.Option) and not option.is_flag:
                flags += [arg, *islice(left, 1)]
            elif (
                option is not None
                or arg.partition("=")[0] in known
                or re.fullmatch(r"--\S+|-k\d+", arg)
            ):
                flags.append(arg)
            else:
                texts.append(arg)
        return super().parse_args(ctx, [*flags, "--", *texts])


# An item id can be a file name, in which bytes that are not UTF-8 are escaped.
ID = escaped_bytes
FEW = 5  # maximum number of items named in a message
VERBOSE = f"{__name__}.verbose"
_JOINERS = "\u200c\u200d"  # harmless invisible characters that join letters and emoji


def amount(number: int, noun: str) -> str:
    """Return a number followed by its noun, in the singular or plural."""
    return f"{number} {noun}{'s' * (number != 1)}"


def plain(text: object) -> str:
    """Escape control characters and line breaks in ``text``, so that a terminal does not interpret
    them."""
    shown = ""
    for char in str(text):
        if char.isprintable() or char in _JOINERS:
            shown += char
        else:
            shown += char.encode("unicode_escape").decode()
    return shown


def one_line(error: BaseException) -> str:
    """Return the message of an error or a warning on one line, with its hint worded for the command
    line."""
    return plain(" ".join(worded(error, str).split()))


def tell(text: object) -> None:
    """Print ``text`` to stderr on one line, escaped by ``plain``."""
    click.echo(plain(text), err=True)


def print_json(value: Any) -> None:
    """Print ``value`` as one line of JSON."""
    click.echo(json.dumps(value, ensure_ascii=False))


def read_lines(path: str, shown: str, what: str) -> list[str]:
    """Return the non-empty lines of a file, or of standard input for -. Raises BocError if there
    are no such lines."""
    if path == "-" and sys.stdin is None:
        raise BocError(
            f"{shown}: the standard input is closed; redirect a file to the standard input",
        )
    with click.open_file(path, "rb") as file:
        faults: list[str] = []
        lines = [line.strip() for line in text_lines(file.read(), shown, faults) if line.strip()]
    if not lines:
        fault = f" ({faults[0]})" if faults else ""
        raise BocError(f"{shown} contains no {what}{fault}; write one per line")
    leave_out(shown, faults)
    return lines


name = click.argument("name")
at = click.option(
    "--at",
    default="file:boc-data",
    help="Address of the backend: file:DIR, elastic+URL or opensearch+URL.",
)


def output(about: str) -> Callable[[F], F]:
    """Create the required option --output with the help text ``about``."""
    return click.option("-o", "--output", type=PATH, required=True, help=about)


encoder = click.option(
    "--encoder",
    metavar="KIND:PATH",
    help="Encoder for pictures and sentences: a name such as clip (see boc model), or a model "
    "folder such as models/photos.",
)
moved_encoder = click.option(
    "--encoder",
    metavar="KIND:PATH",
    help="Encoder of the index, if its path has changed [default: the path stored in the index].",
)
device = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    help="Device for the encoder; auto means a GPU if one is available.",
)
metadata = click.option(
    "--metadata",
    type=PATH,
    help="CSV file with metadata, with a header such as id,year:integer,tag:keyword.",
)
ocr = click.option(
    "--ocr",
    is_flag=True,
    help="Recognise the text in pictures, for use with boc search --hybrid. Slow; requires the ocr "
    "extra.",
)
exclude = click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="File or folder name to skip now and in later syncs, such as copy-?.jpg; can be repeated.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def code_of(text: str) -> Code:
    """Parse a code such as ``dictionary:2/64``."""
    try:
        return parse_code(text)
    except BocError as error:
        raise click.BadParameter(one_line(error)) from None


code = click.option(
    "--code",
    type=code_of,
    metavar="CODE",
    default="dictionary",
    help="Code that converts vectors to terms: NAME:Z/QUERY_Z, or as listed below.",
)
recall = click.option(
    "--recall",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Fraction of the ten nearest items that searches with a dictionary should find; "
    "determines the budgets [default: 0.98].",
)


def code_help() -> str:
    """Return the list of codes and arguments shown at the end of a command's help."""
    codes = [_entry(name, f"{kind.about}: {', '.join(kind.rules)}") for name, kind in CODES.items()]
    arguments = [_entry(name, about) for name, about in ARGUMENTS.items()]
    return "\n".join(
        ["\b", "Codes and their arguments:", *codes, "", "\b", "Arguments [defaults]:", *arguments],
    )


def _entry(name: str, about: str) -> str:
    """Return a name and its description, wrapped at 76 columns."""
    return textwrap.fill(about, 76, initial_indent=f"  {name:13}", subsequent_indent=" " * 15)


_images = click.option(
    "--images",
    type=PATH,
    help="Folder that contains the pictures of a CSV [default: the folder of the CSV, or images/ "
    "inside this folder].",
)
_ids = click.option(
    "--ids",
    type=PATH,
    help="File with the ids of the pictures to read, one per line; other pictures and captions "
    "are ignored.",
)


def source(function: F) -> F:
    """Add the argument SOURCE and the options --images and --ids."""
    return _ids(_images(click.argument("source", type=PATH)(function)))


def sources(function: F) -> F:
    """Add the argument SOURCE..., which accepts one or more paths, and the option --images."""
    return _images(
        click.argument("sources", metavar="SOURCE...", type=PATH, nargs=-1, required=True)(
            function,
        ),
    )


def assignment(text: str) -> tuple[str, str]:
    """Split NAME=VALUE into the name and the value. Raises UsageError if there is no equals
    sign."""
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--set needs NAME=VALUE, got {text!r}; --help lists the names")
    return name, value


def settings(kinds: Mapping[str, click.ParamType]) -> Callable[[F], F]:  # type: ignore[type-arg]
    """Add the option --set NAME=VALUE. The command receives ``settings``, a mapping from names to
    values converted by ``kinds``."""

    def convert(
        context: click.Context,
        parameter: click.Parameter,
        values: tuple[str, ...],
    ) -> dict[str, Any]:
        settings = {}
        for name, value in map(assignment, values):
            if name not in kinds:
                raise click.UsageError(f"unknown setting {name!r}; known: {', '.join(kinds)}")
            settings[name] = kinds[name].convert(value, parameter, context)
        return settings

    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        callback=convert,
        help="Setting from the list below; can be repeated.",
    )


def on_command_line(option: str) -> bool:
    """Return whether an option of the current command comes from the command line rather than from
    the settings."""
    return click.get_current_context().get_parameter_source(option) is ParameterSource.COMMANDLINE


def bars() -> closing[Bars]:
    """Return a context manager for progress bars on stderr, one per stage. If stderr is not a
    terminal, a bar prints one line per minute."""
    from boc.progress import Bars

    return closing(Bars(file=sys.stderr, mininterval=0.1 if sys.stderr.isatty() else 60))


def show(steps: Iterable[tuple[str, int, int]]) -> None:
    """Show progress bars for an iterator that yields stages, numbers of finished items, and
    totals."""
    with bars() as progress:
        for step in steps:
            progress(*step)


def write_onnx(folder: Path) -> None:
    """Export the networks of a model folder to ONNX files in the same folder."""
    from boc import plugins

    for line in plugins.tool("onnx_export").export(folder):
        tell(line)


verbose = click.option(
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=lambda context, _, value: context.meta.update({VERBOSE: value}),
    help="List all skipped items instead of the first few.",
)


def is_verbose() -> bool:
    """Return whether the current command was called with --verbose."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(VERBOSE))


def report(failed: list[tuple[str, str]], left: int) -> None:
    """Print the reasons for the first few failed items, or for all with --verbose, to stderr. Exit
    with status 1 if no item is ``left``."""
    named = failed
    more = ""
    if len(failed) > FEW and not is_verbose():
        named = failed[:FEW]
        more = f" (--verbose names all {len(failed)})"
    for _, reason in named:
        tell(f"left out: {reason}")
    if failed:
        tell(f"{amount(len(failed), 'item')} could not be used{more}; {left} are done.")
        if not left:
            raise SystemExit(1)
