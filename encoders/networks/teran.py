"""TERAN, the Transformer Encoder Reasoning and Alignment Network (Messina et al., ACM TOMM
2021)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .base import Encodings, one_of, row_mask
from .tern import Tern, TernConfig


@dataclass(frozen=True)
class TeranConfig(TernConfig):
    """Sizes of TERN, and options of TERAN.

    Attributes
    ----------
    shared : bool
        Whether pictures and sentences share the last layers (section 8.1). The published default is
        False.
    last_word : bool
        Whether the last word-piece before [SEP], usually the full stop, takes part in the
        alignment. The published network excludes this word-piece.
    stop_words : bool
        Whether stop-words take part in the alignment (section 8.3).
    vector : {"mean", "gathered", "first"}
        Source of the global vector: ``mean`` is the mean over the regions or words in the
        alignment; ``gathered`` is their mean with learned weights; ``first`` is the special row, as
        in the authors' code, which alignment on its own does not train.
    """

    shared: bool = False
    last_word: bool = False
    stop_words: bool = True
    vector: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("vector", self.vector, ("first", "mean", "gathered"))


class Teran(Tern):
    """TERN with separate last layers for pictures and sentences, and with sets of unit rows for
    alignment.

    If the last layers are not shared, ``transformer_encoder_1`` reads sentences and
    ``transformer_encoder_2`` reads pictures.
    """

    Config = TeranConfig
    _stop_ids: Tensor

    def __init__(
        self,
        config: TeranConfig,
        text: Mapping[str, Any],
    ) -> None:
        super().__init__(config, text)
        if not config.shared:
            self.transformer_encoder_2 = self._joint_encoder()
        if config.vector == "gathered":
            self.image_gather = nn.Linear(config.joint_width, 1)
            self.text_gather = nn.Linear(config.joint_width, 1)
        self.word_margins = (1, 2 - config.last_word)
        stop_ids = torch.tensor(text.get("stop_ids", ()), dtype=torch.long)
        self.register_buffer("_stop_ids", stop_ids, persistent=False)

    @property
    def image_joint(self) -> nn.Module:
        if self.config.shared:
            return self.transformer_encoder_1
        return self.transformer_encoder_2

    def images(
        self,
        features: Tensor,
        boxes: Tensor,
        lengths: Tensor,
    ) -> Encodings:
        encoded = super().images(features, boxes, lengths)
        return self._pool(encoded, self.region_mask(lengths, encoded.sets.shape[1]), "image_gather")

    def words(self, hidden: Tensor, lengths: Tensor) -> Encodings:
        encoded = super().words(hidden, lengths)
        return self._pool(encoded, row_mask(1, lengths - 1, hidden.shape[1]), "text_gather")

    def word_mask(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return a mask of the words. If stop-words are excluded, the last remaining piece is
        excluded as well, as in the authors' code."""
        if self.config.stop_words:
            return super().word_mask(ids, lengths)
        stop = (ids[..., None] == self._stop_ids.to(ids.device)).any(dim=-1)
        mask = row_mask(1, lengths - 1, ids.shape[1]) & ~stop
        # This is the number of words from each position to the end (B, L).
        from_here = mask.flip(1).cumsum(dim=1).flip(1)
        return mask & (from_here >= self.word_margins[1])

    def _encodings(self, joined: Tensor, rows: Tensor) -> Encodings:
        encoded = super()._encodings(joined, rows)
        return encoded._replace(sets=nn.functional.normalize(encoded.sets, dim=-1))

    def _pool(
        self,
        encoded: Encodings,
        mask: Tensor,
        gather: str,
    ) -> Encodings:
        """Return encodings whose vectors are the means over masked rows, unless the configuration
        selects the first row or an item has no such rows."""
        if self.config.vector == "first":
            return encoded
        weights = mask[..., None].to(encoded.sets.dtype)
        if self.config.vector == "gathered":
            logarithms = getattr(self, gather)(encoded.sets)
            weights = weights * logarithms.clamp(-20, 20).exp()
        total = (encoded.sets * weights).sum(dim=1)
        exists = mask.any(dim=1, keepdim=True)
        total = torch.where(exists, total, encoded.sets[:, 0])
        return encoded._replace(vectors=nn.functional.normalize(total, dim=-1))
