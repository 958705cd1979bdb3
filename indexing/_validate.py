"""What every writer checks of the rows that it gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from boc.errors import BackendError
from boc.inputs.metadata import undeclared
from boc.manifest import Manifest
from boc.types import Item, StoredConcepts, TermMatrix


def check_rows(
    manifest: Manifest,
    items: Sequence[Item],
    terms: TermMatrix,
    vectors: NDArray[np.float32],
    concepts: StoredConcepts | None,
    concept_dim: int | None,
) -> None:
    """BackendError unless the rows are of one length, of different ids, and fit the index, whose concepts are
    ``concept_dim`` wide, if that is known."""
    if not len(items) == terms.shape[0] == len(vectors):
        raise BackendError(f"{len(items)} items, {terms.shape[0]} term rows, {len(vectors)} vectors: must be equal")
    found = terms.shape[1], vectors.shape[1]
    wanted = manifest.codec["n_terms"], manifest.identity.dim
    if found != wanted:
        raise BackendError(f"(terms, dimension) of the rows are {found}, those of the index {wanted}")
    odd = undeclared(items, manifest.fields)
    if odd is not None:
        raise BackendError(f"an item has the metadata field {odd!r}, which the manifest does not declare")
    ids = [item.id for item in items]
    if len(set(ids)) < len(ids):
        raise not_unique(Counter(ids).most_common(1)[0][0])
    dtype = None if concepts is None else concepts.values.dtype.name
    if dtype != manifest.concept_dtype:
        raise BackendError(f"concept sets of type {dtype}, those of the index are of type {manifest.concept_dtype}")
    if concepts is None:
        return
    if len(concepts) != len(items):
        raise BackendError(f"{len(items)} items, {len(concepts)} concept sets: must be equal")
    width = concepts.values.shape[1]
    if concept_dim is not None and width != concept_dim:
        raise BackendError(f"concepts of {width} components after some of {concept_dim}")


def not_unique(key: str) -> BackendError:
    """The error for an id that comes again."""
    return BackendError(f"the id {key!r} occurs more than once; make ids unique")
