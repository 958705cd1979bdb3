"""Sinkhorn normalisation of the scores of a batch (VSRN++, section 3.6)."""

import torch
from torch import Tensor

from boc.errors import EncoderError


def sinkhorn(
    scores: Tensor,
    iterations: int = 20,
    temperature: float = 1.0,
) -> Tensor:
    """Return exp(scores / temperature), rows and columns normalised in turn (eq. 10-11), times the
    number of pictures.

    ``scores`` (pictures, sentences) may have any sign, which requires an exponential that the paper
    does not print. All sums are computed with logarithms, in float32 at least. Before the factor is
    applied, columns sum to one: each sentence is distributed over the pictures. Row sums tend to
    sentences / pictures, so they tend to one for a square matrix.

    The factor makes the mean entry one. To first order, an entry is then one plus the score minus
    the means of its row and column, divided by the temperature, and a margin means the same as
    without Sinkhorn. As printed, entries are about 1 / pictures, far below the margin. Lower
    temperatures sharpen. EncoderError if ``iterations`` is below 1 or the temperature is not
    positive.
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
