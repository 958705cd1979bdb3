"""boc build-codebook."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from boc.cli import options


@click.command("build-codebook")
@click.argument("features", type=options.PATH, nargs=-1, required=True)
@click.option("-o", "--output", type=options.PATH, required=True, help="Codebook file to write (.npz).")
@click.option(
    "--clusters",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Number of centroids (of words with --dictionary and --words, of terms with --learned).",
)
@click.option(
    "--sample", type=click.IntRange(1), default=100_000, show_default=True, help="Number of concepts to cluster."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the sample and of the clustering.")
@click.option(
    "--stopwords",
    type=click.Choice(["keep", "drop"]),
    default="keep",
    show_default=True,
    help="Whether concepts of English stop-words are clustered too.",
)
@click.option("--words-only", is_flag=True, help="Cluster the concepts of words only, without those of regions.")
@click.option(
    "--centered",
    is_flag=True,
    help="Subtract the mean concept of each modality first, so that words and regions use the same centroids.",
)
@click.option(
    "--rescaled",
    is_flag=True,
    help="Do so, and make the principal axes of the concepts more even, for similarity=deviation.",
)
@click.option("--balanced", is_flag=True, help="Sample equally many concepts of words and of regions.")
@click.option(
    "--dictionary",
    is_flag=True,
    help="Do not cluster; take the mean concepts of the most frequent English words of the captions.",
)
@click.option(
    "--words",
    "written",
    is_flag=True,
    help="Do not cluster; learn what each of the most frequent words adds to a caption, for --code words.",
)
@click.option(
    "--learned",
    is_flag=True,
    help="Learn terms by which captions find their pictures, beginning with a clustering, for --code learned.",
)
@click.option(
    "--decontextualized",
    is_flag=True,
    help="Fail if the concepts of FEATURES have context; those of the encoder FOLDER?alone have none.",
)
@click.option("--spherical", is_flag=True, help="Cluster by cosine (spherical k-means), not by Euclidean distance.")
def command(
    features: tuple[Path, ...],
    output: Path,
    clusters: int,
    sample: int,
    seed: int,
    stopwords: str,
    words_only: bool,
    centered: bool,
    rescaled: bool,
    balanced: bool,
    dictionary: bool,
    written: bool,
    learned: bool,
    decontextualized: bool,
    spherical: bool,
) -> None:
    """Make a codebook from FEATURES, feature files of one encoder.

    The centroids come from k-means over a sample of the concept vectors of regions and words, or, with
    --dictionary, are the mean vectors of frequent words. With --words they are what frequent words add to the vector
    of a caption; with --learned, trained terms. Use files of the training photographs.

    \b
    Examples: boc build-codebook train.h5 -o codebook.npz
              boc build-codebook train.h5 -o dictionary.npz --dictionary
              boc build-codebook train.h5 -o words.npz --words
              boc build-codebook train.h5 -o terms.npz --learned --clusters 1024
    """
    sampling = stopwords == "drop" or words_only or balanced or spherical or centered or rescaled
    others = dictionary or decontextualized or sampling
    if written and (others or learned):
        raise click.UsageError("--words learns words from captions, not from concepts; leave the other choices out")
    if learned and others:
        raise click.UsageError("--learned learns terms from whole pictures and captions; leave the other choices out")
    if dictionary and sampling:
        raise click.UsageError("--dictionary takes words and no stop-words anyway; leave the other choices out")
    if words_only and balanced:
        raise click.UsageError("--words-only leaves nothing to balance; give it or --balanced")
    from boc.clustering import codebook, make_codebook
    from boc.clustering.learned_terms import learned_terms
    from boc.clustering.vocabulary import vocabulary
    from boc.inputs.features import FeatureFile
    from boc.outputs import begins, check_output
    from boc.types import MODALITIES

    def tell(stage: str) -> None:
        click.echo(stage, err=True)

    check_output(output, begins(*codebook.BEGINS), *features)
    with ExitStack() as stack:
        files = [stack.enter_context(FeatureFile(path)) for path in features]
        if decontextualized:
            make_codebook.check_alone(files)
        if written:
            made = vocabulary(files, clusters, tell=tell)
        elif learned:
            made = learned_terms(files, clusters, seed=seed, tell=tell)
        elif dictionary:
            made = make_codebook.dictionary(files, clusters, tell=tell)
        else:
            made = make_codebook.cluster(
                files,
                clusters,
                sample=sample,
                seed=seed,
                modalities=("text",) if words_only else MODALITIES,
                drop_stopwords=stopwords == "drop",
                balanced=balanced,
                spherical=spherical,
                centered=centered,
                rescaled=rescaled,
                tell=tell,
            )
        if not (written or learned):
            tell("labelling")
            made = make_codebook.labelled(made, files)
    made.save(output)
    of = "" if written or learned else f" of {made.concepts} concepts"
    named = "words" if dictionary or written else "terms" if learned else "centroids"
    click.echo(f"{len(made)} {named}{of} in {output}")
