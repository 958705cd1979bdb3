"""The two towers of a model folder on torch: the reference, on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from boc.types import Ragged, Regions, Runtime

from ..networks import text_towers
from ..networks.base import Encodings, Network, pad_regions
from . import device
from .batching import in_batches, to_device
from .onnx_towers import Places


class TorchTowers:
    """A trained network, which encodes batches of pictures and of texts."""

    def __init__(self, network: Network, runtime: Runtime) -> None:
        self.device = device.pick(runtime.device)
        self.network = network.eval().to(self.device)
        self._precision = runtime.precision
        self._in_batches = partial(
            in_batches,
            self.device,
            runtime.precision,
            network.dim,
            size=runtime.batch,
        )
        self._images = (
            torch.compile(network.images, dynamic=True) if runtime.compile else network.images
        )
        self._texts = (
            torch.compile(network.texts, dynamic=True) if runtime.compile else network.texts
        )

    def images(self, regions: Sequence[Regions]) -> tuple[NDArray[np.float32], Ragged]:
        before, _ = self.network.region_margins

        def encode(batch: Sequence[Regions]) -> tuple[Tensor, list[Tensor]]:
            features, boxes, lengths = (to_device(t, self.device) for t in pad_regions(batch))
            return self._rows(
                self._images(features, boxes, lengths),
                [range(before, before + len(r)) for r in batch],
            )

        return self._in_batches(regions, [len(r) for r in regions], encode)

    def texts(
        self,
        ids: Sequence[list[int]],
        places: Places | None = None,
    ) -> tuple[NDArray[np.float32], Ragged, Places]:
        chosen = self._words(ids) if places is None else places
        inputs = list(zip(ids, chosen, strict=True))

        def encode(batch: Sequence[tuple[list[int], Sequence[int]]]) -> tuple[Tensor, list[Tensor]]:
            padded, lengths = (
                to_device(t, self.device) for t in text_towers.pad([row for row, _ in batch])
            )
            return self._rows(self._texts(padded, lengths), [own for _, own in batch])

        return *self._in_batches(inputs, [len(row) for row in ids], encode), chosen

    def _words(self, ids: Sequence[list[int]]) -> Places:
        """Return the positions of the words among the ids of each text."""
        if not ids:
            return []
        masks = self.network.word_mask(
            *text_towers.pad(ids),
        )  # on the host, without a device synchronisation
        return [torch.nonzero(mask).flatten().tolist() for mask in masks]

    def _rows(self, encoded: Encodings, places: Places) -> tuple[Tensor, list[Tensor]]:
        """Return vectors, and the rows ``places`` of each set, as slices where possible, which
        avoid a device synchronisation."""
        vectors = encoded.vectors
        if self._precision != "float32":
            vectors = nn.functional.normalize(vectors.float(), dim=-1)
        gapless = [not len(p) or p[-1] - p[0] + 1 == len(p) for p in places]
        return vectors, [
            rows[p[0] : p[-1] + 1] if whole and len(p) else rows[list(p)]
            for rows, p, whole in zip(encoded.sets, places, gapless, strict=True)
        ]
