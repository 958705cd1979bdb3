"""boc build-codebook."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from boc.cli import options


@click.command("build-codebook")
@click.argument("features", type=options.PATH, nargs=-1, required=True)
@click.option("-o", "--output", type=options.PATH, required=True, help="Codebook file to write (.npz).")
@click.option("--clusters", type=click.IntRange(1), default=1000, show_default=True, help="Centroids, or words.")
@click.option("--sample", type=click.IntRange(1), default=100_000, show_default=True, help="Concepts to cluster.")
@click.option("--seed", default=0, show_default=True, help="Of the sample and the clustering.")
@click.option(
    "--stopwords",
    type=click.Choice(["keep", "drop"]),
    default="keep",
    show_default=True,
    help="Concepts of English stop-words.",
)
@click.option("--words-only", is_flag=True, help="Cluster concepts of words only, not of regions.")
@click.option("--balanced", is_flag=True, help="Sample as many concepts of words as of regions.")
@click.option("--dictionary", is_flag=True, help="No clusters: the most frequent English words of the captions.")
@click.option("--decontextualized", is_flag=True, help="Insist on concepts without context (encoder FOLDER?alone).")
@click.option("--spherical", is_flag=True, help="Compare directions of concepts, not places.")
def command(
    features: tuple[Path, ...],
    output: Path,
    clusters: int,
    sample: int,
    seed: int,
    stopwords: str,
    words_only: bool,
    balanced: bool,
    dictionary: bool,
    decontextualized: bool,
    spherical: bool,
) -> None:
    """Make a codebook of the concepts in FEATURES, feature files of one encoder.

    The centroids are those of k-means over a sample of the concept vectors of regions and words, or, with
    --dictionary, the mean vectors of frequent words. Use files of the training photographs.

    \b
    Examples: boc build-codebook train.h5 -o codebook.npz
              boc build-codebook train.h5 -o words.npz --dictionary
    """
    if dictionary and (stopwords == "drop" or words_only or balanced or spherical):
        raise click.UsageError("--dictionary takes words and no stop-words anyway; leave the other choices out")
    if words_only and balanced:
        raise click.UsageError("--words-only leaves nothing to balance; give it or --balanced")
    from boc.atomic_files import check_writable
    from boc.clustering import codebook
    from boc.inputs.features import FeatureFile
    from boc.types import MODALITIES

    def tell(stage: str) -> None:
        click.echo(stage, err=True)

    check_writable(output)
    with ExitStack() as stack:
        files = [stack.enter_context(FeatureFile(path)) for path in features]
        if decontextualized:
            codebook.check_alone(files)
        if dictionary:
            made = codebook.dictionary(files, clusters, tell=tell)
        else:
            made = codebook.cluster(
                files,
                clusters,
                sample=sample,
                seed=seed,
                modalities=("text",) if words_only else MODALITIES,
                drop_stopwords=stopwords == "drop",
                balanced=balanced,
                spherical=spherical,
                tell=tell,
            )
        tell("labelling")
        made = codebook.labelled(made, files)
    made.save(output)
    click.echo(f"{len(made)} {'words' if dictionary else 'centroids'} of {made.concepts} concepts in {output}")
