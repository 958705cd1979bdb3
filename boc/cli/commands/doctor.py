"""Define the command boc doctor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

import click

from boc.cli import settings
from boc.errors import BocError

if TYPE_CHECKING:
    from boc.doctor import Finding

COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}


@click.command("doctor")
def command() -> None:
    """Check the installation, and list missing components.

    The command checks packages, C modules, models, boc.toml and environment variables. Each line of
    the output is marked ok, note or problem; for a problem, the command suggests the next step. The
    exit status is 1 if a problem prevents searches. To check a server, use boc info; to check an
    index, use boc verify.

    \b
    Example: boc doctor
    """
    from boc.doctor import examine

    group = click.get_current_context().find_root().command
    assert isinstance(group, click.Group)
    problem = False
    for finding in chain(check_settings(group), examine()):
        problem |= finding.state == "problem"
        state = click.style(f"{finding.state:8s}", fg=COLOURS[finding.state])
        click.echo(f"{state} {finding.about}: {finding.what}")
        if finding.todo:
            click.echo(f"         -> {finding.todo}")
    if problem:
        raise SystemExit(1)


def check_settings(group: click.Group) -> Iterator[Finding]:
    """Check the settings file, and list the environment variables that boc reads."""
    from boc.doctor import Finding

    try:
        settings.defaults(group)
        path = settings.read()[0]
        text = f"no file at {' or '.join(map(str, settings.places()))}"
        if path is not None:
            text = f"file {path}"
        yield Finding("ok", "settings", text)
    except BocError as error:
        what, _, todo = str(error).rpartition("; ")
        yield Finding("problem", "settings", what, todo)
    variables = sorted(name for name in os.environ if name.startswith("BOC_"))
    if variables:
        yield Finding("ok", "settings", f"variables {', '.join(variables)}")
