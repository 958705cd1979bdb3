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
Numbers = Sequence[int] | NDArray[np.int64]


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
    joined = torch.cat(list(columns), dim=-1)
    places = [place for chunk in chunks for place in chunk.places]
    return joined[..., torch.argsort(torch.tensor(places, device=joined.device))]


class CaptionTensors:
    """Captions by number, through a text tower that is trained or frozen.

    A frozen tower reads every caption once; its outputs are stored in a float16 file in ``folder``,
    memory-mapped.
    """

    def __init__(
        self,
        captions: Sequence[Item],
        tokens: Tokens,
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
        self._offsets = np.concatenate([[0], np.cumsum([len(row) for row in self.ids])])

    def __len__(self) -> int:
        return len(self.ids)

    def prepare(self, network: Network, device: str) -> Iterator[int]:
        """Run a frozen tower over all captions; yields the number done. A trained tower needs no
        preparation."""
        if self.frozen and not self._path.exists():
            network.eval()
            shape = (int(self._offsets[-1]), network.txt_enc.width)
            with replacing(self._path) as temporary:
                out = np.lib.format.open_memmap(
                    temporary,
                    mode="w+",
                    dtype=np.float16,
                    shape=shape,
                )
                for start in range(0, len(self), BATCH):
                    stop = min(start + BATCH, len(self))
                    rows = _hidden(network, self.ids[start:stop], device)
                    out[self._offsets[start] : self._offsets[stop]] = torch.cat(rows).numpy()
                    yield stop
                out.flush()
                del out
        yield len(self)

    def encode(
        self,
        network: Network,
        numbers: Numbers,
        device: str,
        rows: Sequence[list[int]] | None = None,
    ) -> list[Chunk]:
        """Encode the captions ``numbers``, or instead the ids ``rows``, which only a trained tower
        can read.

        Captions of similar length are batched, so there is little padding.
        """
        if rows is None:
            rows = [self.ids[i] for i in numbers]
        lengths = [len(row) for row in rows]
        order = sorted(range(len(rows)), key=lambda i: lengths[i])
        chunks = []
        for start in range(0, len(order), 64):
            places = order[start : start + 64]
            ids, counts = (each.to(device) for each in pad([rows[i] for i in places]))
            if self.frozen:
                words = self._stored([numbers[i] for i in places])
                tensors = [torch.from_numpy(each.copy()) for each in words]
                hidden = pad_sequence(tensors, batch_first=True).float()
                encoded = network.words(hidden.to(device), counts)
            else:
                encoded = network.texts(ids, counts)
            chunks.append(Chunk(places, encoded, network.word_mask(ids, counts)))
        return chunks

    def means(
        self,
        network: Network,
        numbers: Numbers,
        device: str,
    ) -> Tensor:
        """Return the mean output of the text tower over the tokens of each caption, float32
        (len(numbers), h)."""
        if self.frozen:
            words = self._stored(numbers)
            return torch.from_numpy(np.stack([each.mean(0, dtype=np.float32) for each in words]))
        network.eval()
        means: dict[int, Tensor] = {}
        order = sorted(set(map(int, numbers)), key=lambda i: len(self.ids[i]))
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            with torch.autocast(device, dtype=torch.bfloat16, enabled=fast_bfloat16(device)):
                rows = _hidden(
                    network,
                    [self.ids[i] for i in part],
                    device,
                )
            for i, row in zip(part, rows, strict=True):
                means[i] = row.float().mean(dim=0)
        return torch.stack([means[int(i)] for i in numbers])

    def bags(self, numbers: Numbers) -> sparse.csr_array:
        """Return the relative frequency of each id in each caption, float64 (len(numbers),
        size)."""
        lengths = np.array([len(self.ids[i]) for i in numbers])
        items = np.repeat(np.arange(len(numbers)), lengths)
        shares = np.repeat(1 / lengths, lengths)
        columns = np.concatenate([self.ids[i] for i in numbers])
        shape = (len(numbers), self.size)
        return sparse.coo_array((shares, (items, columns)), shape=shape).tocsr()

    def _stored(self, numbers: Numbers) -> list[NDArray[np.float16]]:
        """Return the stored outputs of a frozen tower, (length, h) per caption."""
        words = np.load(self._path, mmap_mode="r", allow_pickle=False)
        return [words[self._offsets[i] : self._offsets[i + 1]] for i in numbers]


@torch.inference_mode()
def _hidden(
    network: Network,
    ids: Sequence[list[int]],
    device: str,
) -> list[Tensor]:
    """Return the outputs (length, h) of the text tower for each text, on the CPU."""
    padded, lengths = pad(ids)
    hidden = network.txt_enc(padded.to(device), lengths.to(device)).cpu()
    return [row[:length] for row, length in zip(hidden, lengths.tolist(), strict=True)]
