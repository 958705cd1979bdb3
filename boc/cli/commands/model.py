"""Define the command boc model."""

import sys
from importlib.util import find_spec

import click

from boc import models
from boc.cli import options
from boc.errors import BocError

name = click.argument("name", metavar="MODEL")


@click.group("model")
def command() -> None:
    """Download and manage encoders that others trained.

    MODEL is clip, siglip2 or multilingual, or ORG/NAME of a model on the Hugging Face hub. Models
    are stored in BOC_MODELS [default: ~/.local/share/boc/models]; use them as --encoder clip or
    --encoder clip:ORG/NAME.

    \b
    Examples: boc model get clip
              boc model list
    """


@command.command("get")
@name
@click.option(
    "--revision",
    metavar="REVISION",
    help="Commit, branch or tag [default: pinned or newest].",
)
@click.option(
    "--precision",
    type=click.Choice([*models.PRECISIONS]),
    help="Precision of ONNX networks: full (32 bits), half (16) or 8bit; half finds nearly the "
    "same hits, 8bit finds worse hits [default: the most precise].",
)
@click.option("--yes", is_flag=True, help="Download without asking for confirmation.")
def get(name: str, revision: str | None, precision: str | None, yes: bool) -> None:
    """Download MODEL, after showing its size, its licence, and any missing packages.

    ONNX networks, as published by Xenova, onnx-community, Immich and Qdrant, do not need torch.
    Files are checked against the server's digests; networks with short names are checked against
    pinned digests, or against the digests of their first download. After a failure, repeat the
    command; complete files are not downloaded again. To use another server, set HF_ENDPOINT to its
    address.

    \b
    Examples: boc model get clip
              boc model get immich-app/ViT-B-32__openai
              boc model get google/siglip2-base-patch16-256 --revision main --yes
    """
    from boc.models import hub

    repository = models.repository(name)
    present = models.find(repository)
    pinned = models.entry(repository) if revision is None else None
    commit = pinned.revision if pinned else revision
    digests = dict(pinned.digests) if pinned else {}
    if present is not None and commit in (None, present.revision):
        commit = present.revision
        digests = {**present.files, **digests}
        other = precision and models.pair_in(present.folder) != models.find_pair(
            present.files.__contains__,
            precision,
        )
        if not other and not models.verify(present):
            click.echo(f"{repository} is already downloaded: {present.folder}")
            if revision is None:
                options.tell("To ask for a newer one: --revision main")
            return
    licence = "not stated; see its page"
    if pinned is not None:
        licence = f"{pinned.licence} (its card says nothing)"
    offer = hub.look(repository, commit or "", digests, precision)
    licence = offer.licence or licence
    options.tell(f"model     {offer.repository}, revision {offer.revision[:12]}")
    options.tell(f"size      {offer.size / 1e6:.1f} MB in {len(offer.files)} files")
    options.tell(f"licence   {licence}")
    needed = ("onnxruntime", "tokenizers")
    extra = "search"
    if offer.pair is None:
        needed = ("torch", "transformers")
        extra = "encoders"
    if missing := [package for package in needed if find_spec(package) is None]:
        options.tell(f"missing   {', '.join(missing)}, to use it: pip install 'boc[{extra}]'")
    if not yes:
        if not (sys.stdin and sys.stdin.isatty()):
            raise BocError(
                "no terminal to accept the licence in; if you accept it, add --yes",
            )
        if not click.confirm("Download it?", err=True):
            raise BocError("nothing was downloaded")
    click.echo(f"{repository}: {hub.download(offer).folder}")
    spec = f"clip:{name}" if "/" in name else name
    click.echo(f"Use it: boc index photos ~/Pictures --encoder {spec}")


@command.command("list")
@options.as_json
def show(as_json: bool) -> None:
    """List the downloaded models, and the short names of models available for download.

    \b
    Examples: boc model list
              boc model list --json
    """
    present = list(models.models())
    if as_json:
        keys = ("repository", "revision", "licence", "size")
        records = [
            {**{key: getattr(each, key) for key in keys}, "folder": str(each.folder)}
            for each in present
        ]
        options.print_json(records)
        return
    for each in present:
        about = (
            f"{each.repository}  {each.size / 1e6:.0f} MB, {each.licence or 'licence not stated'}, "
            f"{each.revision[:12]}, {each.folder}"
        )
        click.echo(options.plain(about))
    known = {each.repository for each in present}
    for name, entry in models.CATALOGUE.items():
        state = "is there" if entry.repository in known else f"boc model get {name}"
        click.echo(
            f"{name}: {entry.repository}, {entry.size / 1e6:.0f} MB, {entry.licence}; "
            f"{entry.about} ({state})",
        )
