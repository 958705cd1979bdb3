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
    help="Candidates to re-rank per hit [default: chosen by --recall; 10 for other codes].",
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
    help="Type of stored vectors [default: as in the feature file, else float16].",
)
@click.option(
    "--concepts",
    type=click.Choice(CONCEPT_DTYPES),
    help="Type of stored concept sets [default: float16 if --rerank needs sets, else not stored].",
)
@options.metadata
@options.ocr
@options.exclude
@options.verbose
@click.option("--replace", is_flag=True, help="Replace an existing index of the same name.")
@click.option(
    "--shard",
    metavar="I/N",
    help="Part I of N parts of the items. The last of N processes publishes the index.",
)
def command(name: str, sources: tuple[Path, ...], code: Code | None, **keywords: Any) -> None:
    """Make the index NAME from everything in SOURCE.

    SOURCE is one or more feature files from one encoder, such as shards. With --encoder, SOURCE is
    one or more folders or .tar files of pictures (WebDataset, img2dataset), a CSV with the columns
    image,caption, JSON Lines or Parquet of path, caption and metadata, or a regions file. With
    several folders, ids begin with the name of the folder. If the command is killed, run it again
    to continue where it stopped. The index is published as a whole at the end.

    SOURCE can also be a vector file from another program: .npy, .fvecs, .fbin, .u8bin, or HDF5 of
    ann-benchmarks. Put sentences into X.txt and ids into X.ids.txt beside X.npy.

    To bring an existing index in line with its pictures, use boc sync. To add other pictures, use
    boc add.

    From a file written by boc copy, the command recreates the index with the same scores; --code
    chooses another code.

    With --shard, several processes or machines load one index onto a server at the same time. Each
    loads its part of the same feature files. The last process publishes the index. If a process
    dies, repeat its command on any machine.

    Pictures have metadata: taken, taken_from, camera, lens, gps_latitude, gps_longitude, width,
    height, orientation, folder, name, size, modified; with --ocr also ocr, the words inside the
    picture. The table given by --metadata has one line per item; its values override the picture's
    own metadata. A caption inherits the values of its picture unless the table has a line for the
    caption. The header declares types: keyword, integer, float, boolean, date, text. A vertical bar
    separates several values.

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
            f"{name}: part {keywords['shard']} is loaded; the index appears when all parts are",
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
