"""boc extract."""

from __future__ import annotations

from pathlib import Path

import click

from boc.cli import _options


@click.command("extract")
@_options.source
@click.option("-o", "--output", type=_options.PATH, required=True, help="Feature file to write (.h5).")
@_options.encoder
@click.option("--regions", metavar="KIND[:PATH]", help="Write regions instead: grid, tflite:FILE or files:DIR.")
@click.option("--dtype", type=click.Choice(["float16", "float32"]), default="float16", show_default=True)
@click.option("--no-concepts", is_flag=True, help="Write global vectors only, not those of regions and words.")
@_options.device
def command(
    source: Path,
    ids: Path | None,
    images: Path | None,
    output: Path,
    encoder: str | None,
    regions: str | None,
    dtype: str,
    no_concepts: bool,
    device: str,
) -> None:
    """Write what an encoder (or a region source) makes of SOURCE to a feature file.

    SOURCE is a folder of pictures, a CSV with the columns image,caption, or a regions file. Killed or stopped,
    the same command goes on where it was.

    \b
    Examples: boc extract photos/ -o photos.h5 --encoder tern:models/flickr8k
              boc extract captions.csv -o regions.h5 --regions grid
    """
    if (encoder is None) == (regions is None):
        raise click.UsageError("give either --encoder (vectors) or --regions (regions to train on)")
    from boc import registry
    from boc.extraction import Extraction
    from boc.features import FeatureFile
    from boc.files import check_writable
    from boc.sources import open_source

    check_writable(output)
    found = open_source(source, ids, images)
    extraction = Extraction(
        found,
        output,
        encoder=registry.encoder(encoder, device) if encoder else None,
        regions=registry.region_source(regions) if regions else None,
        dtype=dtype,
        concepts=not no_concepts,
    )
    _options.show("extracting", extraction.total, extraction.run())
    with FeatureFile(output) as file:
        click.echo(f"{file.count('image')} pictures and {file.count('text')} captions in {output}")
        _options.report(file.failed)
