"""Base class for networks that map images (sets of regions) and sentences (sequences of words) to a
common space."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from boc.errors import EncoderError
from boc.types import Regions

from . import text_towers


class Encodings(NamedTuple):
    """Network outputs: ``vectors`` (B, dim) with unit rows, and ``sets`` (B, rows, dim), whose rows
    are undefined beyond the length of an item."""

    vectors: Tensor
    sets: Tensor


class Network(nn.Module):
    """Base class of all networks. A network is built from a configuration with its sizes and a
    description of its text tower (see ``text_towers.build``).

    A subclass defines its configuration class and the special rows of its sets: ``region_margins``
    and ``word_margins`` are the numbers of special rows before and after the regions and words.
    ``reads_boxes`` is true if vectors depend on the positions of regions. ``dim`` is the width of
    the common space.
    """

    Config: ClassVar[type]
    region_margins: tuple[int, int] = (0, 0)
    word_margins: tuple[int, int] = (1, 1)
    reads_boxes: ClassVar[bool] = True
    dim: int
    txt_enc: Any
    region_mean: Tensor
    region_deviation: Tensor

    def __init__(
        self,
        config: Any,
        text: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.config = config
        self.text = dict(text)
        self.txt_enc = text_towers.build(text)

    def images(
        self,
        features: Tensor,
        boxes: Tensor,
        lengths: Tensor,
    ) -> Encodings:
        """Encode pictures from features (B, n, region_dim), boxes (B, n, 4) as fractions of width
        and height, and lengths (B,), the numbers of regions."""
        raise NotImplementedError

    def words(self, hidden: Tensor, lengths: Tensor) -> Encodings:
        """Encode sentences from hidden (B, L, h), the output of the text tower, and lengths
        (B,)."""
        raise NotImplementedError

    def texts(self, ids: Tensor, lengths: Tensor) -> Encodings:
        """Encode sentences from ids (B, L), including special ids, and lengths (B,)."""
        return self.words(self.txt_enc(ids, lengths), lengths)

    def region_mask(self, lengths: Tensor, rows: int) -> Tensor:
        """Return a mask (B, rows) that selects the regions in the sets of pictures with ``lengths``
        regions."""
        before, _ = self.region_margins
        return row_mask(before, before + lengths, rows)

    def word_mask(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return a mask (B, L) that selects the words in the sets of texts."""
        before, behind = self.word_margins
        return row_mask(before, lengths - behind, ids.shape[1])


def row_mask(start: int, stop: Tensor, size: int) -> Tensor:
    """Return a mask (B, size), true from ``start`` up to ``stop`` (B,) in each row."""
    places = torch.arange(size, device=stop.device)[None, :]
    return (places >= start) & (places < stop[:, None])


def one_of(
    name: str,
    value: str,
    known: Collection[str],
) -> None:
    """Raise EncoderError unless ``value`` is one of ``known``."""
    if value not in known:
        raise EncoderError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def signed_power(features: Tensor, power: float) -> Tensor:
    """Return |x| ** power with the sign of x."""
    if power == 1:
        return features
    return features.sign() * features.abs().pow(power)


def pad_regions(regions: Sequence[Regions]) -> tuple[Tensor, Tensor, Tensor]:
    """Return features (B, n, d), boxes (B, n, 4) and lengths (B,), zero-padded to the longest
    set."""
    features = [torch.from_numpy(np.asarray(each.features)) for each in regions]
    boxes = [torch.from_numpy(np.asarray(each.boxes)) for each in regions]
    return (
        pad_sequence(features, batch_first=True).float(),
        pad_sequence(boxes, batch_first=True).float(),
        torch.tensor([len(each) for each in regions]),
    )
