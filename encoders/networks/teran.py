"""TERAN, the Transformer Encoder Reasoning and Alignment Network (Messina et al., ACM TOMM 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .base import Encoded
from .tern import Tern, TernConfig


@dataclass(frozen=True)
class TeranConfig(TernConfig):
    """Sizes as of TERN, and what TERAN may differ in.

    Attributes
    ----------
    shared : whether pictures and sentences have the same last layers (section 8.1; the published default is no)
    last_word : whether the last word-piece before [SEP], most often the full stop, is a word of the alignment; the
        published network drops it
    stop_words : whether frequent words without a meaning of their own take part in the alignment (section 8.3)
    vector : what the global vector is: ``mean``, the mean over the regions or words that take part in the alignment;
        or ``first``, the special row as in the authors' code, which alignment alone does not train
    """

    shared: bool = False
    last_word: bool = False
    stop_words: bool = True
    vector: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vector not in {"first", "mean"}:
            raise ValueError(f"vector must be first or mean, got {self.vector!r}")


class Teran(Tern):
    """TERN with last layers of its own for each side, and sets of unit rows that are aligned with each other.

    When not shared, ``transformer_encoder_1`` reads sentences and ``transformer_encoder_2`` pictures.
    """

    Config = TeranConfig

    def __init__(self, config: TeranConfig, text: Mapping[str, Any]) -> None:
        super().__init__(config, text)
        if not config.shared:
            self.transformer_encoder_2 = self._joint_encoder()
        self.word_margins = (1, 1 if config.last_word else 2)
        stop_ids = [] if config.stop_words else list(text.get("stop_ids", ()))
        self.register_buffer("_stop_ids", torch.tensor(stop_ids, dtype=torch.long), persistent=False)

    @property
    def image_joint(self) -> nn.TransformerEncoder:
        return self.transformer_encoder_1 if self.config.shared else self.transformer_encoder_2

    def images(self, features: Tensor, boxes: Tensor, lengths: Tensor) -> Encoded:
        found = super().images(features, boxes, lengths)
        return self._pooled(found, self.region_mask(lengths, found.sets.shape[1]))

    def words(self, hidden: Tensor, lengths: Tensor) -> Encoded:
        found = super().words(hidden, lengths)
        places = torch.arange(hidden.shape[1], device=hidden.device)[None, :]
        return self._pooled(found, (places >= 1) & (places < (lengths - 1)[:, None]))

    def word_mask(self, ids: Tensor, lengths: Tensor) -> Tensor:
        mask = super().word_mask(ids, lengths)
        return mask if self.config.stop_words else mask & ~torch.isin(ids, self._stop_ids.to(ids.device))

    def _encoded(self, joined: Tensor, rows: Tensor) -> Encoded:
        found = super()._encoded(joined, rows)
        return found._replace(sets=nn.functional.normalize(found.sets, dim=-1))

    def _pooled(self, found: Encoded, mask: Tensor) -> Encoded:
        """The mean over masked rows in place of the first row, if so configured; the first where there are none."""
        if self.config.vector == "first":
            return found
        total = (found.sets * mask[..., None]).sum(dim=1)
        total = torch.where(mask.any(dim=1, keepdim=True), total, found.sets[:, 0])
        return found._replace(vectors=nn.functional.normalize(total, dim=-1))
