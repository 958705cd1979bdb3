"""VSRN++ (Li et al., TPAMI 2022), which extends VSRN with reasoning about locations and words over
a frozen BERT.

The authors published no code. ``VsrnPlusPlusConfig`` documents the choices that the paper leaves
open.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .base import Encodings
from .layers import padding_mask
from .vsrn import Reasoning, Residual, Vsrn, VsrnConfig


@dataclass(frozen=True)
class VsrnPlusPlusConfig(VsrnConfig):
    """VSRN configuration with options for location and word reasoning. Sizes follow the paper.

    ``norm_axis`` is ``row``; the paper mentions "L2 normalization" of region features, but no axis.
    ``variant`` is as in VSRN. Location reasoning has ``kernels`` Gaussians over the distance and
    angle between the centres of regions, as fractions of the picture, with diagonal covariances, as
    in MoNet, which the paper follows. Location reasoning reads the regions before region reasoning.
    Each region is its own neighbour, and the weights of all neighbours sum to one. Location and
    word reasoning include a batch normalisation, as does region reasoning. [CLS] and [SEP] take
    part in word reasoning and in the GRU. Without ``word_reasoning``, the GRU reads the output of
    the text tower.
    """

    norm_axis: str = "row"
    kernels: int = 8
    word_reasoning: bool = True


class Kernels(nn.Module):
    """Gaussian kernels over polar coordinates, with learned means and covariances (MoNet; VSRN++,
    section 3.3).

    The initial means are spread over distances up to half the picture, and evenly around the
    circle.
    """

    def __init__(self, M: int) -> None:
        super().__init__()
        angles = torch.arange(M) * (2 * math.pi / M) - math.pi
        self.means = nn.Parameter(torch.stack([torch.rand(M) / 2, angles], dim=1))
        deviations = torch.tensor([0.25, math.pi / 4])
        self.log_deviations = nn.Parameter(deviations.log().repeat(M, 1))

    def forward(self, boxes: Tensor, real: Tensor) -> Tensor:
        """Compare boxes (B, n, 4) with the boolean mask ``real`` (B, n), and return the weights (B,
        M, n, n) of region j (last axis) for region i.

        The weights are zero if j is padding.
        """
        # Differences from the means have shape (B, i, j, M), with angles in [-pi, pi].
        apart = polar(boxes)[..., None, :] - self.means
        distance, angle = apart.unbind(-1)
        angle = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        far, wide = self.log_deviations.exp().unbind(1)
        squares = (distance / far).square() + (angle / wide).square()
        exponents = -squares.movedim(-1, 1) / 2
        return exponents.masked_fill(~real[:, None, None, :], -torch.inf).softmax(dim=-1)


class LocationReasoning(nn.Module):
    """Location reasoning (VSRN++, eq. 4): v_i + W_r [W_m sum_j kappa_m(p(i, j)) v_j], concatenated
    over the kernels m. A batch normalisation follows W_r, as in ``Reasoning``."""

    def __init__(self, config: VsrnPlusPlusConfig) -> None:
        super().__init__()
        self.kernels = Kernels(config.kernels)
        self.maps = nn.Linear(
            config.width,
            config.kernels * config.width,
            bias=False,
        )
        self.W = Residual(config.kernels * config.width, config.width)

    def forward(
        self,
        rows: Tensor,
        boxes: Tensor,
        real: Tensor,
    ) -> Tensor:
        """Apply reasoning to rows (B, n, width) and boxes (B, n, 4), and return rows (B, n, width).
        ``real`` (B, n) is a boolean mask with at least one real row per picture."""
        weights = self.kernels(boxes, real)
        # Because the sum is linear, W_m is applied before it, in one product for all kernels.
        mapped = self.maps(rows).unflatten(-1, (weights.shape[1], -1))
        # The shape is (B, M, n, width), and then (B, n, M * width).
        summed = weights @ mapped.transpose(1, 2)
        located: Tensor = rows + self.W(summed.transpose(1, 2).flatten(2), real)
        return located


class VsrnPlusPlus(Vsrn):
    """VSRN with location reasoning over regions, and with reasoning over words (BERT hidden states)
    before the GRU.

    Sets are as in ``Vsrn``, with [CLS] and [SEP] in place of <start> and <end>.
    """

    Config = VsrnPlusPlusConfig
    reads_boxes = True

    def __init__(
        self,
        config: VsrnPlusPlusConfig,
        text: Mapping[str, Any],
    ) -> None:
        super().__init__(config, text)
        self.img_enc.location = LocationReasoning(config)
        if config.word_reasoning:
            self.word_reasoning = Reasoning(self.txt_enc.width)

    def words(self, hidden: Tensor, lengths: Tensor) -> Encodings:
        if self.config.word_reasoning:
            hidden = self.word_reasoning(hidden, ~padding_mask(lengths, hidden.shape[1]))
        return super().words(hidden, lengths)


def polar(boxes: Tensor) -> Tensor:
    """Return the polar coordinates (B, i, j, 2) of the centre of region j relative to the centre of
    region i, for boxes (B, n, 4), with angles in [-pi, pi]."""
    centres = (boxes[..., :2] + boxes[..., 2:]) / 2
    offset = centres[:, None] - centres[:, :, None]
    x, y = offset.unbind(-1)
    return torch.stack([offset.norm(dim=-1), torch.atan2(y, x)], dim=-1)
