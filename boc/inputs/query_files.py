"""Queries from the items of a feature file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from boc.errors import FeatureFileError
from boc.inputs.features import FeatureFile
from boc.types import (
    MODALITIES,
    Embeddings,
    Identity,
    Item,
)

BATCH = 256  # items read at a time, with their concept sets


def read_queries(path: Path, identity: Identity, item: str | None) -> Iterator[tuple[list[Item], Embeddings]]:
    """Yield all items of an embeddings file as queries, in batches, or the single item with id ``item``.

    FeatureFileError if the vectors are by another encoder than ``identity``, or there is no such item.
    """
    with FeatureFile(path) as file:
        if file.header.kind != "embeddings":
            raise FeatureFileError(f"{path}: holds regions, not vectors; use boc extract --encoder on it first")
        if file.header.digest != identity.digest:
            raise FeatureFileError(
                f"{path}: made by {file.header.spec}, the index by {identity.spec}; use the same encoder"
            )
        any_item = False
        for modality in MODALITIES:
            for batch in file.batches(modality, BATCH):
                chosen = [i for i, row in enumerate(batch.items) if item is None or row.id == item]
                if chosen:
                    any_item = True
                    yield [batch.items[i] for i in chosen], batch.embeddings.take(chosen)
        if not any_item:
            raise FeatureFileError(f"{path}: no item {item!r} in it" if item else f"{path}: holds no items")
