"""boc index."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from boc.cli import options

if TYPE_CHECKING:
    from boc.inputs.extraction import Extraction
    from boc.inputs.features import FeatureFiles

MAKING = {"rm", "replace", *(field.name for field in fields(options.Coding))}
NARROWED = "--ids narrows an extraction; give it to boc extract, or index the pictures"


@click.command("index")
@options.name
@options.sources
@options.at
@options.encoder
@options.coding
@click.option(
    "--rm", type=click.FloatRange(1), default=10.0, show_default=True, help="Candidates re-scored for each hit asked."
)
@options.metadata
@click.option("--append", "appended", is_flag=True, help="Put the items into the index NAME, under the code it has.")
@click.option("--replace", is_flag=True, help="Make it anew even if there is one of that name.")
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
    device: str,
) -> None:
    """Make the index NAME of everything in SOURCE.

    SOURCE is a feature file, or several made by one encoder, such as shards; or, with --encoder, a folder of pictures,
    a CSV of image,caption, or a regions file. Killed or stopped, the same command goes on where it was; the index
    appears whole at the end.

    --append puts the items of SOURCE into an index that is there, in place of items of the same ids.

    The table of --metadata has one line an item; a caption has the values of its picture, unless it has a line of its
    own. The header declares types: keyword, integer, float, boolean, date, text; several values stand with | between.

    \b
    Examples: boc index photos photos.h5
              boc index photos photos.h5 --code dictionary --rm 30
              boc index photos 1.h5 2.h5 3.h5 4.h5
              boc index photos photos.h5 --code mixed --codebook codebook.npz
              boc index photos ~/Pictures --encoder tern:models/flickr8k
              boc index photos photos.h5 --metadata photos.csv
              boc index photos new.h5 --append
    """
    if appended:
        _append(name, sources, ids, images, at, encoder, device, metadata)
        return
    book = coding.book()
    from boc import plugins
    from boc.build import build_index, new_manifest
    from boc.inputs.features import FeatureFiles
    from boc.inputs.metadata import Metadata
    from boc.plugins import check_name

    table = Metadata.read(metadata) if metadata is not None else None
    backend = plugins.backend(at)
    existed = backend.exists(check_name(name))
    paths, made = _features(name, sources, ids, images, at, encoder, device, concepts=coding.keeps_concepts)
    with FeatureFiles(paths) as file:
        codec = coding.fitted(file, book)
        manifest = new_manifest(file, codec, rm, rerank=coding.rerank, concepts=coding.concepts, metadata=table)
        if existed and not replace and backend.open(name).manifest.same_contents(manifest):
            click.echo(f"{name} is up to date: {_counts(file)}")
        else:
            if existed and not replace:
                raise click.ClickException(
                    f"{at} has an index {name!r} of something else; add --replace, or choose another name"
                )
            options.show("indexing", _total(file), build_index(file, at, name, codec, manifest, table))
            click.echo(f"{name}: {_counts(file)}")
        failed = file.failed
    if made is not None:
        made.unlink()
    options.report(failed)


def _append(
    name: str,
    sources: tuple[Path, ...],
    ids: Path | None,
    images: Path | None,
    at: str,
    encoder: str | None,
    device: str,
    metadata: Path | None,
) -> None:
    _refuse_code_options(name)
    from boc.build import append
    from boc.inputs.features import FeatureFiles
    from boc.inputs.metadata import Metadata
    from boc.search import Searcher

    table = Metadata.read(metadata) if metadata is not None else None
    searcher = Searcher.open(name, at)
    manifest = searcher.index.manifest
    keep = searcher.codec.reads_concepts or manifest.concept_dtype is not None
    encoder = encoder if encoder is not None and options.given("encoder") else manifest.identity.spec
    paths, made = _features(name, sources, ids, images, at, encoder, device, concepts=keep)
    with FeatureFiles(paths) as file:
        options.show("indexing", _total(file), append(file, at, name, table))
        click.echo(f"{name}: {_counts(file)} put into it")
        failed = file.failed
    if made is not None:
        made.unlink()
    options.report(failed)


def _refuse_code_options(name: str) -> None:
    """Refuse options that say what an index is to be made like."""
    context = click.get_current_context()
    given = [
        option.opts[0] for option in context.command.params if option.name in MAKING and options.given(option.name)
    ]
    if given:
        raise click.UsageError(f"--append leaves {name} as it was made; leave out {', '.join(given)}")


def _features(
    name: str,
    sources: tuple[Path, ...],
    ids: Path | None,
    images: Path | None,
    at: str,
    encoder: str | None,
    device: str,
    *,
    concepts: bool,
) -> tuple[tuple[Path, ...], Path | None]:
    """The embeddings files of SOURCE..., and the one that was made here, to be removed."""
    from boc import plugins
    from boc.inputs.extraction import Extraction
    from boc.inputs.features import is_embeddings
    from boc.inputs.sources import open_source

    if len(sources) > 1:
        for path in sources:
            if path.is_dir() or not is_embeddings(path):
                raise click.UsageError(
                    f"{path} holds no vectors; several sources must all be files of boc extract --encoder"
                )
        if ids is not None:
            raise click.UsageError(NARROWED)
        return sources, None
    source = sources[0]
    found = open_source(source, ids, images)
    if found.file is not None and is_embeddings(found.file):
        if ids is not None:
            raise click.UsageError(NARROWED)
        return sources, None
    if encoder is None:
        raise click.UsageError(f"{source} holds no vectors yet; name the encoder to make them: --encoder tern:FOLDER")
    place = Path(at.partition(":")[2]).expanduser() if at.startswith("file:") else Path()
    path = place / (f"{name}.concepts.h5" if concepts else f"{name}.features.h5")
    extraction = Extraction(
        found,
        path,
        encoder=plugins.encoder(encoder, device),
        concepts=concepts,
        workers=None,
    )
    if not (path.exists() and _same(path, extraction)):
        path.unlink(missing_ok=True)
        options.show("encoding", extraction.total, extraction.run())
    return (path,), path


def _same(path: Path, extraction: Extraction) -> bool:
    """Whether a file left by a run killed between its two halves is the one wanted."""
    from boc.inputs.features import FeatureFile

    with FeatureFile(path) as file:
        return file.header == extraction.header


def _total(file: FeatureFiles) -> int:
    return file.count("image") + file.count("text")


def _counts(file: FeatureFiles) -> str:
    return f"{file.count('image')} pictures and {file.count('text')} captions"
