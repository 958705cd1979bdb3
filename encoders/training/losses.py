"""Compute the losses of image-sentence matching.

Each loss takes a batch's ``scores`` (images, sentences) and masks of the same shape. ``positive``
marks pairs of a picture and a sentence that describes it; ``apart`` marks negative pairs; other
pairs are ignored. Without ``apart``, all pairs that are not positive are negative.
"""

import torch
from torch import Tensor


def hinge(
    scores: Tensor,
    positive: Tensor,
    margin: float = 0.2,
    negatives: int = 1,
    apart: Tensor | None = None,
) -> Tensor:
    """Compute the hinge-based triplet loss (VSE++; TERN, section IV) in both directions, summed
    over the batch.

    The loss of a positive pair (i, j) is the mean of max(0, margin + s - s_ij) over its
    ``negatives`` hardest negative sentences s in row i, plus the same mean over pictures in column
    j. With one negative, as published, only the hardest counts; with more negatives, training from
    random weights does not collapse.
    """
    others = _others(scores, positive, apart)
    images, sentences = positive.nonzero(as_tuple=True)
    own = scores[images, sentences][:, None]
    by_row = (margin + others[images] - own).clamp(min=0)
    by_column = (margin + others[:, sentences].T - own).clamp(min=0)
    total = scores.new_zeros(())
    for costs in (by_row, by_column):
        total = total + costs.topk(min(negatives, costs.shape[1]), dim=1).values.mean(dim=1).sum()
    return total


def contrast(
    scores: Tensor,
    positive: Tensor,
    temperature: float,
    apart: Tensor | None = None,
) -> Tensor:
    """Compute the cross entropy of each positive pair against its negatives in both directions,
    summed over the batch (InfoNCE: van den Oord et al., 2018; as in CLIP, Radford et al., ICML
    2021). Scores are divided by ``temperature``."""
    others = _others(scores, positive, apart) / temperature
    images, sentences = positive.nonzero(as_tuple=True)
    own = scores[images, sentences] / temperature
    total = scores.new_zeros(())
    for rows in (others[images], others[:, sentences].T):
        costs = torch.logaddexp(own, rows.logsumexp(dim=1)) - own
        total = total + costs.sum()
    return total


def _others(
    scores: Tensor,
    positive: Tensor,
    apart: Tensor | None,
) -> Tensor:
    """Return the scores of negative pairs, and -inf for all other pairs."""
    ignored = positive
    if apart is not None:
        ignored = positive | ~apart
    return scores.masked_fill(ignored, -torch.inf)
