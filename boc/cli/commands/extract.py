"""boc extract."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from boc.cli import completers, options

if TYPE_CHECKING:
    from boc.inputs.extraction import Extraction


@click.command("extract")
@options.source
@click.option("-o", "--output", type=options.PATH, required=True, help="Feature file to write (.h5).")
@options.encoder
@click.option(
    "--regions",
    metavar="KIND[:PATH]",
    shell_complete=completers.regions,
    help="Write the regions of this source instead of vectors, for example grid or files:DIR.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float16", "float32"]),
    default="float16",
    show_default=True,
    help="Type of the numbers in the file.",
)
@click.option(
    "--no-concepts", is_flag=True, help="Write global vectors only, without the concepts of regions and words."
)
@click.option("--shard", metavar="I/N", help="Only part I of N parts of similar size: one command per machine.")
@click.option(
    "--workers", type=click.IntRange(0), help="Number of processes that decode pictures [default: one per core]."
)
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
    help="Precision of the matrix products of the encoder.",
)
@click.option(
    "--batch-size", type=click.IntRange(1), default=64, show_default=True, help="Number of items encoded at a time."
)
@click.option(
    "--compile",
    "compiled",
    is_flag=True,
    help="Compile the network first, which takes about a minute and pays on long runs.",
)
@options.ocr
@options.device
def command(
    source: Path,
    ids: Path | None,
    images: Path | None,
    output: Path,
    encoder: str | None,
    regions: str | None,
    dtype: str,
    no_concepts: bool,
    shard: str | None,
    workers: int | None,
    precision: Literal["float32", "bfloat16", "float16"],
    batch_size: int,
    compiled: bool,
    ocr: bool,
    device: str,
) -> None:
    """Encode SOURCE, or extract its regions, and write the result to a feature file.

    SOURCE is a folder of pictures, a CSV with the columns image,caption, or a regions file. After a kill, the same
    command continues where it stopped. Shards, for example 1/16 to 16/16, share the work among machines; boc index
    takes all their files.

    \b
    Examples: boc extract photos/ -o photos.h5 --encoder tern:models/flickr8k
              boc extract captions.csv -o regions.h5 --regions grid
              boc extract photos/ -o 3.h5 --shard 3/16 --encoder tern:models/flickr8k --precision bfloat16
    """
    if regions is not None and options.given("regions") and not options.given("encoder"):
        encoder = None
    elif encoder is not None and options.given("encoder") and not options.given("regions"):
        regions = None
    if (encoder is None) == (regions is None):
        raise click.UsageError("give either --encoder (vectors) or --regions (regions to train on)")
    from boc import plugins
    from boc.inputs.extraction import Extraction
    from boc.inputs.features import FeatureFile, is_feature_file
    from boc.inputs.sources import open_source
    from boc.outputs import check_output
    from boc.types import Runtime

    check_output(output, is_feature_file, source, ids)
    data = open_source(source, ids, images)
    if shard is not None:
        data = data.part(shard)
    runtime = Runtime(device, precision, compiled, batch_size)
    extraction = Extraction(
        data,
        output,
        encoder=plugins.encoder(encoder, device, runtime) if encoder else None,
        regions=plugins.region_source(regions) if regions else None,
        dtype=dtype,
        concepts=not no_concepts,
        precision=precision,
        workers=workers,
        ocr=ocr,
    )
    options.show("extracting", extraction.total, extraction.run())
    if extraction.speed.images:
        click.echo(_told(extraction), err=True)
    with FeatureFile(output) as file:
        click.echo(f"{file.count('image')} pictures and {file.count('text')} captions in {output}")
        options.report(file.failed)


def _told(extraction: Extraction) -> str:
    speed = extraction.speed
    text = f"{speed.images / speed.seconds:.1f} images per second, {extraction.workers or 'no'} workers"
    if extraction.encoder is None:
        return text
    return f"{text}; the encoder waited for pictures {100 * speed.waiting / speed.seconds:.0f} % of the time"
