"""Define the command boc build-codebook."""

from contextlib import ExitStack
from pathlib import Path

import click

from boc.cli import options
from boc.names import CODEBOOKS


@click.command("build-codebook")
@click.argument("features", type=options.PATH, nargs=-1, required=True)
@options.output("Codebook file to write (.npz).")
@click.option(
    "--clusters",
    type=click.IntRange(1),
    help="Number of terms [default: 1000; for centroids, at most the square root of the number of "
    "concepts].",
)
@click.option(
    "--kind",
    type=click.Choice(CODEBOOKS),
    help="Kind of terms; see below [default: plain or centered, chosen by a trial].",
)
def command(
    features: tuple[Path, ...],
    output: Path,
    clusters: int | None,
    kind: str | None,
) -> None:
    """Build a codebook for codes that need one. FEATURES are feature files from one encoder,
    preferably of its training pictures.

    \b
    Kinds:
      plain     k-means centroids of regions and words, as in the papers; for --code hard and soft
      centered  like plain, after subtracting the mean of each modality, to share the centroids
      rescaled  like centered, with more even axes; for --code "soft(similarity=deviation, ...)"
      words     contribution of each frequent word to the vector of a caption; for --code words
      learned   terms trained so that captions find their pictures; for --code learned

    \b
    Examples: boc build-codebook train.h5 -o codebook.npz
              boc build-codebook train.h5 -o words.npz --kind words
              boc build-codebook train.h5 -o terms.npz --kind learned --clusters 1024
    """
    from boc import plugins
    from boc.clustering import codebook, make_codebook
    from boc.inputs.features import FeatureFile
    from boc.outputs import begins, check_output

    check_output(output, begins(*codebook.BEGINS), *features)
    with ExitStack() as stack:
        files = [stack.enter_context(FeatureFile(path)) for path in features]
        if kind == "words":
            made = make_codebook.vocabulary(files, clusters or 1000, tell=options.tell)
        elif kind == "learned":
            made = plugins.tool("learned_terms").learned_terms(
                files,
                clusters or 1000,
                tell=options.tell,
            )
        else:
            size = clusters or make_codebook.default_clusters(files)
            if kind is None:
                made = make_codebook.shared_codebook(files, size, tell=options.tell)
            else:
                made = make_codebook.cluster(files, size, space=kind, tell=options.tell)
            options.tell("labelling")
            made = make_codebook.add_labels(made, files)
    made.save(output)
    named = {"words": "words", "learned": "terms"}.get(
        kind or "",
        f"centroids of {made.concepts} concepts",
    )
    click.echo(f"{len(made)} {named} in {output}")
