"""boc model."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from boc.cli import completers, options
from boc.cli.options import plain
from boc.errors import BocError

if TYPE_CHECKING:
    from boc.models.hub import Offer

model = click.argument("name", metavar="MODEL", shell_complete=completers.models)


@click.group("model")
def command() -> None:
    """Download and manage encoders that others trained.

    MODEL is clip, siglip2 or multilingual, or ORG/NAME of a model on the Hugging Face hub. Models are kept in
    BOC_MODELS [default: ~/.local/share/boc/models], and used as --encoder clip or --encoder clip:ORG/NAME.

    \b
    Examples: boc model get clip
              boc model list
    """


@command.command("get")
@model
@click.option("--revision", metavar="REVISION", help="Commit, branch or tag [default: pinned or newest].")
@click.option("--sha256", metavar="HEX", help="SHA-256 that the file of weights must have.")
@click.option("--yes", is_flag=True, help="Download without asking.")
def get(name: str, revision: str | None, sha256: str | None, yes: bool) -> None:
    """Download MODEL, after showing its size and licence.

    Every file is compared with the digest that the server announces. A download that was cut continues when the command
    is repeated. Another server: set HF_ENDPOINT to its address.

    \b
    Examples: boc model get clip
              boc model get openai/clip-vit-base-patch32
              boc model get google/siglip2-large-patch16-256 --revision main --yes
    """
    from boc import models
    from boc.models import hub

    repository = models.repository(name)
    pinned = models.entry(repository)
    if pinned is not None and revision is None:
        revision, sha256 = pinned.revision, sha256 or pinned.sha256
    got = models.find(repository)
    if got is not None and revision in (None, got.revision) and not models.verify(got):
        click.echo(f"{repository} is there already: {got.folder}")
        if revision is None:
            click.echo("To ask for a newer one: --revision main", err=True)
        return
    offer = hub.look(repository, revision or "", sha256 or "")
    _show(offer, pinned.licence if pinned else "")
    if not yes:
        _ask()
    label = f"downloading {offer.size / 1e6:.0f} MB"
    with click.progressbar(length=offer.size, label=label, file=sys.stderr) as bar:
        done = hub.download(offer, lambda here, _: bar.update(here - bar.pos))
    click.echo(f"{repository}: {done.folder}")
    click.echo(f"Use it: boc index photos ~/Pictures --encoder {name if '/' not in name else f'clip:{name}'}")


@command.command("list")
@options.as_json
def show(as_json: bool) -> None:
    """Show the models that were downloaded, and the short names of those that can be.

    \b
    Examples: boc model list
              boc model list --json
    """
    import json

    from boc import models

    there = list(models.models())
    if as_json:
        keys = ("repository", "revision", "licence", "size")
        records = [{**{key: getattr(each, key) for key in keys}, "folder": str(each.folder)} for each in there]
        click.echo(json.dumps(records, ensure_ascii=False))
        return
    for each in there:
        licence = each.licence or "licence not stated"
        click.echo(
            plain(f"{each.repository}  {each.size / 1e6:.0f} MB, {licence}, {each.revision[:12]}, {each.folder}")
        )
    known = {each.repository for each in there}
    for name, entry in models.CATALOGUE.items():
        state = "is there" if entry.repository in known else f"boc model get {name}"
        click.echo(f"{name}: {entry.repository}, {entry.size / 1e6:.0f} MB, {entry.licence}; {entry.about} ({state})")


@command.command("verify")
@click.argument("name", metavar="[MODEL]", required=False, shell_complete=completers.models)
def verify(name: str | None) -> None:
    """Compare the files of MODEL, or of all models, with the digests of their download.

    \b
    Examples: boc model verify
              boc model verify clip
    """
    from boc import models

    if name is None:
        there = list(models.models())
    else:
        local = models.find(models.repository(name))
        if local is None:
            raise BocError(f"{name} is not there; boc model list shows what is")
        there = [local]
    damaged = 0
    for each in there:
        changed = models.verify(each)
        damaged += bool(changed)
        state = (
            f"changed: {', '.join(changed)}; get it again: boc model get {each.repository}" if changed else "unchanged"
        )
        click.echo(plain(f"{each.repository}: {state}"))
    if not there:
        click.echo("no models; boc model get clip gets one", err=True)
    if damaged:
        raise SystemExit(1)


@command.command("remove")
@model
def remove(name: str) -> None:
    """Remove MODEL from this machine; indexes made with it need it to encode sentences.

    \b
    Examples: boc model remove clip
    """
    from boc import models

    repository = models.repository(name)
    click.echo(f"{repository}: {models.remove(repository) / 1e6:.0f} MB removed")


def _show(offer: Offer, licence: str) -> None:
    """Print on stderr what would be downloaded."""
    told = offer.licence or (f"{licence} (its card says nothing)" if licence else "not stated; see its page")
    click.echo(plain(f"model     {offer.repository}, revision {offer.revision[:12]}"), err=True)
    click.echo(f"size      {offer.size / 1e6:.1f} MB in {len(offer.files)} files", err=True)
    click.echo(plain(f"licence   {told}"), err=True)


def _ask() -> None:
    if not sys.stdin.isatty():
        raise BocError("there is no terminal to accept the licence at; add --yes if you accept it")
    if not click.confirm("Download it?", err=True):
        raise BocError("nothing was downloaded")
