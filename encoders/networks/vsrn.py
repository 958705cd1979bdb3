"""VSRN, the Visual Semantic Reasoning Network (Li et al., ICCV 2019): the network.

Module names follow the published checkpoints, so that their tensors load by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from boc.errors import EncoderError

from .base import Encodings, Network, signed_power
from .layers import padding_mask

AXES = {"regions": 1, "row": 2}


@dataclass(frozen=True)
class VsrnConfig:
    """Sizes and choices of the network; the defaults are the published ones.

    ``region_dim`` is the width of a region's feature, ``width`` that of the regions inside the network and of the
    common space. ``variant`` is ``coco``, or ``f30k``: without the norm before reasoning, with a batch normalisation of
    the picture's state. ``norm_axis`` is the axis along which region features are normalised: ``regions``, each channel
    over the regions of a picture, as in the published models; or ``row``, each region, which its authors call more
    sensible. Features are first raised to ``region_power``, keeping their signs.
    """

    region_dim: int = 2048
    width: int = 2048
    reasoning_layers: int = 4
    variant: str = "coco"
    norm_axis: str = "regions"
    region_power: float = 1.0

    def __post_init__(self) -> None:
        one_of("variant", self.variant, ("coco", "f30k"))
        one_of("norm_axis", self.norm_axis, AXES)


class Residual(nn.Sequential):
    """The residual branch of reasoning: a linear map and a batch normalisation, over the real rows only.

    The normalisation starts at zero, so reasoning starts as the identity.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__(nn.Linear(inputs, width), nn.BatchNorm1d(width))
        for parameter in self[1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, rows: Tensor, real: Tensor) -> Tensor:  # type: ignore[override]
        """rows (B, n, inputs), real (B, n) boolean -> (B, n, width)."""
        mapped: Tensor = self[0](rows)
        if not self.training:
            normed: Tensor = self[1](mapped.flatten(0, 1)).view_as(mapped)
            return normed
        chosen: Tensor = self[1](mapped[real])
        return chosen.new_zeros(mapped.shape).masked_scatter(real[..., None], chosen)


class Reasoning(nn.Module):
    """Relationship reasoning: each row adds the others, weighted by affinity (VSRN, eq. 2-3; VSRN++, eq. 2, 3, 9).

    v + BN(W R g(v)) with R = theta(v) phi(v)^T / N over the N real rows. In the papers the maps have no
    bias, there is no batch normalisation, and R is "row-wise normalised"; the authors' code and this one follow the
    equation above.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.g, self.theta, self.phi = (nn.Linear(width, width) for _ in range(3))
        self.W = Residual(width, width)

    def forward(self, rows: Tensor, real: Tensor) -> Tensor:
        """rows (B, n, width), real (B, n) boolean, at least one true a row -> (B, n, width)."""
        gathered = self.affinity(rows, real) @ (self.g(rows) * real[..., None])
        reasoned: Tensor = rows + self.W(gathered, real)
        return reasoned

    def affinity(self, rows: Tensor, real: Tensor) -> Tensor:
        """R (B, n, n): the weight in row i of what row j gives."""
        affinity: Tensor = self.theta(rows) @ self.phi(rows).transpose(1, 2)
        return affinity / real.sum(dim=1)[:, None, None]


class _ImageTower(nn.Module):
    """Maps regions to the state of the picture and the relationship-enhanced regions V*.

    ``location``, if not None, is a module of (rows, boxes, real) whose result is combined into V*.
    """

    def __init__(self, config: VsrnConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(config.region_dim, config.width)
        nn.init.xavier_uniform_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)
        self.layers = range(1, config.reasoning_layers + 1)
        for number in self.layers:
            self.add_module(f"Rs_GCN_{number}", Reasoning(config.width))
        self.location: nn.Module | None = None
        self.img_rnn = nn.GRU(config.width, config.width, batch_first=True)
        f30k = config.variant == "f30k"
        self.bn = nn.BatchNorm1d(config.width) if f30k else nn.Identity()
        self.first_norm = not f30k
        self.axis = AXES[config.norm_axis]

    def forward(self, features: Tensor, boxes: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """features (B, n, region_dim), boxes (B, n, 4), lengths (B,), all at least 1 -> (B, width), (B, n, width)."""
        real = ~padding_mask(lengths, features.shape[1])
        reasoned = rows = self.embed_regions(features, real)
        for number in self.layers:
            reasoned = getattr(self, f"Rs_GCN_{number}")(reasoned, real)
        if self.location is not None:
            reasoned = reasoned + self.location(rows, boxes, real)
        regions = self._unit(reasoned, real)
        states, _ = self.img_rnn(regions)
        return self.bn(at_last(states, lengths)), regions

    def embed_regions(self, features: Tensor, real: Tensor) -> Tensor:
        """Return the regions before reasoning: features (B, n, region_dim), real (B, n) boolean -> (B, n, width)."""
        rows: Tensor = self.fc(features)
        return self._unit(rows, real) if self.first_norm else rows

    def _unit(self, rows: Tensor, real: Tensor) -> Tensor:
        precise = rows.to(torch.promote_types(rows.dtype, torch.float32))
        return nn.functional.normalize(precise * real[..., None], dim=self.axis)


class Vsrn(Network):
    """Maps pictures and sentences into one space: reasoning over regions, and a GRU over regions and over words.

    Sets are the regions V*, normalised along ``norm_axis``, and the un-normalised states of the GRU after each word,
    <start> and <end> included. Pictures may have any number of regions: computations along the regions of a picture or
    a batch use the real ones only. With equal numbers they are those of the published models.
    """

    Config = VsrnConfig
    reads_boxes = False

    def __init__(self, config: VsrnConfig, text: Mapping[str, Any]) -> None:
        super().__init__(config, text)
        self.img_enc = _ImageTower(config)
        self.txt_rnn = nn.GRU(self.txt_enc.width, config.width, batch_first=True)

    @property
    def dim(self) -> int:
        width: int = self.config.width
        return width

    def images(self, features: Tensor, boxes: Tensor, lengths: Tensor) -> Encodings:
        """A picture without regions is treated as one region with a zero feature."""
        features, boxes, lengths = self._clean(features, boxes, lengths)
        state, regions = self.img_enc(features, boxes, lengths)
        return Encodings(nn.functional.normalize(state, dim=1), regions)

    def _clean(self, features: Tensor, boxes: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the inputs of ``images`` with at least one region, features raised to their power, zeros as
        padding."""
        if not features.shape[1]:
            features, boxes = (nn.functional.pad(rows, (0, 0, 0, 1)) for rows in (features, boxes))
        padding = padding_mask(lengths, features.shape[1])[..., None]
        features, boxes = features.masked_fill(padding, 0), boxes.masked_fill(padding, 0)
        return signed_power(features, self.config.region_power), boxes, lengths.clamp(min=1)

    def words(self, hidden: Tensor, lengths: Tensor) -> Encodings:
        rows, _ = self.txt_rnn(hidden)
        return Encodings(nn.functional.normalize(at_last(rows, lengths), dim=1), rows)


def at_last(states: Tensor, lengths: Tensor) -> Tensor:
    """Return the last row of each item in ``states`` (B, n, d) before its padding, which a forward GRU has not read
    there."""
    return states[torch.arange(len(states), device=states.device), lengths - 1]


def one_of(name: str, value: str, known: Collection[str]) -> None:
    """EncoderError unless ``value`` is one of ``known``."""
    if value not in known:
        raise EncoderError(f"{name} must be one of {', '.join(known)}, got {value!r}")
