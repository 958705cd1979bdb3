"""Sinkhorn normalisation of the scores of a batch (VSRN++, section 3.6)."""

import torch
from torch import Tensor

from boc.errors import EncoderError


def sinkhorn(
    scores: Tensor,
    iterations: int = 20,
    temperature: float = 1.0,
) -> Tensor:
    """Return exp(scores / temperature) with rows and columns normalised in turn (eq. 10-11),
    multiplied by the number of pictures.

    ``scores`` (pictures, sentences) can be negative, so an exponential is needed, which the paper
    does not mention. All sums are computed in the log domain, in at least float32. Before the
    multiplication, each column sums to one, because each sentence is distributed over the pictures.
    Row sums converge to sentences / pictures, which is one for a square matrix.

    The factor makes the mean entry one. To first order, an entry is then one plus the score minus
    the means of its row and column, divided by the temperature, so a margin has the same meaning as
    without Sinkhorn. With the formula in the paper, entries are about 1 / pictures, far below the
    margin. Lower temperatures give sharper distributions. Raises EncoderError if ``iterations`` is
    below 1 or the temperature is not positive.
    """
    if iterations < 1 or not temperature > 0:
        raise EncoderError(
            f"sinkhorn needs at least 1 iteration and a temperature above 0, got {iterations} "
            f"and {temperature}",
        )
    logarithms = scores.to(torch.promote_types(scores.dtype, torch.float32)) / temperature
    for _ in range(iterations):
        logarithms = logarithms - logarithms.logsumexp(dim=1, keepdim=True)
        logarithms = logarithms - logarithms.logsumexp(dim=0, keepdim=True)
    return logarithms.exp() * len(scores)
