"""boc build-codebook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from boc.cli import options

if TYPE_CHECKING:
    from boc.clustering.codebook import Codebook
    from boc.inputs.features import FeatureFile

KINDS = ("plain", "centered", "rescaled", "words", "learned")


@click.command("build-codebook")
@click.argument("features", type=options.PATH, nargs=-1, required=True)
@click.option("-o", "--output", type=options.PATH, required=True, help="Codebook file to write (.npz).")
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default="plain",
    show_default=True,
    help="What the codebook is book of; see below.",
)
@click.option(
    "--clusters",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Number of centroids, of words (--kind words) or of terms (--kind learned).",
)
def command(features: tuple[Path, ...], output: Path, kind: str, clusters: int) -> None:
    """Make a codebook from FEATURES, feature files of one encoder. Use files of the training photographs.

    \b
    Kinds:
      plain      k-means of a sample of all concepts, of regions and words, as in the paper
      centered   spherical k-means of as many regions as words, less the mean of each, so
                 that both use the same centroids
      rescaled   the same, with more even principal axes, for similarity=deviation
      words      what each of the most frequent words adds to a caption, for --code words
      learned    terms trained so that captions find their pictures, for --code learned

    \b
    Examples: boc build-codebook train.h5 -o codebook.npz
              boc build-codebook train.h5 -o shared.npz --kind centered --clusters 384
              boc build-codebook train.h5 -o words.npz --kind words
              boc build-codebook train.h5 -o terms.npz --kind learned --clusters 1024
    """
    from boc.clustering import codebook
    from boc.inputs.features import FeatureFile
    from boc.outputs import begins, check_output

    check_output(output, begins(*codebook.BEGINS), *features)
    with ExitStack() as stack:
        files = [stack.enter_context(FeatureFile(path)) for path in features]
        book = _codebook(files, kind, clusters, lambda stage: click.echo(stage, err=True))
    book.save(output)
    terms = {"words": "words", "learned": "terms"}.get(kind, f"centroids of {book.concepts} concepts")
    click.echo(f"{len(book)} {terms} in {output}")


def _codebook(files: Sequence[FeatureFile], kind: str, clusters: int, tell: Callable[[str], None]) -> Codebook:
    from boc.clustering import make_codebook
    from boc.clustering.learned_terms import learned_terms
    from boc.clustering.vocabulary import vocabulary

    if kind == "words":
        return vocabulary(files, clusters, tell=tell)
    if kind == "learned":
        return learned_terms(files, clusters, tell=tell)
    moved = kind != "plain"
    book = make_codebook.cluster(
        files,
        clusters,
        balanced=moved,
        spherical=moved,
        centered=kind == "centered",
        rescaled=kind == "rescaled",
        tell=tell,
    )
    tell("labelling")
    return make_codebook.labelled(book, files)
