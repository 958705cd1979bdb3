"""Layers that the encoders share."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def transformer(width: int, heads: int, feedforward: int, layers: int, dropout: float) -> nn.TransformerEncoder:
    """Stack of post-norm transformer encoder layers with ReLU, batch first, without a final norm.

    Nested tensors stay off: their fast path gives zeros instead of values on padding, and would make the output
    depend on the mode.
    """
    layer = nn.TransformerEncoderLayer(width, heads, feedforward, dropout, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def padding_mask(lengths: Tensor, size: int) -> Tensor:
    """Boolean (B, size), true behind the length of each row."""
    return torch.arange(size, device=lengths.device)[None, :] >= lengths[:, None]
