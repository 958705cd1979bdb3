"""VSRN++ (Li et al., TPAMI 2022): VSRN with reasoning about locations and words, over a frozen BERT; the network.

There is no published code. Every choice that the paper leaves open is a field of the configuration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .base import Encodings
from .layers import padding_mask
from .vsrn import Reasoning, Residual, Vsrn, VsrnConfig, one_of

# lower bound of the sides of a region, as fractions of the picture, when they are the unit of distances
THINNEST = 1e-3


@dataclass(frozen=True)
class VsrnPlusPlusConfig(VsrnConfig):
    """VsrnConfig with the choices of location and word reasoning. Sizes are those of the paper; the rest it leaves
    open.

    ``norm_axis`` is ``row`` here: the paper prints "L2 normalization" of region features and no axis. ``variant`` is
    that of VSRN. Location reasoning has ``kernels`` Gaussians over the distance and angle between regions, with a
    ``diagonal`` ``covariance`` (as in MoNet, which the paper follows) or a ``full`` one. Distances are between the
    ``points`` ``centre`` or ``corner`` (the first one) of the boxes, in ``units`` of the sides of the ``picture`` or of
    the ``region`` from which they are measured. ``neighbours`` are ``all`` regions of the picture or the ``others``
    only; with ``normalised_kernels`` the weights of the neighbours of a region sum to one. The input
    (``location_input``) is the regions before reasoning (``features``) or after it (``reasoned``). ``batch_norm``
    applies to location and word reasoning, as in region reasoning. With ``special_words``, [CLS] and [SEP] take part in
    reasoning and in the GRU. Without ``word_reasoning`` the GRU reads the words as the text tower gives them.
    """

    norm_axis: str = "row"
    kernels: int = 8
    covariance: str = "diagonal"
    points: str = "centre"
    units: str = "picture"
    neighbours: str = "all"
    normalised_kernels: bool = True
    location_input: str = "features"
    batch_norm: bool = True
    special_words: bool = True
    word_reasoning: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("covariance", self.covariance, ("diagonal", "full"))
        one_of("points", self.points, ("centre", "corner"))
        one_of("units", self.units, ("picture", "region"))
        one_of("neighbours", self.neighbours, ("all", "others"))
        one_of("location_input", self.location_input, ("features", "reasoned"))


class Kernels(nn.Module):
    """Gaussian kernels with learned means and covariances over polar coordinates (MoNet; VSRN++, section 3.3).

    The initial means are spread over distances up to half the picture and evenly over the circle.
    """

    def __init__(self, config: VsrnPlusPlusConfig) -> None:
        super().__init__()
        self.config = config
        M = config.kernels
        angles = torch.arange(M) * (2 * math.pi / M) - math.pi
        self.means = nn.Parameter(torch.stack([torch.rand(M) / 2, angles], dim=1))
        self.log_deviations = nn.Parameter(torch.log(torch.tensor([0.25, math.pi / 4])).repeat(M, 1))
        self.tilts = nn.Parameter(torch.zeros(M)) if config.covariance == "full" else None

    def forward(self, boxes: Tensor, real: Tensor) -> Tensor:
        """boxes (B, n, 4), real (B, n) boolean -> weights (B, M, n, n) of region j (last axis) for region i.

        They are zero if j is padding.
        """
        apart = polar(boxes, self.config.points, self.config.units)[..., None, :] - self.means
        distance, angle = apart.unbind(-1)
        angle = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        distance, angle = (x / s for x, s in zip((distance, angle), self.log_deviations.exp().unbind(1), strict=True))
        if self.tilts is not None:
            angle = angle + self.tilts * distance
        exponents = -(distance.square() + angle.square()).movedim(-1, 1) / 2
        near = real[:, None, None, :]
        if self.config.neighbours == "others":
            near = near & ~torch.eye(real.shape[1], dtype=torch.bool, device=real.device)
        if not self.config.normalised_kernels:
            return exponents.exp() * near
        # Not minus infinity: the row of a single region without others must be zero, not NaN.
        return exponents.masked_fill(~near, torch.finfo(exponents.dtype).min).softmax(dim=-1) * near


class LocationReasoning(nn.Module):
    """v_i + W_r [W_m sum_j kappa_m(p(i, j)) v_j], concatenated over the kernels m (VSRN++, eq. 4), with W_r followed by
    a batch normalisation as in ``Reasoning``."""

    def __init__(self, config: VsrnPlusPlusConfig) -> None:
        super().__init__()
        self.config = config
        self.kernels = Kernels(config)
        self.maps = nn.Linear(config.width, config.kernels * config.width, bias=False)
        self.W = Residual(config.kernels * config.width, config.width, config.batch_norm)

    def forward(self, rows: Tensor, reasoned: Tensor, boxes: Tensor, real: Tensor) -> Tensor:
        """rows (B, n, width) before reasoning and after, boxes (B, n, 4), real (B, n) boolean -> (B, n, width)."""
        seen = rows if self.config.location_input == "features" else reasoned
        # W_m before the sum over j: one product for all kernels; the sum is linear.
        mapped = self.maps(seen).unflatten(-1, (self.config.kernels, -1)).transpose(1, 2)
        gathered = (self.kernels(boxes, real) @ mapped).transpose(1, 2).flatten(2)
        located: Tensor = seen + self.W(gathered, real)
        return located


class VsrnPlusPlus(Vsrn):
    """VSRN with location reasoning over regions, and with reasoning over words (hidden states of a BERT) before the
    GRU.

    Sets are those of ``Vsrn``, with [CLS] and [SEP] for <start> and <end>.
    """

    Config = VsrnPlusPlusConfig
    reads_boxes = True

    def __init__(self, config: VsrnPlusPlusConfig, text: Mapping[str, Any]) -> None:
        super().__init__(config, text)
        self.img_enc.location = LocationReasoning(config)
        if config.word_reasoning:
            self.word_reasoning = Reasoning(self.txt_enc.width, config.batch_norm, config.affinity == "row")

    def words(self, hidden: Tensor, lengths: Tensor) -> Encodings:
        if self.config.special_words:
            return self._reason(hidden, lengths)
        encoded = self._reason(hidden[:, 1:], (lengths - 2).clamp(min=1))
        return Encodings(encoded.vectors, nn.functional.pad(encoded.sets, (0, 0, 1, 0)))

    def _reason(self, hidden: Tensor, lengths: Tensor) -> Encodings:
        if self.config.word_reasoning:
            hidden = self.word_reasoning(hidden, ~padding_mask(lengths, hidden.shape[1]))
        return super().words(hidden, lengths)


def polar(boxes: Tensor, points: str, units: str) -> Tensor:
    """Polar coordinates of region j relative to region i: boxes (B, n, 4) -> (B, i, j, 2), angles in [-pi, pi]."""
    corner, size = boxes[..., :2], boxes[..., 2:] - boxes[..., :2]
    at = corner + size / 2 if points == "centre" else corner
    offset = at[:, None] - at[:, :, None]
    if units == "region":
        offset = offset / size[:, :, None].clamp(min=THINNEST)
    return torch.stack([offset.norm(dim=-1), torch.atan2(offset[..., 1], offset[..., 0])], dim=-1)
