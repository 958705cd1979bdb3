"""The share of items with a term of the other modality: without one, sentences find no pictures by terms."""

from __future__ import annotations

import numpy as np

from boc.errors import note
from boc.plugins import Index
from boc.types import MODALITIES

SAMPLE = 1000  # items of each modality
FEW = 0.1


def shared_terms(index: Index) -> float | None:
    """Return the share of a sample of the items of an index that have a term which items of the other modality have;
    the smaller one of both modalities, or None if it holds one only."""
    if not all(index.manifest.items[modality] for modality in MODALITIES):
        return None
    terms = [index.terms(index.sample(SAMPLE, modality)) for modality in MODALITIES]
    used = [np.bincount(each.indices, minlength=each.shape[1]) > 0 for each in terms]
    pairs = zip(terms, used[::-1], strict=True)
    return min(float(((each @ other.astype(np.int64)) > 0).mean()) for each, other in pairs)


def warn_of_few(name: str, index: Index) -> None:
    """BocWarning if less than a tenth of the items have a term that the other modality has."""
    share = shared_terms(index)
    if share is not None and share < FEW:
        text = (
            f"only {share:.0%} of the items of {name} have a term that the other modality has: this code does not "
            "bring sentences and pictures together; take another code, or a codebook made without --kind"
        )
        note(text)
