"""The losses of image-sentence matching."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus


def hinge(scores: Tensor, positive: Tensor, margin: float = 0.2, negatives: int = 1) -> Tensor:
    """Hinge-based triplet loss (VSE++; TERN, section IV), both directions, summed over the batch.

    ``scores`` (images, sentences); ``positive`` is boolean of the same shape: which sentences describe which picture.
    Each positive pair (i, j) pays the mean of max(0, margin + s - s_ij) over its ``negatives`` hardest negative
    sentences s in row i, and the same over pictures in column j. With one, the published loss, only the hardest counts;
    with more, learning from random weights does not collapse.
    """
    others = scores.masked_fill(positive, -torch.inf)
    images, sentences = positive.nonzero(as_tuple=True)
    own = scores[images, sentences][:, None]
    by_row = (margin + others[images] - own).clamp(min=0)
    by_column = (margin + others[:, sentences].T - own).clamp(min=0)
    costs = (rows.topk(min(negatives, rows.shape[1]), dim=1).values.mean(dim=1).sum() for rows in (by_row, by_column))
    return sum(costs, scores.new_zeros(()))


def contrastive(scores: Tensor, positive: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of who belongs to whom (InfoNCE; van den Oord et al., 2018), both directions, summed over the
    positive pairs; ``scores`` and ``positive`` as of ``hinge``.

    Scores over ``temperature`` are logits. The sentence of a pair is told from the sentences of other pictures, its
    picture from the other pictures: log(1 + sum of exp(s - s_ij)) over these.
    """
    logits = scores / temperature
    others = logits.masked_fill(positive, -torch.inf)
    images, sentences = positive.nonzero(as_tuple=True)
    own = logits[images, sentences]
    by_row, by_column = others.logsumexp(dim=1)[images], others.logsumexp(dim=0)[sentences]
    return (softplus(by_row - own) + softplus(by_column - own)).sum()
