"""boc convert."""

from __future__ import annotations

from pathlib import Path

import click

from boc.cli import completers, options


@click.command("convert")
@click.argument("checkpoint", type=options.PATH)
@click.option("-o", "--output", type=options.PATH, required=True, help="Folder of the model.")
@click.option(
    "--tokens",
    type=options.PATH,
    required=True,
    help="vocab.txt or tokenizer.json of the BERT of a TERN or TERAN; the vocabulary of a VSRN, a pickle or JSON.",
)
@click.option(
    "--regions",
    required=True,
    metavar="KIND[:PATH]",
    shell_complete=completers.regions,
    help="What the network was trained on, for example files:DIR.",
)
@click.option("--replace", is_flag=True, help="Replace a model that is there.")
def command(checkpoint: Path, output: Path, tokens: Path, regions: str, replace: bool) -> None:
    """Turn CHECKPOINT, a TERN, TERAN or VSRN that its authors published, into a model folder.

    Nothing in the file is executed, and one that asks for it is refused. Its kind and sizes are read off its tensors,
    each of which has to have its place.

    \b
    Example: boc convert model_best_ndcg.pth -o models/tern --tokens vocab.txt --regions files:features_36
    """
    from boc import plugins

    found = plugins.converter().convert(checkpoint, output, tokens, plugins.region_source(regions), replace=replace)
    settings = ", ".join(f"{name} {value}" for name, value in found.settings.items())
    click.echo(f"{found.kind} of {found.parameters:,} parameters: {settings}")
    if found.training:
        told = (
            f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in found.training.items()
        )
        click.echo(f"the file says: {', '.join(told)}")
    click.echo(f"model in {output}; use it with --encoder {found.kind}:{output}")
