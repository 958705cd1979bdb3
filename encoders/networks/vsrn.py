"""VSRN, the Visual Semantic Reasoning Network (Li et al., ICCV 2019).

Module names follow the published checkpoints, so that tensors can be loaded by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from boc.errors import EncoderError

from .base import Encodings, Network, one_of, signed_power
from .layers import padding_mask

AXES = {"regions": 1, "row": 2}


@dataclass(frozen=True)
class VsrnConfig:
    """Network sizes and options. The defaults are the published values.

    ``region_dim`` is the width of a region feature, and ``width`` is the width of the regions
    inside the network and of the common space. ``variant`` is ``coco`` or ``f30k``; the latter has
    no norm before reasoning, but has a batch normalisation of the picture's state. ``norm_axis`` is
    the axis along which region features are normalised: ``regions`` normalises each channel over a
    picture's regions, as in the published models; ``row`` normalises each region, which the authors
    call more sensible. Features are first raised to ``region_power``, keeping their signs.

    The other options are the ablations of VSRN++ (Tables 5 and 6). ``image_pooling`` pools the
    regions into one vector: ``gru`` uses the last state of the GRU over the regions, and ``mean``
    uses their mean. ``text_pooling`` pools the words in the same way; with ``mean``, a linear map
    replaces the GRU. ``region_order`` is the order in which the GRU reads the regions: ``source``,
    which for detectors means by confidence; ``reversed``; ``size``, with the largest box first; or
    ``random``, drawn for each picture and step during training, and fixed for each number of
    regions afterwards.
    """

    region_dim: int = 2048
    width: int = 2048
    reasoning_layers: int = 4
    variant: str = "coco"
    norm_axis: str = "regions"
    region_power: float = 1.0
    image_pooling: str = "gru"
    text_pooling: str = "gru"
    region_order: str = "source"

    def __post_init__(self) -> None:
        one_of("variant", self.variant, ("coco", "f30k"))
        one_of("norm_axis", self.norm_axis, AXES)
        for name in ("image_pooling", "text_pooling"):
            one_of(name, getattr(self, name), ("gru", "mean"))
        one_of("region_order", self.region_order, ("source", "reversed", "size", "random"))
        if self.image_pooling == "mean" and self.region_order != "source":
            raise EncoderError(
                "region_order needs a GRU; leave it out, or set image_pooling=gru",
            )


class Residual(nn.Sequential):
    """Residual branch of reasoning: a linear map and a batch normalisation over real rows only.

    The parameters of the normalisation start at zero, so reasoning starts as the identity.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__(nn.Linear(inputs, width), nn.BatchNorm1d(width))
        for parameter in self[1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, rows: Tensor, real: Tensor) -> Tensor:  # type: ignore[override]
        """Map and normalise rows (B, n, inputs), with real (B, n) boolean, to (B, n, width)."""
        mapped: Tensor = self[0](rows)
        if not self.training:
            normed: Tensor = self[1](mapped.flatten(0, 1)).view_as(mapped)
            return normed
        chosen: Tensor = self[1](mapped[real])
        return chosen.new_zeros(mapped.shape).masked_scatter(real[..., None], chosen)


