"""Sinkhorn normalisation of the scores of a batch (VSRN++, section 3.6)."""

from __future__ import annotations

import torch
from torch import Tensor

from boc.errors import EncoderError


def sinkhorn(scores: Tensor, iterations: int = 20, temperature: float = 1.0, scaled: bool = True) -> Tensor:
    """The doubly stochastic form of exp(scores / temperature), rows and columns normalised in turn (eq. 10-11).

    ``scores`` (pictures, sentences), of any sign: hence the exponential, which the paper does not print. All is done
    with logarithms, in float32 at least. Columns sum to one: each sentence is shared out among the pictures. Rows tend
    to sentences / pictures, which is one for a square: each picture gets as many as it would on average.

    With ``scaled`` all is multiplied by the number of pictures, so that the mean entry is one; to first order, an entry
    is then one plus the score less the means of its row and column, over the temperature, and a margin means what it
    does without Sinkhorn. As printed, entries are about 1 / pictures, and the margin dwarfs them. Lower temperatures
    sharpen. EncoderError where there is no iteration or the temperature is not positive.
    """
    if iterations < 1 or not temperature > 0:
        raise EncoderError(
            f"sinkhorn needs at least 1 iteration and a temperature above 0, got {iterations} and {temperature}"
        )
    logarithms = scores.to(torch.promote_types(scores.dtype, torch.float32)) / temperature
    for _ in range(iterations):
        logarithms = logarithms - logarithms.logsumexp(dim=1, keepdim=True)
        logarithms = logarithms - logarithms.logsumexp(dim=0, keepdim=True)
    return logarithms.exp() * (len(scores) if scaled else 1)
