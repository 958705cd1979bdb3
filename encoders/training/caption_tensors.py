"""Convert captions to tensors of word ids."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from boc.types import Item
from boc.vectors import Ints, batches

from ..networks.base import Encodings, Network
from ..networks.text_towers import opposite_ids, pad, stop_ids
from ..networks.tokens import Tokens
from ..runtime.device import fast_bfloat16

BATCH = 256
Numbers = Sequence[int] | Ints


@dataclass(frozen=True)
class Chunk:
    """Encoded captions of similar length, with their ``places`` (c,) in the request and a ``mask``
    (c, L) of rows that are words."""

    places: list[int]
    encoded: Encodings
    mask: Tensor


def in_order(chunks: Sequence[Chunk], columns: Sequence[Tensor]) -> Tensor:
    """Concatenate one tensor (..., c) per chunk along the last axis, in request order."""
    joined = torch.cat(list(columns), dim=-1)
    places = [place for chunk in chunks for place in chunk.places]
    return joined[..., torch.argsort(torch.tensor(places, device=joined.device))]


class CaptionTensors:
    """Captions of a training run, by number, as inputs for a text tower."""

    def __init__(self, captions: Sequence[Item], tokens: Tokens) -> None:
        self.texts = [caption.content for caption in captions]
        self.ids = tokens.ids(self.texts)
        self.stops = stop_ids(tokens)
        self.opposites = opposite_ids(tokens)
        self.size = tokens.size

    def encode(
        self,
        network: Network,
        numbers: Numbers,
        device: str,
        rows: Sequence[list[int]] | None = None,
    ) -> list[Chunk]:
        """Encode the captions with these ``numbers``, or ``rows`` of ids in their place.

        Captions of similar length are batched together to reduce padding.
        """
        if rows is None:
            rows = [self.ids[i] for i in numbers]
        lengths = [len(row) for row in rows]
        order = sorted(range(len(rows)), key=lambda i: lengths[i])
        chunks = []
        for places in batches(order, 64):
            ids, counts = (each.to(device) for each in pad([rows[i] for i in places]))
            encoded = network.texts(ids, counts)
            chunks.append(Chunk(places, encoded, network.word_mask(ids, counts)))
        return chunks

    @torch.inference_mode()
    def means(
        self,
        network: Network,
        numbers: Numbers,
        device: str,
    ) -> Tensor:
        """Return the mean output of the text tower over the tokens of each caption, float32
        (len(numbers), h)."""
        network.eval()
        means = {}
        order = sorted(set(map(int, numbers)), key=lambda i: len(self.ids[i]))
        for part in batches(order, BATCH):
            ids, lengths = pad([self.ids[i] for i in part])
            with torch.autocast(device, dtype=torch.bfloat16, enabled=fast_bfloat16(device)):
                rows = network.txt_enc(ids.to(device), lengths.to(device)).cpu()
            for i, row, length in zip(part, rows, lengths.tolist(), strict=True):
                means[i] = row[:length].float().mean(dim=0)
        return torch.stack([means[int(i)] for i in numbers])

    def bags(self, numbers: Numbers) -> sparse.csr_array:
        """Return the relative frequency of each id in each caption, float64 (len(numbers),
        size)."""
        lengths = np.array([len(self.ids[i]) for i in numbers])
        items = np.repeat(np.arange(len(numbers)), lengths)
        shares = np.repeat(1 / lengths, lengths)
        columns = np.concatenate([self.ids[i] for i in numbers])
        return sparse.coo_array((shares, (items, columns)), shape=(len(numbers), self.size)).tocsr()
