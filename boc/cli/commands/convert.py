"""boc convert."""

from pathlib import Path

import click

from boc.cli import options


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
    help="Region source that the network was trained on, for example files:DIR.",
)
@click.option("--stop-list", type=options.PATH, help="File of the stop-words that a TERAN leaves out, one per line.")
def command(checkpoint: Path, output: Path, tokens: Path, regions: str, stop_list: Path | None) -> None:
    """Convert CHECKPOINT, a TERN, TERAN or VSRN published by its authors, to a model folder.

    Nothing in the file is executed; a file that requires execution is refused. The kind and sizes of the network are
    read from the tensors, and every tensor must be used.

    \b
    Example: boc convert model_best_ndcg.pth -o models/tern --tokens vocab.txt --regions files:features_36
    """
    from boc import plugins

    source = plugins.region_source(regions)
    model = plugins.converter().convert(checkpoint, output, tokens, source, stop_list=stop_list)
    settings = ", ".join(f"{name} {value}" for name, value in model.settings.items())
    click.echo(f"{model.kind} of {model.parameters:,} parameters: {settings}")
    if model.training:
        message = (
            f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in model.training.items()
        )
        click.echo(f"the file says: {', '.join(message)}")
    click.echo(f"model in {output}; use it with --encoder {model.kind}:{output}")
