"""Captions as tensors: ids of words, or the outputs of a frozen text tower."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from boc.atomic_files import replacing
from boc.types import Item

from ..networks.base import Encodings, Network
from ..networks.text_towers import opposite_ids, pad, stop_ids
from ..networks.tokens import Tokens
from ..runtime.device import fast_bfloat16

BATCH = 256
CHUNK = 64


@dataclass(frozen=True)
class Chunk:
    """Encoded captions of similar length: ``places`` (c,) in the request, ``mask`` (c, L) of rows
    that are words."""

    places: list[int]
    encoded: Encodings
    mask: Tensor


def in_order(chunks: Sequence[Chunk], columns: Sequence[Tensor]) -> Tensor:
    """Concatenate one tensor (..., c) per chunk along the last axis, in the order of the
    request."""
    places = torch.tensor(
        [place for chunk in chunks for place in chunk.places],
        device=columns[0].device,
    )
    return torch.cat(list(columns), dim=-1)[..., torch.argsort(places)]


class CaptionTensors:
    """Captions by number, through a text tower that is trained or frozen.

    A frozen tower reads every caption once; its outputs are stored in a float16 file in ``folder``,
    memory-mapped.
    """

    def __init__(
        self,
        captions: Sequence[Item],
        tokens: Tokens,
        width: int,
        *,
        frozen: bool,
        folder: Path,
    ) -> None:
        self.texts = [caption.content for caption in captions]
        self.ids = tokens.ids(self.texts)
        self.stops = stop_ids(tokens)
        self.opposites = opposite_ids(tokens)
        self.size = tokens.size
        self.frozen = frozen
        self._path = folder / "words.npy"
        self._width = width
        self._offsets = np.concatenate([[0], np.cumsum([len(row) for row in self.ids])])

    def __len__(self) -> int:
        return len(self.ids)

    def prepare(self, network: Network, device: str) -> Iterator[int]:
        """Run a frozen tower over all captions; yields the number done. A trained tower needs no
        preparation."""
        if self.frozen and not self._path.exists():
            with replacing(self._path) as temporary:
                shape = (int(self._offsets[-1]), self._width)
                out = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float16, shape=shape)
                network.eval()
                for start in range(0, len(self.ids), BATCH):
                    out[self._offsets[start] : self._offsets[min(start + BATCH, len(self.ids))]] = (
                        self._read(network, start, device)
                    )
                    yield min(start + BATCH, len(self.ids))
                out.flush()
                del out
        yield len(self.ids)

    def encode(
        self,
        network: Network,
        numbers: Sequence[int] | NDArray[np.int64],
        device: str,
        rows: Sequence[list[int]] | None = None,
    ) -> list[Chunk]:
        """Encode the captions ``numbers``, or instead the ids ``rows``, which only a trained tower
        can read.

        Captions of similar length are batched, so there is little padding.
        """
        ids = [self.ids[i] for i in numbers] if rows is None else rows
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        parts = [order[start : start + CHUNK] for start in range(0, len(order), CHUNK)]
        return [
            self._encode(network, part, numbers, [ids[i] for i in part], device) for part in parts
        ]

    def _encode(
        self,
        network: Network,
        places: list[int],
        numbers: Sequence[int] | NDArray[np.int64],
        rows: Sequence[list[int]],
        device: str,
    ) -> Chunk:
        ids, lengths = (t.to(device) for t in pad(rows))
        mask = network.word_mask(ids, lengths)
        if not self.frozen:
            return Chunk(places, network.texts(ids, lengths), mask)
        words = np.load(self._path, mmap_mode="r", allow_pickle=False)
        spans = [(self._offsets[numbers[i]], self._offsets[numbers[i] + 1]) for i in places]
        hidden = pad_sequence(
            [torch.from_numpy(words[a:b].copy()) for a, b in spans],
            batch_first=True,
        ).float()
        return Chunk(places, network.words(hidden.to(device), lengths), mask)

    @torch.inference_mode()
    def means(
        self,
        network: Network,
        numbers: Sequence[int] | NDArray[np.int64],
        device: str,
    ) -> Tensor:
        """Return the mean output of the text tower over the tokens of each caption, float32
        (len(numbers), h)."""
        if self.frozen:
            words = np.load(self._path, mmap_mode="r", allow_pickle=False)
            spans = ((self._offsets[i], self._offsets[i + 1]) for i in numbers)
            return torch.from_numpy(
                np.stack([words[a:b].mean(axis=0, dtype=np.float32) for a, b in spans]),
            )
        network.eval()
        rows: dict[int, Tensor] = {}
        order = sorted(set(map(int, numbers)), key=lambda i: len(self.ids[i]))
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            ids, lengths = pad([self.ids[i] for i in part])
            with torch.autocast(device, dtype=torch.bfloat16, enabled=fast_bfloat16(device)):
                hidden = network.txt_enc(ids.to(device), lengths.to(device)).float().cpu()
            means = (row[:n].mean(dim=0) for row, n in zip(hidden, lengths.tolist(), strict=True))
            rows |= dict(zip(part, means, strict=True))
        return torch.stack([rows[int(i)] for i in numbers])

    def bags(self, numbers: Sequence[int] | NDArray[np.int64]) -> sparse.csr_array:
        """Return the relative frequency of each id in each caption, float64 (len(numbers),
        size)."""
        rows = np.repeat(np.arange(len(numbers)), [len(self.ids[i]) for i in numbers])
        shares = np.concatenate([np.full(len(self.ids[i]), 1 / len(self.ids[i])) for i in numbers])
        columns = np.concatenate([self.ids[i] for i in numbers])
        return sparse.coo_array((shares, (rows, columns)), shape=(len(numbers), self.size)).tocsr()

    @torch.inference_mode()
    def _read(self, network: Network, start: int, device: str) -> NDArray[np.float32]:
        ids, lengths = pad(self.ids[start : start + BATCH])
        hidden = network.txt_enc(ids.to(device), lengths.to(device)).cpu()
        return np.concatenate(
            [row[:n].numpy() for row, n in zip(hidden, lengths.tolist(), strict=True)],
        )
