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
    help="Write regions instead, for example grid or tflite:FILE.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float16", "float32"]),
    default="float16",
    show_default=True,
    help="Of what is written.",
)
@click.option("--no-concepts", is_flag=True, help="Write global vectors only, not those of regions and words.")
@click.option("--shard", metavar="I/N", help="Only part I of N, about equal ones: one command a machine.")
@click.option("--workers", type=click.IntRange(0), help="Processes that decode pictures [default: one a core].")
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
    help="Of the encoder's matrix products.",
)
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True, help="Items encoded at a time.")
@click.option("--compile", "compiled", is_flag=True, help="Compile the network first, for long runs.")
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
    device: str,
) -> None:
    """Write what an encoder (or a region source) makes of SOURCE to a feature file.

    SOURCE is a folder of pictures, a CSV with the columns image,caption, or a regions file. Killed or stopped,
    the same command goes on where it was. Shards, 1/16 to 16/16, share the work among machines; boc index takes all
    their files.

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
    from boc.atomic_files import check_writable
    from boc.inputs.extraction import Extraction
    from boc.inputs.features import FeatureFile
    from boc.inputs.sources import open_source
    from boc.types import Runtime

    check_writable(output)
    found = open_source(source, ids, images)
    if shard is not None:
        found = found.part(shard)
    runtime = Runtime(device, precision, compiled, batch_size)
    extraction = Extraction(
        found,
        output,
        encoder=plugins.encoder(encoder, device, runtime) if encoder else None,
        regions=plugins.region_source(regions) if regions else None,
        dtype=dtype,
        concepts=not no_concepts,
        precision=precision,
        workers=workers,
    )
    options.show("extracting", extraction.total, extraction.run())
    if extraction.speed.images:
        click.echo(_told(extraction), err=True)
    with FeatureFile(output) as file:
        click.echo(f"{file.count('image')} pictures and {file.count('text')} captions in {output}")
        options.report(file.failed)


def _told(extraction: Extraction) -> str:
    speed = extraction.speed
    told = f"{speed.images / speed.seconds:.1f} images a second, {extraction.workers or 'no'} workers"
    if extraction.encoder is None:
        return told
    return f"{told}; the encoder waited for pictures {100 * speed.waiting / speed.seconds:.0f} % of the time"
