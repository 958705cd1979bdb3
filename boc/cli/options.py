"""Options that several commands share, and the progress bar."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource

from boc.cli import completers

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
    help="Where indexes live: file:DIR, elastic+URL, opensearch+URL.",
)
encoder = click.option(
    "--encoder",
    metavar="KIND:PATH",
    shell_complete=completers.encoder,
    help="Encoder, for example tern:models/photos.",
)
device = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where the encoder runs.",
)
metadata = click.option(
    "--metadata",
    type=PATH,
    help="CSV of values to filter by and to show; its header is like id,year:integer,tag:keyword.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")

SIGNED_CODES = ("scalar", "bits", "permutation")
CONCEPT_CODES = ("hard", "soft", "mixed")
CODING = (
    click.option(
        "--code",
        type=click.Choice([*SIGNED_CODES, "dictionary", *CONCEPT_CODES]),
        default="scalar",
        show_default=True,
        help="How vectors become term frequencies; hard, soft and mixed read concept sets.",
    ),
    click.option(
        "--z",
        type=click.IntRange(1),
        help="Terms kept of an item [default: 64; dictionary 2; soft: all of each concept].",
    ),
    click.option("--query-z", type=click.IntRange(1), help="Terms kept of a query [default: 128; dictionary 64]."),
    click.option("--terms", type=click.IntRange(1), help="Size of the dictionary [default: by the number of items]."),
    click.option("--codebook", type=PATH, help="Of boc build-codebook, for hard, soft and mixed."),
    click.option(
        "--similarity", type=click.Choice(["inverse", "gaussian", "printed"]), default="inverse", help="Of soft."
    ),
    click.option("--aggregate", type=click.Choice(["sum", "max"]), default="sum", show_default=True, help="Of soft."),
    click.option(
        "--stopwords",
        type=click.Choice(["keep", "drop"]),
        default="keep",
        show_default=True,
        help="Concepts of English stop-words, for hard, soft and mixed.",
    ),
    click.option(
        "--bits", type=click.IntRange(1, 15), default=4, show_default=True, help="Of a frequency, for --code bits."
    ),
    click.option("--plain", is_flag=True, help="Neither centre nor rotate first: the codes as the papers have them."),
    click.option("--shift", is_flag=True, help="Keep all terms, hence the order of the dense vectors."),
    click.option("--expand", type=click.IntRange(1), default=1, show_default=True, help="Rotations side by side."),
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

    code: str
    z: int | None
    query_z: int | None
    terms: int | None
    codebook: Path | None
    similarity: str
    aggregate: str
    stopwords: str
    bits: int
    plain: bool
    shift: bool
    expand: int
    rerank: str
    concepts: str | None

    @property
    def keeps_concepts(self) -> bool:
        """Whether concept sets are read from the feature file."""
        return self.codebook is not None or self.concepts is not None or self.rerank != "dot"

    def book(self) -> Codebook | None:
        """The codebook, if the code has one. Refuses options that the code has no use for, before any work."""
        if self.plain and self.expand > 1:
            raise click.UsageError("--expand rotates, --plain does not; give one of them")
        if (self.codebook is not None) != (self.code in CONCEPT_CODES):
            raise click.UsageError(
                f"--code {self.code} takes no --codebook; choose {', '.join(CONCEPT_CODES)}"
                if self.codebook is not None
                else f"--code {self.code} needs --codebook FILE; make one with boc build-codebook FEATURES -o FILE"
            )
        if (self.shift or self.expand > 1) and self.code not in SIGNED_CODES:
            raise click.UsageError(f"--shift and --expand are for --code {', '.join(SIGNED_CODES)}; leave them out")
        if self.plain and self.code in CONCEPT_CODES:
            raise click.UsageError(
                f"--plain is for codes of the global vector, not for --code {self.code}; leave it out"
            )
        if self.terms is not None and self.code not in ("dictionary", "mixed"):
            raise click.UsageError("--terms is the size of a dictionary; add --code dictionary or mixed")
        from boc.clustering.codebook import Codebook

        return None if self.codebook is None else Codebook.load(self.codebook)

    def fitted(self, file: FeatureFiles, book: Codebook | None) -> SurrogateCodec:
        """The code, learned from an embeddings file."""
        from boc.build import fit_code
        from boc.codecs import concept_code, global_code
        from boc.codecs.presets import budgets

        z, query_z = self.z, self.query_z
        if book is not None:
            book.check(file.header.identity)
            kind: dict[str, Any] = {"similarity": self.similarity, "aggregate": self.aggregate}
            kind["drop_stopwords"] = self.stopwords == "drop"
            return fit_code(file, concept_code(book, self.code, z=z, query_z=query_z, terms=self.terms, **kind))
        if self.code in SIGNED_CODES and not self.shift:
            z, query_z = budgets(file.header.dim * self.expand, z, query_z)
        how: dict[str, Any] = {"center": not self.plain, "rotate": not self.plain, "shift": self.shift}
        how |= {"expand": self.expand, "bits": self.bits, "terms": self.terms}
        return fit_code(file, global_code(self.code, z=z, query_z=query_z, **how))


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


def given(option: str) -> bool:
    """Whether the current command has an option of this name on its command line, and not from settings."""
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
    """Name what was left out on stderr, and exit with status 1 if anything was."""
    for _, reason in failed:
        click.echo(f"left out: {reason}", err=True)
    if failed:
        click.echo(f"{len(failed)} items could not be used; all others are done.", err=True)
        raise SystemExit(1)
