"""What the networks have in common: images as sets of regions, sentences as sequences of words, into one space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from boc.types import Regions

from . import text_towers


class Encoded(NamedTuple):
    """``vectors`` (B, dim), unit rows; ``sets`` (B, rows, dim), contextualized, rows behind an item's length without
    meaning."""

    vectors: Tensor
    sets: Tensor


class Network(nn.Module):
    """Base of the networks, made of a configuration of sizes and a description of the text tower (see
    ``_text.build``).

    A derived class names its configuration, and says which rows of its sets are special: ``region_margins`` and
    ``word_margins`` count those before and behind the regions and words.
    """

    Config: ClassVar[type]
    region_margins: tuple[int, int] = (0, 0)
    word_margins: tuple[int, int] = (1, 1)

    def __init__(self, config: Any, text: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.text = dict(text)
        self.txt_enc = text_towers.build(text)

    @property
    def dim(self) -> int:
        """Width of the common space."""
        raise NotImplementedError

    def images(self, features: Tensor, boxes: Tensor, lengths: Tensor) -> Encoded:
        """features (B, n, region_dim), boxes (B, n, 4) in parts of width and height, lengths (B,) of the n."""
        raise NotImplementedError

    def words(self, hidden: Tensor, lengths: Tensor) -> Encoded:
        """hidden (B, L, h) that the text tower gave, lengths (B,)."""
        raise NotImplementedError

    def texts(self, ids: Tensor, lengths: Tensor) -> Encoded:
        """ids (B, L), special ones included, lengths (B,)."""
        return self.words(self.txt_enc(ids, lengths), lengths)

    def region_mask(self, lengths: Tensor, rows: int) -> Tensor:
        """Boolean (B, rows): which rows of the sets of pictures with ``lengths`` regions are regions."""
        before, _ = self.region_margins
        return _between(before, before + lengths, rows)

    def word_mask(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Boolean (B, L): which rows of the sets of texts are words."""
        before, behind = self.word_margins
        return _between(before, lengths - behind, ids.shape[1])


def _between(start: int, stop: Tensor, size: int) -> Tensor:
    places = torch.arange(size, device=stop.device)[None, :]
    return (places >= start) & (places < stop[:, None])


def raised(features: Tensor, power: float) -> Tensor:
    """|x| ** power with the sign of x."""
    return features if power == 1 else features.sign() * features.abs().pow(power)


def pad_regions(regions: Sequence[Regions]) -> tuple[Tensor, Tensor, Tensor]:
    """features (B, n, d), boxes (B, n, 4), lengths (B,), zero-padded to the longest."""
    features = pad_sequence([torch.from_numpy(np.asarray(r.features)) for r in regions], batch_first=True)
    boxes = pad_sequence([torch.from_numpy(np.asarray(r.boxes)) for r in regions], batch_first=True)
    return features.float(), boxes.float(), torch.tensor([len(r) for r in regions])
