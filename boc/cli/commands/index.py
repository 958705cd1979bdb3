"""boc index."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from boc.cli import options
from boc.cli.commands import sync

if TYPE_CHECKING:
    from boc.indexes.build import LoadReport
    from boc.names import ConceptDtype, Metric, VectorDtype

MAKING = {"rm", "replace", "shard", *(field.name for field in fields(options.Coding))}


@click.command("index", epilog=options.code_help())
@options.name
@options.sources
@options.at
@options.encoder
@options.coding
@click.option("--rm", type=click.FloatRange(1), default=10.0, show_default=True, help="Candidates re-ranked per hit.")
@options.metadata
@click.option("--append", "appended", is_flag=True, help="Add the items to the existing index NAME, with its code.")
@click.option("--replace", is_flag=True, help="Replace an existing index of that name.")
@click.option("--shard", metavar="I/N", help="Load part I of N of the items; the last of N processes publishes.")
@options.ocr
@options.device
def command(
    name: str,
    sources: tuple[Path, ...],
    ids: Path | None,
    images: Path | None,
    at: str,
    encoder: str | None,
    coding: options.Coding,
    rm: float,
    metadata: Path | None,
    appended: bool,
    replace: bool,
    shard: str | None,
    ocr: bool,
    device: str,
) -> None:
    """Make the index NAME from everything in SOURCE.

    SOURCE is a feature file, or several by one encoder, such as shards; or, with --encoder, a folder of pictures or
    several, a CSV with the columns image,caption, or a regions file. The ids of several folders begin with the names of
    these. After a kill, the same command continues where it stopped. The index is published as a whole at the end.

    If the index NAME of these pictures exists, it is brought in line with them as by boc sync: only new and changed
    pictures are encoded. --replace makes it again.

    From a file of boc export the same index is made again, with its code and the same scores; --code makes another one.

    With --shard several processes or machines load one index on a server at once, each its part of the same feature
    files. The last one to finish publishes. Repeat the command of a process that died, anywhere.

    --append adds the items of SOURCE to an existing index, and replaces items with the same ids.

    Pictures have metadata of their own: taken, camera, lens, gps_latitude, gps_longitude, width, height, orientation,
    folder, name, size, modified; with --ocr also ocr, the words inside them. The table of --metadata has one line per
    item; its values replace these. A caption has the values of its picture, unless it has its own line. The header
    declares types: keyword, integer, float, boolean, date, text. Several values are separated by a vertical bar.

    \b
    Examples: boc index photos photos.h5
              boc index photos photos.h5 --code dictionary:2/64 --rm 30
              boc index photos 1.h5 2.h5 3.h5 4.h5
              boc index photos photos.h5 --code "soft(z=8, codebook=codebook.npz)"
              boc index photos ~/Pictures --encoder tern:models/flickr8k
              boc index photos photos.h5 --metadata photos.csv
              boc index photos exported.h5 --at elastic+https://search.example.org:9200
              boc index photos photos.h5 --shard 3/16 --at elastic+https://search.example.org:9200
              boc index photos new.h5 --append
    """
    keywords: dict[str, Any] = {"at": at, "metadata": metadata, "ids": ids, "images": images}
    keywords |= {"ocr": ocr, "device": device}
    if appended:
        _refuse_code_options(name)
        from boc.indexes.build import append

        with options.bars() as progress:
            named = encoder if options.given("encoder") else None
            report = append(name, sources, encoder=named, progress=progress, **keywords)
        others = f", {report.replaced} of them in place of others" if report.replaced else ""
        click.echo(f"{name}: {_counts(report)} put into it{others}")
    elif not replace and _is_there(name, at, sources):
        _refuse_other_options(name, at, coding, rm)
        sync.bring(name, sources, encoder=encoder if options.given("encoder") else None, **keywords)
        return
    else:
        from boc.indexes.build import build_index

        with options.bars() as progress:
            report = build_index(
                name,
                sources,
                encoder=encoder,
                code=coding.code if options.chosen("code") else None,
                rm=rm if options.chosen("rm") else None,
                rerank=cast("Metric", coding.rerank) if options.chosen("rerank") else None,
                vectors=cast("VectorDtype | None", coding.vectors),
                concepts=cast("ConceptDtype | None", coding.concepts),
                replace=replace,
                shard=shard,
                progress=progress,
                **keywords,
            )
        if not report.published:
            click.echo(f"{name}: part {shard} is loaded; the index appears when all parts are")
            return
        click.echo(f"{name} is up to date: {_counts(report)}" if report.up_to_date else f"{name}: {_counts(report)}")
    options.report(report.failed)


def _refuse_code_options(name: str) -> None:
    """Refuse options that say what an index is to be made like."""
    context = click.get_current_context()
    given = [
        option.opts[0] for option in context.command.params if option.name in MAKING and options.given(option.name)
    ]
    if given:
        raise click.UsageError(f"--append leaves {name} as it was made; leave out {', '.join(given)}")


def _is_there(name: str, at: str, sources: tuple[Path, ...]) -> bool:
    """Whether there is the index already, and the sources are pictures that it may be compared with."""
    from boc import plugins
    from boc.inputs.features import SUFFIXES

    features = any(source.suffix.lower() in SUFFIXES for source in sources)
    return not features and plugins.backend(at).exists(plugins.check_name(name))


def _refuse_other_options(name: str, at: str, coding: options.Coding, rm: float) -> None:
    """BocError if options were given that the index was not made with; before anything is encoded."""
    from boc import plugins
    from boc.codecs import code_of
    from boc.errors import BocError
    from boc.indexes.build import codec_maker

    manifest = plugins.backend(at).open(name).manifest
    stored = {"vectors": manifest.vector_dtype, "concepts": manifest.concept_dtype}
    held = {"rm": manifest.rm, "rerank": manifest.rerank, **stored}
    wanted = {"rm": rm, "rerank": coding.rerank, "vectors": coding.vectors, "concepts": coding.concepts}
    odd = [f"--{option}" for option, value in held.items() if options.given(option) and wanted[option] != value]
    if options.given("code"):
        code = code_of(codec_maker(coding.code)(manifest.identity).config())
        odd += ["--code"] if code != code_of(manifest.codec) else []
    if odd:
        raise BocError(
            f"{at} has an index {name!r} made with another {' and '.join(odd)}; add --replace to make it again, or "
            "leave that out to bring it in line with the pictures"
        )


def _counts(report: LoadReport) -> str:
    return f"{report.images} pictures and {report.texts} captions"
