"""What a sample says about terms: items without any are not found, nor pictures without terms of
both modalities."""

from collections.abc import Sequence

import numpy as np

from boc.plugins import Engine
from boc.types import MODALITIES, TermMatrix

SAMPLE = 1000  # items of each modality
FEW = 0.1


def term_faults(index: Engine, sample: int = SAMPLE) -> list[str]:
    """Return faults of the terms: a tenth of the items have none, or nearly none shares the other
    modality's."""
    held = [modality for modality in MODALITIES if index.manifest.items[modality]]
    terms = [index.terms(index.sample(sample, modality)) for modality in held]
    bare = (
        float(np.mean(np.concatenate([np.diff(each.indptr) for each in terms]) == 0))
        if terms
        else 0.0
    )
    if bare > FEW:
        return [
            f"{bare:.0%} of its items have no terms, which are found by none; make it again with "
            "another code",
        ]
    if len(terms) == len(MODALITIES) and (share := shared_terms(terms)) < FEW:
        return [
            f"only {share:.0%} of its items have a term that the other modality has: this code "
            "does not bring sentences and pictures together; take another code, or a codebook of "
            "concepts",
        ]
    return []


def shared_terms(terms: Sequence[TermMatrix]) -> float:
    """Return the share of items with these ``terms`` that have a term of the other modality; the
    smaller of both."""
    used = [np.bincount(each.indices, minlength=each.shape[1]) > 0 for each in terms]
    pairs = zip(terms, used[::-1], strict=True)
    return min(float(((each @ other.astype(np.int64)) > 0).mean()) for each, other in pairs)
