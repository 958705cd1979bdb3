"""Alignment scores of many concept sets on a device, for evaluations that a CPU takes long for."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from boc.types import Ragged

from .device import pick

CELLS = 1 << 26  # cosines in memory at a time


def alignments(words: Ragged, regions: Ragged, metric: str, device: str) -> NDArray[np.float32]:
    """Alignment scores (n_texts, n_images) of all sets of words with all sets of regions, each float32 (N, d), as
    ``boc.rerank.alignment.alignments`` computes them.

    Besides the normalised sets, about 256 MB of cosines are in the memory of the ``device`` at a time.
    """
    device = pick(device)
    scores = np.zeros((len(words), len(regions)), dtype=np.float32)
    if not len(words.values) or not len(regions.values):
        return scores
    sentences, spoken = _pad(words, device)
    step = max(1, CELLS // max(1, spoken.numel() * int(np.diff(regions.offsets).max(initial=0))))
    for first in range(0, len(regions), step):
        pictures, seen = _pad(regions.take(range(first, min(first + step, len(regions)))), device)
        if pictures.numel():
            scores[:, first : first + step] = _pool_cosines(sentences, spoken, pictures, seen, metric).cpu().numpy()
    return scores


def _pad(sets: Ragged, device: str) -> tuple[Tensor, Tensor]:
    """Return unit rows (n, longest, d) and which of them are there (n, longest)."""
    rows = torch.nn.functional.normalize(torch.from_numpy(np.ascontiguousarray(sets.values)).to(device), dim=1)
    counts = np.diff(sets.offsets).tolist()
    padded = pad_sequence(list(rows.split(counts)), batch_first=True)
    there = torch.arange(padded.shape[1], device=device)[None, :] < torch.tensor(counts, device=device)[:, None]
    return padded, there


def _pool_cosines(words: Tensor, spoken: Tensor, regions: Tensor, seen: Tensor, metric: str) -> Tensor:
    """Return scores (n_texts, n_images); a maximum over no row is 0."""
    (n, longest, width), (m, count, _) = words.shape, regions.shape
    cosines = (words.reshape(-1, width) @ regions.reshape(-1, width).T).view(n, longest, m, count)

    def sum_over(own: Tensor, others: Tensor, axis: int) -> Tensor:
        """Sum over the rows ``own`` of the maximum over the rows ``others``, which are along ``axis``."""
        best = cosines.masked_fill(~others, -torch.inf).amax(dim=axis, keepdim=True)
        best = torch.where(own & others.any(dim=axis, keepdim=True), best, 0)
        return best.sum(dim=(1, 3))

    said, shown = spoken[:, :, None, None], seen[None, None]
    if metric == "mwsr":
        return sum_over(shown, said, 1)
    by_word = sum_over(said, shown, 3)
    if metric == "mravgw":
        return by_word / spoken.sum(dim=1).clamp(min=1)[:, None]
    return by_word + sum_over(shown, said, 1) if metric == "symm" else by_word
