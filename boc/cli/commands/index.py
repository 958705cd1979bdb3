"""Define the command boc index."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from boc.cli import options
from boc.cli.commands.copy import sentence
from boc.names import CONCEPT_DTYPES, METRICS, VECTOR_DTYPES

if TYPE_CHECKING:
    from boc.codecs import Code


@click.command("index", epilog=options.code_help())
@options.name
@options.sources
@options.at
@options.encoder
@options.code
@click.option(
    "--rm",
    type=click.FloatRange(1),
    help="Candidates to re-rank per hit [default: chosen to reach --recall; 10 for other codes].",
)
@options.recall
@click.option(
    "--rerank",
    type=click.Choice(METRICS),
    help="Score for re-ranking, by vectors or by concept sets [default: dot].",
)
@click.option(
    "--vectors",
    type=click.Choice(VECTOR_DTYPES),
    help="Type of the stored vectors [default: as in a feature file or an int8 file, otherwise "
    "float16].",
)
@click.option(
    "--concepts",
    type=click.Choice(CONCEPT_DTYPES),
    help="Data type for storing concept sets [default: float16 if --rerank requires them; "
    "otherwise they are not stored].",
)
@options.metadata
@options.ocr
@options.exclude
@options.verbose
@click.option("--replace", is_flag=True, help="Replace an existing index of the same name.")
@click.option(
    "--shard",
    metavar="I/N",
    help="Load only part I of N. The last of the N processes publishes the index.",
)
def command(name: str, sources: tuple[Path, ...], code: Code | None, **keywords: Any) -> None:
    """Build the index NAME from everything in SOURCE.

    SOURCE is one or more feature files from one encoder, for example shards. With --encoder, SOURCE
    is one or more folders or .tar files of pictures (WebDataset, img2dataset), a CSV with the
    columns image,caption, a JSON Lines or Parquet file with paths, captions and metadata, or a
    regions file. With several folders, each id begins with the name of its folder. If the command
    is killed, run it again to resume. The index becomes visible only when it is complete.

    SOURCE can also be a vector file from another program: .npy, .fvecs, .fbin, .u8bin, or an HDF5
    file from ann-benchmarks. Sentences and ids for X.npy are read from X.txt and X.ids.txt in the
    same folder.

    To update an existing index after its pictures have changed, use boc sync. To add other
    pictures, use boc add.

    If SOURCE is a file written by boc copy, the command recreates the index with the same scores;
    --code selects another code.

    With --shard, several processes or machines load one index onto a server at the same time. Each
    process loads its part of the same feature files, and the last process publishes the index. If a
    process dies, run its command again on any machine.

    The metadata of pictures are read from their files: taken, taken_from, camera, lens,
    gps_latitude, gps_longitude, width, height, orientation, folder, name, size, modified; with
    --ocr also ocr, the text recognised in the picture. The --metadata table has one line per item,
    whose values override the values from the file. A caption inherits the values of its picture
    unless the table has a line for the caption. The header declares the types keyword, integer,
    float, boolean, date or text. Several values are separated by vertical bars.

    \b
    Examples: boc index photos photos.h5
              boc index photos photos.h5 --code dictionary:2/64 --rm 30
              boc index photos photos.h5 --code "soft(z=8, codebook=codebook.npz)"
              boc index photos ~/Pictures --encoder tern:models/flickr8k
              boc index shards 00000.tar 00001.tar --encoder clip
              boc index mine images.npy captions.npy
              boc index photos copy.zip --at elastic+https://search.example.org:9200
              boc index photos photos.h5 --shard 3/16 --at elastic+https://search.example.org:9200
    """
    from boc import plugins
    from boc.inputs.metadata import values_of
    from boc.inputs.vector_files import has_vectors
    from boc.manage.build import build_index

    given = click.get_current_context().get_parameter_source("code")
    if given is ParameterSource.DEFAULT:
        code = None
    with options.bars() as progress:
        report = build_index(name, sources, code=code, progress=progress, **keywords)
    if not report.published:
        click.echo(
            f"{name}: part {keywords['shard']} is loaded; the index appears when all parts are "
            "loaded",
        )
        return
    click.echo(sentence(name, report))
    options.report(report.failed, report.images + report.texts)
    at = "" if keywords["at"] == "file:boc-data" else f" --at {shlex.quote(keywords['at'])}"
    index = plugins.backend(keywords["at"]).open(name)
    texts = [item.content for item in index.find(index.sample(1, "text"))]
    for item in index.find(index.sample(100, "image")):
        texts += values_of(item.fields, "keywords")
    query = shlex.quote([*texts, "a dog in the snow"][0])
    if all(map(has_vectors, sources)):
        query = "--like ID"
    options.tell(f"Next: boc search {name}{at} {query}, or boc serve {name}{at} --open")
