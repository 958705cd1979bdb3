"""The loss of image-sentence matching."""

from __future__ import annotations

import torch
from torch import Tensor


def hinge(scores: Tensor, positive: Tensor, margin: float = 0.2, *, hardest: bool = True) -> Tensor:
    """Hinge-based triplet loss (VSE++; TERN, section IV), both directions, summed.

    ``scores`` (images, sentences); ``positive`` is boolean of the same shape: which sentences describe which picture.
    Each positive pair (i, j) pays max(0, margin + s - s_ij) for its hardest negative sentence s in row i and its
    hardest negative picture s in column j, or, with ``hardest=False``, the mean over all negatives.
    """
    negatives = scores.masked_fill(positive, -torch.inf)
    images, sentences = positive.nonzero(as_tuple=True)
    own = scores[images, sentences]
    by_row = (margin + negatives[images] - own[:, None]).clamp(min=0)
    by_column = (margin + negatives[:, sentences].T - own[:, None]).clamp(min=0)
    if hardest:
        return by_row.amax(dim=1).sum() + by_column.amax(dim=1).sum()
    return by_row.sum() / max(1, scores.shape[1] - 1) + by_column.sum() / max(1, scores.shape[0] - 1)
