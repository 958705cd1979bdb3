"""boc index."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boc.cli import _options

if TYPE_CHECKING:
    from boc.extraction import Extraction
    from boc.features import FeatureFiles

SIGNED_CODES = ("scalar", "bits", "permutation")
CONCEPT_CODES = ("hard", "soft", "mixed")
NARROWED = "--ids narrows an extraction; give it to boc extract, or index the pictures"


@click.command("index")
@click.argument("name")
@_options.sources
@_options.at
@_options.encoder
@click.option(
    "--code",
    type=click.Choice([*SIGNED_CODES, "dictionary", *CONCEPT_CODES]),
    default="scalar",
    show_default=True,
    help="How vectors become term frequencies; hard, soft and mixed read concept sets.",
)
@click.option(
    "--z", type=click.IntRange(1), help="Terms kept of an item [default: 64; dictionary 2; soft: all of each concept]."
)
@click.option("--query-z", type=click.IntRange(1), help="Terms kept of a query [default: 128; dictionary 64].")
@click.option("--terms", type=click.IntRange(1), help="Size of the dictionary [default: by the number of items].")
@click.option("--codebook", type=_options.PATH, help="Of boc build-codebook, for hard, soft and mixed.")
@click.option("--similarity", type=click.Choice(["inverse", "gaussian", "printed"]), default="inverse", help="Of soft.")
@click.option("--aggregate", type=click.Choice(["sum", "max"]), default="sum", show_default=True, help="Of soft.")
@click.option(
    "--stopwords",
    type=click.Choice(["keep", "drop"]),
    default="keep",
    show_default=True,
    help="Concepts of English stop-words, for hard, soft and mixed.",
)
@click.option(
    "--bits", type=click.IntRange(1, 15), default=4, show_default=True, help="Of a frequency, for --code bits."
)
@click.option("--plain", is_flag=True, help="Neither centre nor rotate first: the codes as the papers have them.")
@click.option("--shift", is_flag=True, help="Keep all terms, hence the order of the dense vectors.")
@click.option("--expand", type=click.IntRange(1), default=1, show_default=True, help="Rotations side by side.")
@click.option(
    "--rm", type=click.FloatRange(1), default=10.0, show_default=True, help="Candidates re-scored for each hit asked."
)
@click.option(
    "--rerank",
    type=click.Choice(["dot", "mrsw", "mwsr", "symm", "mravgw"]),
    default="dot",
    show_default=True,
    help="Score them by dense vectors, or by an alignment of concept sets.",
)
@click.option(
    "--concepts",
    type=click.Choice(["float16", "int8"]),
    help="Store concept sets, as this type [default: float16 if --rerank aligns them].",
)
@click.option("--replace", is_flag=True, help="Make it anew even if there is one of that name.")
@_options.device
def command(
    name: str,
    sources: tuple[Path, ...],
    ids: Path | None,
    images: Path | None,
    at: str,
    encoder: str | None,
    code: str,
    z: int | None,
    query_z: int | None,
    terms: int | None,
    codebook: Path | None,
    similarity: str,
    aggregate: str,
    stopwords: str,
    bits: int,
    plain: bool,
    shift: bool,
    expand: int,
    rm: float,
    rerank: str,
    concepts: str | None,
    replace: bool,
    device: str,
) -> None:
    """Make the index NAME of everything in SOURCE.

    SOURCE is a feature file, or several made by one encoder, such as shards; or, with --encoder, a folder of pictures,
    a CSV of image,caption, or a regions file. Killed or stopped, the same command goes on where it was; the index
    appears whole at the end.

    \b
    Examples: boc index photos photos.h5
              boc index photos photos.h5 --code dictionary --rm 30
              boc index photos 1.h5 2.h5 3.h5 4.h5
              boc index photos photos.h5 --code mixed --codebook codebook.npz
              boc index photos ~/Pictures --encoder tern:models/flickr8k
    """
    _check(code, codebook, terms, plain=plain, shift=shift, expand=expand)
    from boc import registry
    from boc.codebook import Codebook
    from boc.codecs import concept_code, global_code
    from boc.features import FeatureFiles
    from boc.pipeline import budgets, build_index, check_name, fit_code, new_manifest

    book = Codebook.load(codebook) if codebook is not None else None
    backend = registry.backend(at)
    existed = backend.exists(check_name(name))
    keep = book is not None or concepts is not None or rerank != "dot"
    paths, made = _features(name, sources, ids, images, at, encoder, device, concepts=keep)
    with FeatureFiles(paths) as file:
        if book is not None:
            book.check(file.header.identity)
            kind: dict[str, Any] = {"similarity": similarity, "aggregate": aggregate}
            kind["drop_stopwords"] = stopwords == "drop"
            unfitted = concept_code(book, code, z=z, query_z=query_z, terms=terms, **kind)
        else:
            if code in SIGNED_CODES and not shift:
                z, query_z = budgets(file.header.dim * expand, z, query_z)
            axes = {"center": not plain, "rotate": not plain, "shift": shift}
            unfitted = global_code(code, z=z, query_z=query_z, terms=terms, expand=expand, bits=bits, **axes)
        codec = fit_code(file, unfitted)
        manifest = new_manifest(file, codec, rm, rerank=rerank, concepts=concepts)
        if existed and not replace and backend.open(name).manifest.same_contents(manifest):
            click.echo(f"{name} is up to date: {_counts(file)}")
        else:
            if existed and not replace:
                raise click.ClickException(
                    f"{at} has an index {name!r} of something else; add --replace, or choose another name"
                )
            _options.show(
                "indexing", file.count("image") + file.count("text"), build_index(file, at, name, codec, manifest)
            )
            click.echo(f"{name}: {_counts(file)}")
        failed = file.failed
    if made is not None:
        made.unlink()
    _options.report(failed)


def _check(code: str, codebook: Path | None, terms: int | None, *, plain: bool, shift: bool, expand: int) -> None:
    """Refuse options that the code has no use for, before any work."""
    if plain and expand > 1:
        raise click.UsageError("--expand rotates, --plain does not; give one of them")
    if (codebook is not None) != (code in CONCEPT_CODES):
        raise click.UsageError(
            f"--code {code} takes no --codebook; choose {', '.join(CONCEPT_CODES)}"
            if codebook is not None
            else f"--code {code} needs --codebook FILE; make one with boc build-codebook FEATURES -o FILE"
        )
    if (shift or expand > 1) and code not in SIGNED_CODES:
        raise click.UsageError(f"--shift and --expand are for --code {', '.join(SIGNED_CODES)}; leave them out")
    if plain and code in CONCEPT_CODES:
        raise click.UsageError(f"--plain is for codes of the global vector, not for --code {code}; leave it out")
    if terms is not None and code not in ("dictionary", "mixed"):
        raise click.UsageError("--terms is the size of a dictionary; add --code dictionary or mixed")


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
    from boc import registry
    from boc.extraction import Extraction
    from boc.features import is_embeddings
    from boc.sources import open_source

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
        encoder=registry.encoder(encoder, device),
        concepts=concepts,
        workers=None,
    )
    if not (path.exists() and _same(path, extraction)):
        path.unlink(missing_ok=True)
        _options.show("encoding", extraction.total, extraction.run())
    return (path,), path


def _same(path: Path, extraction: Extraction) -> bool:
    """Whether a file left by a run killed between its two halves is the one wanted."""
    from boc.features import FeatureFile

    with FeatureFile(path) as file:
        return file.header == extraction.header


def _counts(file: FeatureFiles) -> str:
    return f"{file.count('image')} pictures and {file.count('text')} captions"
