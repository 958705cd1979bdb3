"""boc index."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from boc.cli import options
from boc.names import CONCEPT_DTYPES, METRICS, VECTOR_DTYPES

if TYPE_CHECKING:
    from boc.codecs import Code
    from boc.names import ConceptDtype, Metric, VectorDtype


@click.command("index", epilog=options.code_help())
@options.name
@options.sources
@options.at
@options.encoder
@click.option(
    "--code",
    type=options.CodeType(),
    default="dictionary",
    show_default=True,
    help="How vectors become terms: NAME:Z/QUERY_Z or NAME(ARGUMENT=VALUE, ...), listed below.",
)
@click.option(
    "--rm",
    type=click.FloatRange(1),
    default=10.0,
    show_default="chosen for --recall; 10 for other codes",
    help="Candidates re-ranked per hit.",
)
@click.option(
    "--recall",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Share of the exact ten that a dictionary is to find; chooses its budgets [default: 0.98].",
)
@click.option(
    "--rerank",
    type=click.Choice(METRICS),
    default="dot",
    show_default=True,
    help="Default re-ranking of candidates: by dense vectors, or by an alignment of concept sets.",
)
@click.option(
    "--vectors",
    type=click.Choice(VECTOR_DTYPES),
    help="Round vectors to this type; int8 has half the bytes of float16 [default: as the feature file has them].",
)
@click.option(
    "--concepts",
    type=click.Choice(CONCEPT_DTYPES),
    help="Store concept sets with this type [default: float16 if --rerank needs them, else none].",
)
@options.metadata
@options.ocr
@options.exclude
@options.verbose
@click.option("--replace", is_flag=True, help="Replace an existing index of that name.")
@click.option("--shard", metavar="I/N", help="Load part I of N of the items; the last of N processes publishes.")
def command(
    name: str,
    sources: tuple[Path, ...],
    images: Path | None,
    at: str,
    encoder: str | None,
    code: Code,
    rm: float,
    recall: float | None,
    rerank: str,
    vectors: str | None,
    concepts: str | None,
    metadata: Path | None,
    ocr: bool,
    exclude: tuple[str, ...],
    replace: bool,
    shard: str | None,
) -> None:
    """Make the index NAME from everything in SOURCE.

    SOURCE is a feature file, or several by one encoder, such as shards; or, with --encoder, a folder or .tar of
    pictures (WebDataset, img2dataset) or several, a CSV with the columns image,caption, JSON Lines or Parquet of path,
    caption and metadata, COCO's or Karpathy's JSON, or a regions file. The ids of several folders begin with the names
    of these. After a kill, the same command continues where it stopped. The index is published as a whole at the end.

    SOURCE can also be vectors in files of others: .npy, .npz, .fvecs, .fbin, .u8bin, HDF5 of ann-benchmarks, with X.txt
    and X.ids.txt beside X.npy; or sparse ones, .csr and JSON Lines of {"id": ..., "vector": {term: weight}}.

    To bring an existing index in line with its pictures, use boc sync; to add others, boc add.

    From a file of boc copy the same index is made again, with its code and the same scores; --code makes another one.

    With --shard several processes or machines load one index on a server at once, each its part of the same feature
    files. The last one to finish publishes. Repeat the command of a process that died, anywhere.

    Pictures have metadata: taken, taken_from, camera, lens, gps_latitude, gps_longitude, width, height, orientation,
    folder, name, size, modified; with --ocr also ocr, the words inside them. The table of --metadata has one line per
    item; its values replace these. A caption has the values of its picture, unless it has its own line. The header
    gives types: keyword, integer, float, boolean, date, text. A vertical bar separates several values.

    \b
    Examples: boc index photos photos.h5
              boc index photos photos.h5 --code dictionary:2/64 --rm 30
              boc index photos 1.h5 2.h5 3.h5 4.h5
              boc index photos photos.h5 --code "soft(z=8, codebook=codebook.npz)"
              boc index photos ~/Pictures --encoder tern:models/flickr8k
              boc index shards 00000.tar 00001.tar --encoder clip
              boc index photos photos.h5 --metadata photos.csv
              boc index mine images.npy captions.npy
              boc index photos copy.h5 --at elastic+https://search.example.org:9200
              boc index photos photos.h5 --shard 3/16 --at elastic+https://search.example.org:9200
    """
    from boc.indexes.build import build_index

    with options.bars() as progress:
        report = build_index(
            name,
            sources,
            encoder=encoder,
            at=at,
            code=code if options.is_set("code") else None,
            rm=rm if options.is_set("rm") else None,
            recall=recall,
            rerank=cast("Metric", rerank) if options.is_set("rerank") else None,
            vectors=cast("VectorDtype | None", vectors),
            concepts=cast("ConceptDtype | None", concepts),
            metadata=metadata,
            images=images,
            exclude=exclude,
            replace=replace,
            ocr=ocr,
            shard=shard,
            progress=progress,
        )
    counts = f"{report.images} pictures and {report.texts} captions"
    if not report.published:
        click.echo(f"{name}: part {shard} is loaded; the index appears when all parts are")
        return
    click.echo(f"{name} is up to date: {counts}" if report.up_to_date else f"{name}: {counts}")
    options.report(report.failed, report.images + report.texts)
