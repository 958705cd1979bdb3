"""boc convert."""

from __future__ import annotations

from pathlib import Path

import click

from boc.cli import completers, options


@click.command("convert")
@click.argument("checkpoint", type=options.PATH)
@click.option("-o", "--output", type=options.PATH, required=True, help="Model folder to write.")
@click.option(
    "--tokens",
    type=options.PATH,
    required=True,
    help="For a TERN or TERAN, vocab.txt or tokenizer.json of its BERT; for a VSRN, its vocabulary (pickle or JSON).",
)
@click.option(
    "--regions",
    required=True,
    metavar="KIND[:PATH]",
    shell_complete=completers.regions,
    help="Region source that the network was trained on, for example files:DIR.",
)
@click.option("--stop-list", type=options.PATH, help="File of the stop-words that a TERAN leaves out, one per line.")
@click.option("--replace", is_flag=True, help="Replace an existing model.")
def command(checkpoint: Path, output: Path, tokens: Path, regions: str, stop_list: Path | None, replace: bool) -> None:
    """Convert CHECKPOINT, a TERN, TERAN or VSRN published by its authors, to a model folder.

    Nothing in the file is executed; a file that requires execution is refused. The kind and sizes of the network are
    read from the tensors, and every tensor must be used.

    \b
    Example: boc convert model_best_ndcg.pth -o models/tern --tokens vocab.txt --regions files:features_36
    """
    from boc import plugins

    source = plugins.region_source(regions)
    found = plugins.converter().convert(checkpoint, output, tokens, source, stop_list=stop_list, replace=replace)
    settings = ", ".join(f"{name} {value}" for name, value in found.settings.items())
    click.echo(f"{found.kind} of {found.parameters:,} parameters: {settings}")
    if found.training:
        message = (
            f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in found.training.items()
        )
        click.echo(f"the file says: {', '.join(message)}")
    click.echo(f"model in {output}; use it with --encoder {found.kind}:{output}")
