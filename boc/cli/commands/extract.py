"""Define the command boc extract."""

from pathlib import Path
from typing import Any

import click

from boc.cli import options

SETTINGS = {
    "precision": click.Choice(["float32", "bfloat16", "float16"]),
    "batch_size": click.IntRange(1),
    "workers": click.IntRange(0),
    "dtype": click.Choice(["float16", "float32"]),
    "concepts": click.BOOL,
    "ocr": click.BOOL,
}


@click.command("extract")
@options.source
@options.output("Feature file to write (.h5).")
@options.encoder
@click.option(
    "--regions",
    metavar="KIND[:PATH]",
    help="Region source, such as grid; the file then contains regions instead of vectors.",
)
@click.option(
    "--shard",
    metavar="I/N",
    help="Process only part I of N, so that several machines can share the work.",
)
@options.settings(SETTINGS)
@options.device
@options.exclude
@options.verbose
def command(
    source: Path,
    ids: Path | None,
    images: Path | None,
    output: Path,
    encoder: str | None,
    regions: str | None,
    shard: str | None,
    settings: dict[str, Any],
    device: str,
    exclude: tuple[str, ...],
) -> None:
    """Write the vectors or regions of SOURCE to a feature file.

    SOURCE is a folder or a .tar file of pictures (WebDataset, img2dataset), a CSV with the columns
    image,caption, a JSON Lines or Parquet file with paths, captions and metadata, or a regions
    file. If the command is killed, run it again to resume. To split the work among 16 machines, run
    the shards 1/16 to 16/16.

    \b
    Settings for --set:
      precision    precision of matrix products: float32, bfloat16 or float16 [float32]
      batch_size   number of items per batch [64]
      workers      number of processes that decode pictures [one per core]
      dtype        type of the vectors in the file: float16 or float32 [float16]
      concepts     false: write only global vectors, without vectors of regions and words [true]
      ocr          true: recognise text in pictures for boc search --hybrid [false]

    \b
    Examples: boc extract photos/ -o photos.h5 --encoder tern:models/flickr8k
              boc extract captions.csv -o regions.h5 --regions grid
              boc extract photos/ -o 3.h5 --shard 3/16 --encoder tern:mine --set precision=bfloat16
    """
    # An option on the command line overrides the other option in the settings.
    if options.on_command_line("regions") != options.on_command_line("encoder"):
        if options.on_command_line("regions"):
            encoder = None
        else:
            regions = None
    if (encoder is None) == (regions is None):
        raise click.UsageError(
            "give either --encoder (for vectors) or --regions (for regions to train on)",
        )
    from boc import plugins
    from boc.inputs.extraction import Extraction
    from boc.inputs.features import FeatureFile, is_feature_file
    from boc.inputs.sources import open_source
    from boc.outputs import check_output
    from boc.types import Runtime

    check_output(output, is_feature_file, source, ids)
    data = open_source(source, ids, images, exclude)
    if shard is not None:
        data = data.part(shard)
    batch = settings.pop("batch_size", 64)
    runtime = Runtime(device, settings.get("precision", "float32"), batch)
    extraction = Extraction(
        data,
        output,
        encoder=plugins.encoder(encoder, device, runtime) if encoder else None,
        regions=plugins.region_source(regions) if regions else None,
        **{"workers": None, **settings},
    )
    options.show(extraction.steps("extracting"))
    if extraction.speed.images:
        speed = extraction.speed
        options.tell(
            f"{speed.images / speed.seconds:.1f} images per second, "
            f"{extraction.workers or 'no'} workers",
        )
    with FeatureFile(output) as file:
        pictures = options.amount(file.count("image"), "picture")
        click.echo(f"{pictures} and {options.amount(file.count('text'), 'caption')} in {output}")
        options.report(file.failures, file.count("image") + file.count("text"))
