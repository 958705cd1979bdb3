"""The variance of concepts within items, beside what the global vectors find, for each recipe.

    python -m bench.paper.concept_variance NAME=FILE...

Each FILE holds embeddings with concepts, of the same pictures and captions. One row per recipe: the share of the
variance of all concepts that lies within items, of pictures and of sentences, and Recall@1, 5, 10 in both directions
by dot products of the global vectors, all in percent. Concepts are scaled to unit length first, since their direction
is what is compared.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from bench.paper.concept_context import within
from bench.report.rows import Writer
from boc.evaluate.metrics import evaluate_recall
from boc.evaluate.runs import Gallery
from boc.inputs.features import FeatureFile
from boc.types import MODALITIES, Modality, Ragged
from boc.vectors import unit_rows

RECALLS = tuple(f"{way} R@{k}" for way in ("sentence to picture", "picture to sentence") for k in (1, 5, 10))
COLUMNS = ("recipe", *(f"{modality} variance within" for modality in MODALITIES), *RECALLS)


def directions(path: Path, modality: Modality) -> Ragged:
    """The concepts of all items of ``modality``, of unit length."""
    with FeatureFile(path) as file:
        sets = file.batch(modality, 0, file.count(modality)).embeddings.concepts
    if sets is None:
        raise click.ClickException(f"{path} holds no concepts; make it with boc extract --encoder, a tern for example")
    return Ragged(unit_rows(sets.values.astype("float32")), sets.offsets)


@click.command()
@click.argument("recipes", metavar="RECIPE...", nargs=-1, required=True)
def main(recipes: tuple[str, ...]) -> None:
    """Variance of concepts within items beside recall, of each RECIPE (NAME=FILE)."""
    read = [recipe.rpartition("=") for recipe in recipes]
    wrong = [file for _, equals, file in read if not equals]
    if wrong:
        raise click.UsageError(f"{wrong[0]!r} is not NAME=FILE")
    parameters = {"recipes": [f"{name}={Path(file).name}" for name, _, file in read]}
    with Writer(sys.stdout, __file__, parameters, COLUMNS) as out:
        for name, _, file in read:
            gallery = Gallery.of(Path(file))
            found = evaluate_recall(gallery.scores("dot"), gallery.owners)
            recalls = [getattr(way, f"r{k}") for way in (found.text_to_image, found.image_to_text) for k in (1, 5, 10)]
            shares = [within(directions(Path(file), modality)) for modality in MODALITIES]
            out.write(name, *(f"{share:.2f}" for share in shares), *(f"{recall:.2f}" for recall in recalls))


if __name__ == "__main__":
    main()
