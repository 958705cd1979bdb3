"""Items of a feature file as queries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from boc.errors import FeatureFileError
from boc.inputs.features import FeatureFile
from boc.types import (
    MODALITIES,
    Embeddings,
    Identity,
    Item,
    Ragged,
)

if TYPE_CHECKING:
    pass

BATCH = 256  # items read at a time, each with a set of concepts


def read_queries(path: Path, identity: Identity, item: str | None) -> Iterator[tuple[list[Item], Embeddings]]:
    """All items of an embeddings file as queries, in batches, or the one of id ``item``.

    FeatureFileError if the vectors are those of another encoder than ``identity``, or there is no such item.
    """
    with FeatureFile(path) as file:
        if file.header.kind != "embeddings":
            raise FeatureFileError(f"{path}: holds regions, not vectors; use boc extract --encoder on it first")
        if file.header.digest != identity.digest:
            raise FeatureFileError(
                f"{path}: made by {file.header.spec}, the index by {identity.spec}; use the same encoder"
            )
        found = False
        for modality in MODALITIES:
            for rows in file.batches(modality, BATCH):
                chosen = [i for i, row in enumerate(rows.items) if item is None or row.id == item]
                if chosen:
                    found = True
                    sets = rows.ragged.get("concepts")
                    if sets is not None:
                        sets = Ragged.from_sets([sets[i] for i in chosen], sets.values.shape[1])
                    words = rows.words and [rows.words[i] for i in chosen]
                    asked = Embeddings(modality, rows.dense["vectors"][chosen], sets, words=words)
                    yield [rows.items[i] for i in chosen], asked
        if not found:
            raise FeatureFileError(f"{path}: no item {item!r} in it" if item else f"{path}: holds no items")
