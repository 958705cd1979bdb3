"""Define the command boc convert."""

from pathlib import Path

import click

from boc.cli import options


@click.command("convert")
@click.argument("checkpoint", type=options.PATH)
@click.option("-o", "--output", type=options.PATH, help="Model folder to write.")
@click.option(
    "--tokens",
    type=options.PATH,
    help="Tokenizer file: vocab.txt or tokenizer.json for TERN, the vocabulary file for VSRN.",
)
@click.option(
    "--regions",
    metavar="KIND[:PATH]",
    help="Region source that the network was trained with, for example files:DIR.",
)
@click.option(
    "--stop-list",
    type=options.PATH,
    help="File of stop words that TERAN ignores, one per line.",
)
def command(
    checkpoint: Path,
    output: Path | None,
    tokens: Path | None,
    regions: str | None,
    stop_list: Path | None,
) -> None:
    """Convert a published CHECKPOINT to a model folder. CHECKPOINT is a TERN, TERAN or VSRN file
    from the authors.

    If CHECKPOINT is a model folder, the command adds ONNX networks to this folder, as boc train
    does.

    Code in the file is not executed. The type and the sizes of the network are derived from the
    tensors; unused tensors are an error.

    \b
    Examples: boc convert model_best.pth -o tern --tokens vocab.txt --regions files:features_36
              boc convert models/mine
    """
    from boc import plugins

    if checkpoint.is_dir():
        if output or tokens or regions or stop_list:
            raise click.UsageError(
                f"{checkpoint} is a model folder, which is converted in place; omit the options",
            )
        options.write_onnx(checkpoint)
        return
    if output is None or tokens is None or regions is None:
        raise click.UsageError(
            "a checkpoint needs -o FOLDER, --tokens FILE and --regions KIND[:PATH]",
        )
    source = plugins.region_source(regions)
    model = plugins.tool("convert").convert(checkpoint, output, tokens, source, stop_list=stop_list)
    settings = ", ".join(f"{name} {value}" for name, value in model.settings.items())
    click.echo(f"{model.kind} of {model.parameters:,} parameters: {settings}")
    options.write_onnx(output)
    click.echo(f"model in {output}; use it with --encoder {model.kind}:{output}")