class Reasoning(nn.Module):
    """Relationship reasoning, which adds the other rows to each row, weighted by affinity (VSRN,
    eq. 2-3; VSRN++, eq. 2, 3, 9).

    The output is v + BN(W R g(v)) with R = theta(v) phi(v)^T / N over the N real rows, as in the
    authors' code. The papers describe maps without bias, no batch normalisation, and R as "row-wise
    normalised".
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.g = nn.Linear(width, width)
        self.theta = nn.Linear(width, width)
        self.phi = nn.Linear(width, width)
        self.W = Residual(width, width)

    def forward(self, rows: Tensor, real: Tensor) -> Tensor:
        """Apply reasoning to rows (B, n, width), and return rows of the same shape. ``real`` (B, n)
        is a boolean mask with at least one real row per picture."""
        # R (B, n, n) contains the weight of row j in row i.
        affinity = self.theta(rows) @ self.phi(rows).transpose(1, 2)
        affinity = affinity / real.sum(dim=1)[:, None, None]
        gathered = affinity @ (self.g(rows) * real[..., None])
        reasoned: Tensor = rows + self.W(gathered, real)
        return reasoned


class _VsrnImageTower(nn.Module):
    """Tower that maps regions to the picture's state and the relationship-enhanced regions V*.

    ``location`` is None, or a module that takes (rows, boxes, real) and whose result is combined
    into V*.
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
        self.img_rnn = _gru(config.image_pooling, config.width, config.width)
        self.order = config.region_order
        self.bn: nn.Module = nn.Identity()
        self.first_norm = config.variant == "coco"
        if config.variant == "f30k":
            self.bn = nn.BatchNorm1d(config.width)
        self.axis = AXES[config.norm_axis]

    def forward(
        self,
        features: Tensor,
        boxes: Tensor,
        lengths: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Encode features (B, n, region_dim), boxes (B, n, 4) and lengths (B,), all above 0. Return
        states (B, width) and regions (B, n, width)."""
        real = ~padding_mask(lengths, features.shape[1])
        rows: Tensor = self.fc(features)
        if self.first_norm:
            rows = self._unit(rows, real)
        reasoned = rows
        for number in self.layers:
            reasoned = getattr(self, f"Rs_GCN_{number}")(reasoned, real)
        if self.location is not None:
            reasoned = reasoned + self.location(rows, boxes, real)
        regions = self._unit(reasoned, real)
        if self.img_rnn is None:
            return self.bn(mean_of(regions, real)), regions
        states, _ = self.img_rnn(self._in_order(regions, boxes, real))
        return self.bn(at_last(states, lengths)), regions

    def _in_order(
        self,
        regions: Tensor,
        boxes: Tensor,
        real: Tensor,
    ) -> Tensor:
        """Return ``regions`` (B, n, width) in the order in which the GRU reads them, with padding
        last."""
        if self.order == "source":
            return regions
        count = real.shape[1]
        if self.order == "size":
            keys = -(boxes[..., 2:] - boxes[..., :2]).prod(dim=-1)
        elif self.order == "reversed":
            keys = -torch.arange(count).to(boxes)
        elif self.training:
            keys = torch.rand(
                real.shape,
                dtype=boxes.dtype,
                device=boxes.device,
            )
        else:
            # The first numbers that NumPy draws do not depend on how many numbers are drawn.
            keys = torch.from_numpy(np.random.default_rng(0).random(count)).to(boxes)
        keys = keys.expand(real.shape)
        order = keys.masked_fill(~real, torch.inf).argsort(dim=1, stable=True)
        return regions.take_along_dim(order[..., None], dim=1)

    def _unit(self, rows: Tensor, real: Tensor) -> Tensor:
        precise = rows.to(torch.promote_types(rows.dtype, torch.float32))
        return nn.functional.normalize(precise * real[..., None], dim=self.axis)


class Vsrn(Network):
    """Network that maps pictures and sentences into a common space by reasoning over regions and by
    GRUs over regions and words.

    Sets are the regions V*, normalised along ``norm_axis``, and the un-normalised GRU states after
    each word, including <start> and <end>. Pictures may have any number of regions, because
    computations along regions ignore padding. If all pictures have the same number of regions, the
    computations are the same as in the published models.
    """

    Config = VsrnConfig
    reads_boxes = False

    def __init__(
        self,
        config: VsrnConfig,
        text: Mapping[str, Any],
    ) -> None:
        super().__init__(config, text)
        self.dim = config.width
        self.img_enc = _VsrnImageTower(config)
        self.txt_rnn = _gru(
            config.text_pooling,
            self.txt_enc.width,
            config.width,
        )
        if self.txt_rnn is None:
            self.txt_fc = nn.Linear(self.txt_enc.width, config.width)

    def images(
        self,
        features: Tensor,
        boxes: Tensor,
        lengths: Tensor,
    ) -> Encodings:
        """Encode pictures. A picture without regions counts as one region with a zero feature."""
        if not features.shape[1]:
            features = nn.functional.pad(features, (0, 0, 0, 1))
            boxes = nn.functional.pad(boxes, (0, 0, 0, 1))
        padding = padding_mask(lengths, features.shape[1])[..., None]
        features = signed_power(features.masked_fill(padding, 0), self.config.region_power)
        boxes = boxes.masked_fill(padding, 0)
        state, regions = self.img_enc(
            features,
            boxes,
            lengths.clamp(min=1),
        )
        return Encodings(nn.functional.normalize(state, dim=1), regions)

    def words(self, hidden: Tensor, lengths: Tensor) -> Encodings:
        if self.txt_rnn is None:
            rows = self.txt_fc(hidden)
            pooled = mean_of(rows, ~padding_mask(lengths, hidden.shape[1]))
        else:
            rows, _ = self.txt_rnn(hidden)
            pooled = at_last(rows, lengths)
        return Encodings(nn.functional.normalize(pooled, dim=1), rows)


def _gru(
    pooling: str,
    inputs: int,
    width: int,
) -> nn.GRU | None:
    if pooling == "mean":
        return None
    return nn.GRU(inputs, width, batch_first=True)


def mean_of(rows: Tensor, real: Tensor) -> Tensor:
    """Return the mean (B, d) over the real rows of each item in rows (B, n, d)."""
    return (rows * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True)


def at_last(states: Tensor, lengths: Tensor) -> Tensor:
    """Return the last row of each item in ``states`` (B, n, d) before the padding, which a forward
    GRU never reads."""
    return states[torch.arange(len(states), device=states.device), lengths - 1]
