"""Layers shared by several networks."""

import torch
from torch import Tensor, nn


def transformer(
    width: int,
    heads: int,
    feedforward: int,
    layers: int,
    dropout: float,
) -> nn.Module:
    """Return a stack of post-norm transformer layers with ReLU, batch first, without a final norm.
    With 0 layers, rows are returned unchanged.

    Nested tensors are disabled, because their fast path fills the padding with zeros, so that
    outputs would differ between training and evaluation.
    """
    if not layers:
        return _NoLayers()
    layer = nn.TransformerEncoderLayer(width, heads, feedforward, dropout, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


class _NoLayers(nn.Module):
    layers: tuple[nn.TransformerEncoderLayer, ...] = ()

    def forward(
        self,
        rows: Tensor,
        src_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        return rows


def padding_mask(lengths: Tensor, size: int) -> Tensor:
    """Return a mask (B, size), true beyond the length of each row."""
    return torch.arange(size, device=lengths.device)[None, :] >= lengths[:, None]
