"""Captions as tensors: word-piece ids, or what a frozen text tower makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from boc.files import replacing
from boc.types import Item

from .._text import TextTower, pad, tokenize
from ..tern import Tern

BATCH = 256
CHUNK = 64


class Captions:
    """Joint-space vectors of captions by number, through a text tower that learns along or is frozen.

    A frozen tower reads every caption once; what it gives stays in a float16 file in ``folder``, memory-mapped.
    """

    def __init__(self, captions: Sequence[Item], tower: TextTower, *, frozen: bool, folder: Path) -> None:
        limit = tower.bert.config.max_position_embeddings
        self.ids = tokenize(tower.tokenizer, [caption.content for caption in captions], limit)
        self.frozen = frozen
        self._path = folder / "words.npy"
        self._width = tower.bert.config.hidden_size
        self._offsets = np.concatenate([[0], np.cumsum([len(row) for row in self.ids])])

    def __len__(self) -> int:
        return len(self.ids)

    def prepare(self, model: Tern, device: str) -> Iterator[int]:
        """Run the frozen tower over all captions; yields the number done. Nothing to do for one that learns."""
        if self.frozen and not self._path.exists():
            with replacing(self._path) as temporary:
                shape = (int(self._offsets[-1]), self._width)
                out = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float16, shape=shape)
                model.eval()
                for start in range(0, len(self.ids), BATCH):
                    out[self._offsets[start] : self._offsets[min(start + BATCH, len(self.ids))]] = self._read(
                        model, start, device
                    )
                    yield min(start + BATCH, len(self.ids))
                out.flush()
                del out
        yield len(self.ids)

    def encode(self, model: Tern, numbers: Sequence[int], device: str) -> Tensor:
        """Unit vectors (len(numbers), joint_width). Captions of like length go together: little padding is computed."""
        order = sorted(range(len(numbers)), key=lambda i: len(self.ids[numbers[i]]))
        chunks = [[numbers[i] for i in order[start : start + CHUNK]] for start in range(0, len(order), CHUNK)]
        vectors = torch.cat([self._encode(model, chunk, device) for chunk in chunks])
        return vectors[torch.argsort(torch.tensor(order, device=vectors.device))]

    def _encode(self, model: Tern, numbers: Sequence[int], device: str) -> Tensor:
        if not self.frozen:
            ids, lengths = pad([self.ids[i] for i in numbers])
            return model.texts(ids.to(device), lengths.to(device))[0]
        words = np.load(self._path, mmap_mode="r", allow_pickle=False)
        rows = [torch.from_numpy(words[self._offsets[i] : self._offsets[i + 1]].copy()) for i in numbers]
        hidden = pad_sequence(rows, batch_first=True).float()
        return model.words(hidden.to(device), torch.tensor([len(r) for r in rows], device=device))[0]

    @torch.inference_mode()
    def means(self, model: Tern, numbers: Sequence[int], device: str) -> Tensor:
        """Mean output of the text tower over the word-pieces of each caption, float32 (len(numbers), h)."""
        if self.frozen:
            words = np.load(self._path, mmap_mode="r", allow_pickle=False)
            spans = ((self._offsets[i], self._offsets[i + 1]) for i in numbers)
            return torch.from_numpy(np.stack([words[a:b].mean(axis=0, dtype=np.float32) for a, b in spans]))
        model.eval()
        found = []
        for start in range(0, len(numbers), BATCH):
            ids, lengths = pad([self.ids[i] for i in numbers[start : start + BATCH]])
            hidden = model.txt_enc(ids.to(device), lengths.to(device)).cpu()
            found += [row[:n].mean(dim=0) for row, n in zip(hidden, lengths.tolist(), strict=True)]
        return torch.stack(found)

    @torch.inference_mode()
    def _read(self, model: Tern, start: int, device: str) -> np.ndarray:
        ids, lengths = pad(self.ids[start : start + BATCH])
        hidden = model.txt_enc(ids.to(device), lengths.to(device)).cpu()
        return np.concatenate([row[:n].numpy() for row, n in zip(hidden, lengths.tolist(), strict=True)])
