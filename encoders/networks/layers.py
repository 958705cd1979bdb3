"""Layers that several networks use."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def transformer(
    width: int,
    heads: int,
    feedforward: int,
    layers: int,
    dropout: float,
) -> nn.Module:
    """Stack of post-norm transformer layers with ReLU, batch first, no final norm. 0 layers leave
    rows as they are.

    Nested tensors are disabled: their fast path writes zeros on padding, so the output would depend
    on the mode.
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
    """Return boolean (B, size), true beyond the length of each row."""
    return torch.arange(size, device=lengths.device)[None, :] >= lengths[:, None]


def recompute(network: nn.Module) -> None:
    """Let the layers of transformers in ``network`` keep their inputs only, and compute the rest
    again on the way back (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016).
    Results and gradients stay the same."""
    from transformers.models.bert.modeling_bert import BertLayer

    for module in network.modules():
        if isinstance(module, (nn.TransformerEncoderLayer, BertLayer)):
            forward = partial(checkpoint, module.forward, use_reentrant=False)
            setattr(module, "forward", forward)  # noqa: B010 (mypy)
