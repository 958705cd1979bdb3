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
    """Download and list pretrained encoders.

    MODEL is clip, siglip2, multilingual, or the name ORG/NAME of a model on the Hugging Face Hub.
    Models are stored in the folder BOC_MODELS [default: ~/.local/share/boc/models]. To use a model,
    pass --encoder clip or --encoder clip:ORG/NAME.

    \b
    Examples: boc model get clip
              boc model list
    """


@command.command("get")
@name
@click.option(
    "--revision",
    metavar="REVISION",
    help="Commit, branch or tag [default: the pinned or the newest commit].",
)
@click.option(
    "--precision",
    type=click.Choice([*models.PRECISIONS]),
    help="Precision of ONNX networks: full (32 bits), half (16) or 8bit; half returns nearly the "
    "same hits, 8bit returns worse hits [default: the highest precision available].",
)
@click.option("--yes", is_flag=True, help="Download without asking for confirmation.")
def get(name: str, revision: str | None, precision: str | None, yes: bool) -> None:
    """Download MODEL after showing its size, its licence and missing packages.

    ONNX networks, as published by Xenova, onnx-community, Immich and Qdrant, do not need PyTorch.
    Files are checked against the digests that the server reports; for short names, networks are
    checked against pinned digests or the digests of the first download. If the download fails, run
    the command again; complete files are not downloaded again. To use another server, set
    HF_ENDPOINT to its address.

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
                options.tell("To download the newest version: --revision main")
            return
    licence = "not stated; see the page of the model"
    if pinned is not None:
        licence = f"{pinned.licence} (not stated in the model card)"
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
        options.tell(
            f"missing   {', '.join(missing)}; to use the model: pip install 'boc[{extra}]'",
        )
    if not yes:
        if not (sys.stdin and sys.stdin.isatty()):
            raise BocError(
                "the licence cannot be confirmed without a terminal; to accept it, add --yes",
            )
        if not click.confirm("Download the model?", err=True):
            raise BocError("nothing was downloaded")
    click.echo(f"{repository}: {hub.download(offer).folder}")
    spec = f"clip:{name}" if "/" in name else name
    click.echo(f"To use it: boc index photos ~/Pictures --encoder {spec}")


@command.command("list")
@options.as_json
def show(as_json: bool) -> None:
    """List downloaded models, and models that can be downloaded by a short name.

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
        state = "downloaded" if entry.repository in known else f"boc model get {name}"
        click.echo(
            f"{name}: {entry.repository}, {entry.size / 1e6:.0f} MB, {entry.licence}; "
            f"{entry.about} ({state})",
        )
