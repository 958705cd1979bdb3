"""boc doctor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from boc.cli import completers, options, settings
from boc.errors import BocError

if TYPE_CHECKING:
    from boc.doctor import Finding

COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}
NOWHERE = "file:boc-data"


@click.command("doctor")
@click.option(
    "--at",
    "places",
    multiple=True,
    metavar="ADDRESS",
    shell_complete=completers.at,
    help="Place of indexes to look at; may be given several times [default: those that are set].",
)
@options.as_json
def command(places: tuple[str, ...], as_json: bool) -> None:
    """Say what is installed and what is missing, and whether indexes can be reached.

    Looks at packages, the GPU, memory and disk, at boc.toml and the environment, and at each place of indexes: a
    folder, or a server, on which it makes trial indexes and removes them. Each line is ok, a note, or a problem, with
    what to do. Exit status 1 if there is a problem, which would stop a search.

    \b
    Examples: boc doctor
              boc doctor --at elastic+https://localhost:9200 --at file:boc-data
              boc doctor --json
    """
    from boc.doctor import versions

    group = click.get_current_context().find_root().command
    if not isinstance(group, click.Group):
        raise click.UsageError("boc doctor tells of the other commands of boc; call it as such")
    findings = []
    for finding in _examined(group, places):
        findings.append(finding)
        if not as_json:
            _print(finding)
    problems = sum(finding.state == "problem" for finding in findings)
    if as_json:
        record = {"problems": problems, "versions": versions(), "findings": [asdict(each) for each in findings]}
        click.echo(json.dumps(record, ensure_ascii=False))
    elif problems:
        click.echo(f"{problems} {'problem' if problems == 1 else 'problems'}", err=True)
    if problems:
        raise SystemExit(1)


def _examined(group: click.Group, places: tuple[str, ...]) -> Iterator[Finding]:
    from boc.doctor import examine

    told = list(_configuration(group))
    yield from told
    try:
        known = settings.places(group)
    except BocError:
        known = []
    yield from examine(places or known or [NOWHERE])


def _configuration(group: click.Group) -> Iterator[Finding]:
    """The file of settings, what is set, and where."""
    from boc.cli.config import find, places
    from boc.doctor import Finding

    try:
        path = find()
        origins = list(settings.origins(group))
    except BocError as error:
        what, _, todo = str(error).rpartition("; ")
        yield Finding("problem", "settings", what, todo)
        return
    looked = " and ".join(map(str, places()))
    yield Finding("ok", "settings", f"file {path}" if path else f"no file; looked for {looked}")
    for origin in origins:
        yield Finding("ok", "settings", f"{origin.name} = {origin.shown}, from {origin.source}")
    for name, near in settings.misspelt(group):
        yield Finding("note", "settings", f"nothing reads the variable {name}", f"write {near}, or unset it")


def _print(finding: Finding) -> None:
    state = click.style(f"{finding.state:8s}", fg=COLOURS[finding.state])
    click.echo(f"{state} {finding.about}: {finding.what}")
    if finding.todo:
        click.echo(f"         -> {finding.todo}")
