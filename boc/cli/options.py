"""Options that several commands share, and the progress bar."""

from __future__ import annotations

import functools
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from boc.cli import completers
from boc.codecs import ARGUMENTS, CODES, Code, parse_code
from boc.errors import BocError

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar

    from boc.clustering.codebook import Codebook
    from boc.codecs import SurrogateCodec
    from boc.inputs.features import FeatureFiles

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)

name = click.argument("name", shell_complete=completers.names)
at = click.option(
    "--at",
    envvar="BOC_AT",
    default="file:boc-data",
    show_default=True,
    shell_complete=completers.at,
    help="Address of the backend: file:DIR, elastic+URL or opensearch+URL.",
)
encoder = click.option(
    "--encoder",
    metavar="KIND:PATH",
    shell_complete=completers.encoder,
    help="Encoder of pictures and sentences, for example tern:models/photos.",
)
device = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Device that the encoder runs on; auto takes a GPU if there is one.",
)
metadata = click.option(
    "--metadata",
    type=PATH,
    help="CSV of metadata to filter by and to show; its header is like id,year:integer,tag:keyword.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


class CodeType(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """A code as text, such as ``dictionary:2/64``, given to the command as a ``Code``."""

    name = "CODE"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Code:
        try:
            return value if isinstance(value, Code) else parse_code(value)
        except BocError as error:
            self.fail(str(error), parameter, context)

    def shell_complete(
        self, context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        return [CompletionItem(code) for code in CODES if code.startswith(incomplete)]


CODING = (
    click.option(
        "--code",
        type=CodeType(),
        default="scalar",
        show_default=True,
        help="How vectors become terms: NAME:Z/QUERY_Z or NAME(ARGUMENT=VALUE, ...), listed below.",
    ),
    click.option(
        "--rerank",
        type=click.Choice(["dot", "mrsw", "mwsr", "symm", "mravgw"]),
        default="dot",
        show_default=True,
        help="Score them by dense vectors, or by an alignment of concept sets.",
    ),
    click.option(
        "--concepts",
        type=click.Choice(["float16", "int8"]),
        help="Store concept sets, as this type [default: float16 if --rerank aligns them].",
    ),
)


@dataclass(frozen=True)
class Coding:
    """What the options of ``coding`` say: how an index encodes its items, and whether it holds their concepts."""

    code: Code
    rerank: str
    concepts: str | None

    @property
    def keeps_concepts(self) -> bool:
        """Whether concept sets are read from the feature file."""
        return self.code.reads_concepts or self.concepts is not None or self.rerank != "dot"

    def fitted(self, file: FeatureFiles, book: Codebook | None) -> SurrogateCodec:
        """The code, learned from an embeddings file; ``book`` is its codebook, if it has one."""
        from boc.build import fit_code

        if book is not None:
            book.check(file.header.identity)
        return fit_code(file, self.code.codec(file.header.dim, book))


def code_help() -> str:
    """The codes with their arguments, as the end of a command's help."""
    codes = [_entry(name, f"{kind.about}: {', '.join(kind.rules)}") for name, kind in CODES.items()]
    arguments = [_entry(name, about) for name, about in ARGUMENTS.items()]
    return "\n".join(["\b", "Codes and their arguments:", *codes, "", "\b", "Arguments [defaults]:", *arguments])


def _entry(name: str, about: str) -> str:
    """A name and what is said of it, in lines of 76 characters."""
    return textwrap.fill(about, 76, initial_indent=f"  {name:13}", subsequent_indent=" " * 15)


def coding(function: F) -> F:
    """The options that choose a code, given to the command as one argument: ``coding``, a ``Coding``."""

    @functools.wraps(function)
    def command(**given: Any) -> Any:
        chosen = {field.name: given.pop(field.name) for field in fields(Coding)}
        return function(coding=Coding(**chosen), **given)

    for option in reversed(CODING):
        command = option(command)
    return cast(F, command)


def source(function: F) -> F:
    """Add the argument SOURCE and the options that select a part of it."""
    return _narrowed(click.argument("source", type=PATH)(function))


def sources(function: F) -> F:
    """Add the argument SOURCE..., one or more paths as ``sources``, and the options that select a part."""
    return _narrowed(click.argument("sources", metavar="SOURCE...", type=PATH, nargs=-1, required=True)(function))


def _narrowed(function: F) -> F:
    for option in (
        click.option(
            "--images",
            type=PATH,
            help="Folder of the pictures of a CSV [default: the folder of the CSV, or images/ in it].",
        ),
        click.option(
            "--ids", type=PATH, help="Only the pictures listed in this file, one id per line, and their captions."
        ),
    ):
        function = option(function)
    return function


def given(option: str) -> bool:
    """Whether an option of the current command was given on the command line, and not by settings."""
    return click.get_current_context().get_parameter_source(option) is ParameterSource.COMMANDLINE


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
    """List the items that failed on stderr; exit with status 1 if there are any."""
    for _, reason in failed:
        click.echo(f"left out: {reason}", err=True)
    if failed:
        click.echo(f"{len(failed)} items could not be used; all others are done.", err=True)
        raise SystemExit(1)
