"""TERN, the Transformer Encoder Reasoning Network (Messina et al., ICPR 2020).

Module names follow the published checkpoints, so that tensors can be loaded by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .base import Encodings, Network, signed_power
from .layers import padding_mask, transformer

BOX_CODE = 5  # x1, y1, x2, y2, area


@dataclass(frozen=True)
class TernConfig:
    """Network sizes. The defaults are the published sizes.

    ``region_dim`` is the width of a region feature, ``visual_width`` the width of the visual
    transformer, and ``joint_width`` the width of the common space. The text tower has its own
    sizes. Features are first raised to ``region_power``, keeping their signs; 1 is the published
    value, and 0.5 evens out the activations of rectified convolutions. If ``scaled``, each feature
    is then centred and scaled by its mean and deviation over the training pictures, so that
    features from different sources, such as shapes and colours, have equal weight. ``box_weight``
    multiplies the box code of a region, which competes with hundreds of features; 1 is the
    published value, and with 8, positions have an effect even beside scaled features. ``residual``
    is the weight of a concept's row before the last layers relative to its row after the last
    layers, with both scaled to the same length; 0 is the published value, with which rows may
    become equal.
    """

    region_dim: int = 2048
    visual_width: int = 2048
    visual_layers: int = 4
    joint_width: int = 1024
    joint_layers: int = 2
    heads: int = 4
    feedforward: int = 2048
    dropout: float = 0.1
    region_power: float = 1.0
    scaled: bool = False
    box_weight: float = 1.0
    residual: float = 0.0

    def __post_init__(self) -> None:
        for name in ("visual_width", "joint_width"):
            if getattr(self, name) % self.heads:
                raise ValueError(
                    f"{name} must be a multiple of heads={self.heads}, got {getattr(self, name)}",
                )


class _BoxFusion(nn.Module):
    """Concatenate a region's feature and box code, and process both (TERN, eq. 2 and
    "concat-and-process").

    The box code is x1/W, y1/H, x2/W, y2/H and the area, as in the authors' code, whereas eq. 2 in
    the paper divides differently.
    """

    def __init__(
        self,
        region_dim: int,
        width: int,
        weight: float,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.map = nn.Sequential(
            nn.Linear(region_dim + BOX_CODE, width),
            nn.ReLU(),
            nn.Linear(width, width),
        )

    def forward(self, features: Tensor, boxes: Tensor) -> Tensor:
        left, top, right, bottom = boxes.unbind(-1)
        area = (right - left) * (bottom - top)
        code = torch.cat([boxes, area[..., None]], dim=-1) * self.weight
        fused: Tensor = self.map(torch.cat([features, code], dim=-1))
        return fused


class _TernImageTower(nn.Module):
    def __init__(self, config: TernConfig) -> None:
        super().__init__()
        self.pos_encoding_image = _BoxFusion(
            config.region_dim,
            config.visual_width,
            config.box_weight,
        )
        self.transformer_encoder = transformer(
            config.visual_width,
            config.heads,
            config.feedforward,
            config.visual_layers,
            config.dropout,
        )

    def forward(
        self,
        features: Tensor,
        boxes: Tensor,
        mask: Tensor,
    ) -> Tensor:
        fused = self.pos_encoding_image(features, boxes)
        encoded: Tensor = self.transformer_encoder(fused, src_key_padding_mask=mask)
        return encoded


class Tern(Network):
    """Transformer encoders over regions and over words, with shared last layers.

    Sets are not normalised. Row 0 is I-CLS or [CLS], whose direction is the global vector.
    """

    Config = TernConfig
    region_margins = (1, 0)

    def __init__(
        self,
        config: TernConfig,
        text: Mapping[str, Any],
    ) -> None:
        super().__init__(config, text)
        self.dim = config.joint_width
        if config.scaled:
            self.register_buffer("region_mean", torch.zeros(config.region_dim))
            self.register_buffer("region_deviation", torch.ones(config.region_dim))
        self.img_enc = _TernImageTower(config)
        self.img_proj = nn.Linear(config.visual_width, config.joint_width)
        self.cap_proj = nn.Linear(self.txt_enc.width, config.joint_width)
        self.transformer_encoder_1 = self._joint_encoder()

    def images(
        self,
        features: Tensor,
        boxes: Tensor,
        lengths: Tensor,
    ) -> Encodings:
        """Encode pictures. A zero row, I-CLS, precedes the regions and represents the whole
        picture."""
        features = signed_power(features, self.config.region_power)
        if self.config.scaled:
            features = (features - self.region_mean) / self.region_deviation
        features = nn.functional.pad(features, (0, 0, 1, 0))
        boxes = nn.functional.pad(boxes, (0, 0, 1, 0))
        mask = padding_mask(lengths + 1, features.shape[1])
        rows = self.img_proj(self.img_enc(features, boxes, mask))
        return self._encodings(self.image_joint(rows, src_key_padding_mask=mask), rows)

    def words(self, hidden: Tensor, lengths: Tensor) -> Encodings:
        mask = padding_mask(lengths, hidden.shape[1])
        rows = self.cap_proj(hidden)
        return self._encodings(self.transformer_encoder_1(rows, src_key_padding_mask=mask), rows)

    @property
    def image_joint(self) -> nn.Module:
        """Return the last layers for pictures."""
        return self.transformer_encoder_1

    def _joint_encoder(self) -> nn.Module:
        config = self.config
        return transformer(
            config.joint_width,
            config.heads,
            config.feedforward,
            config.joint_layers,
            config.dropout,
        )

    def _encodings(self, joined: Tensor, rows: Tensor) -> Encodings:
        """Return the encodings from ``rows`` and ``joined``, the input and output of the last
        layers, both (B, n, joint_width)."""
        first = joined[:, 0]
        vectors = first / first.norm(dim=1, keepdim=True)
        if not self.config.residual:
            return Encodings(vectors, joined)
        own = nn.functional.normalize(rows, dim=-1) * joined.norm(dim=-1, keepdim=True)
        return Encodings(vectors, joined + self.config.residual * own)
