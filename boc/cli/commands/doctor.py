"""boc doctor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

import click

from boc.cli import settings
from boc.errors import BocError

if TYPE_CHECKING:
    from boc.doctor import Finding

COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}


@click.command("doctor")
@click.option(
    "--at",
    "places",
    multiple=True,
    metavar="ADDRESS",
    help="Backend to check; can be repeated [default: as configured].",
)
def command(places: tuple[str, ...]) -> None:
    """Check the installation, and name missing parts.

    Checks packages, modules in C, models, boc.toml, the environment, and each backend: a folder, or
    a server, where it makes small trial indexes and removes them. Each line is ok, a note, or a
    problem, with what to do. The exit status is 1 if there is a problem that would stop a search.

    \b
    Examples: boc doctor
              boc doctor --at elastic+https://localhost:9200 --at file:boc-data
    """
    from boc.doctor import examine

    group = click.get_current_context().find_root().command
    assert isinstance(group, click.Group)
    problem = False
    for finding in chain(check_settings(group), examine(places or configured_places(group))):
        problem |= finding.state == "problem"
        state = click.style(f"{finding.state:8s}", fg=COLOURS[finding.state])
        click.echo(f"{state} {finding.about}: {finding.what}")
        if finding.todo:
            click.echo(f"         -> {finding.todo}")
    if problem:
        raise SystemExit(1)


def check_settings(group: click.Group) -> Iterator[Finding]:
    """Yield findings on the file of settings and on the variables that are set."""
    from boc.doctor import Finding

    try:
        settings.defaults(group)
        path = settings.read()[0]
        text = f"no file; looked for {' and '.join(map(str, settings.places()))}"
        if path is not None:
            text = f"file {path}"
        yield Finding("ok", "settings", text)
    except BocError as error:
        what, _, todo = str(error).rpartition("; ")
        yield Finding("problem", "settings", what, todo)
    variables = sorted(name for name in os.environ if name.startswith("BOC_"))
    if variables:
        yield Finding("ok", "settings", f"variables {', '.join(variables)}")


def configured_places(group: click.Group) -> list[str]:
    """Return the addresses that commands use here."""
    addresses = {}
    with suppress(BocError):
        addresses = {
            str(each["at"]): None for each in settings.defaults(group).values() if "at" in each
        }
    return list(addresses) or ["file:boc-data"]
