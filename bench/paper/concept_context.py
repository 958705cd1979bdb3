"""How much of its own a concept has beside its context: what a Bag of Concepts can tell apart within an item.

A row a modality, of FEATURES and of the same items by the encoder ``FOLDER?alone``: items, concepts an item, and the
part of the variance of all concepts that lies within items, in percent. Near 0, every concept of an item is the same
vector, and the set says no more than its mean.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import numpy as np

from bench.report.rows import Writer
from boc.inputs.features import FeatureFile
from boc.types import MODALITIES, Ragged

COLUMNS = ("concepts", "modality", "items", "concepts an item", "variance within items")


def within(sets: Ragged) -> float:
    """The part of the variance of concepts that lies within items, in percent: 100 * (1 - between / total)."""
    values = sets.values.astype(np.float64)
    apart = values - values.mean(axis=0)
    filled = sets.offsets[:-1][np.diff(sets.offsets) > 0]
    sizes = np.diff(np.append(filled, len(values)))
    sums = np.add.reduceat(apart, filled, axis=0)
    between = ((sums * sums).sum(axis=1) / sizes).sum()
    return float(100 * (1 - between / (apart * apart).sum()))


@click.command()
@click.argument("features", type=click.Path(path_type=Path))
@click.option("--alone", type=click.Path(path_type=Path), help="The same items by the encoder FOLDER?alone.")
def main(features: Path, alone: Path | None) -> None:
    """Variance of the concepts in FEATURES within items."""
    files = {"with context": features} | ({"no context": alone} if alone else {})
    with Writer(sys.stdout, __file__, {"features": features, "alone": alone}, COLUMNS) as out:
        for name, path in files.items():
            with FeatureFile(path) as file:
                for modality in MODALITIES:
                    n = file.count(modality)
                    sets = file.rows(modality, 0, n).ragged["concepts"]
                    out.write(name, modality, n, f"{len(sets.values) / n:.2f}", f"{within(sets):.2f}")


if __name__ == "__main__":
    main()
