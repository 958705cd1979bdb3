"""Run the two towers of a model folder on torch, which is the reference and uses a GPU if
available."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from boc.types import Ragged, Regions, Runtime
from boc.vectors import Floats

from ..networks import text_towers
from ..networks.base import Encodings, Network, pad_regions
from . import device
from .batching import in_batches, to_device
from .dual_encoder import Encoded
from .onnx_towers import Places


class TorchTowers:
    """Trained network that encodes batches of pictures and of texts."""

    def __init__(self, network: Network, runtime: Runtime) -> None:
        self.device = device.pick(runtime.device)
        self.network = network.eval().to(self.device)
        self.dim = network.dim
        self._runtime = runtime

    def images(self, regions: Sequence[Regions]) -> Encoded:
        before, _ = self.network.region_margins

        def encode(batch: Sequence[Regions]) -> tuple[Tensor, list[Tensor]]:
            inputs = [to_device(each, self.device) for each in pad_regions(batch)]
            places = [range(before, before + len(each)) for each in batch]
            return self._rows(self.network.images(*inputs), places)

        return in_batches(
            self.device,
            self._runtime,
            self.dim,
            regions,
            [len(each) for each in regions],
            encode,
        )

    def texts(
        self,
        ids: Sequence[list[int]],
        places: Places | None = None,
    ) -> tuple[Floats, Ragged, Places]:
        """Encode ids. Return vectors, sets with the rows ``places`` (by default the words), and
        these places."""
        chosen = places
        if chosen is None and ids:
            # On the host, the loop needs no synchronisation with the device.
            masks = self.network.word_mask(*text_towers.pad(ids))
            chosen = [torch.nonzero(mask).flatten().tolist() for mask in masks]
        inputs = list(zip(ids, chosen or [], strict=True))

        def encode(batch: Sequence[tuple[list[int], Sequence[int]]]) -> tuple[Tensor, list[Tensor]]:
            padded = text_towers.pad([row for row, _ in batch])
            encoded = self.network.texts(*(to_device(each, self.device) for each in padded))
            return self._rows(encoded, [own for _, own in batch])

        vectors, sets = in_batches(
            self.device,
            self._runtime,
            self.dim,
            inputs,
            [len(row) for row in ids],
            encode,
        )
        return vectors, sets, chosen or []

    def _rows(
        self,
        encoded: Encodings,
        places: Places,
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the vectors, and the rows ``places`` of each set."""
        vectors = encoded.vectors
        if self._runtime.precision != "float32":
            vectors = nn.functional.normalize(vectors.float(), dim=-1)
        sets = []
        for rows, own in zip(encoded.sets, places, strict=True):
            if len(own) and own[-1] - own[0] + 1 == len(own):
                # A slice needs no synchronisation with the device.
                sets.append(rows[own[0] : own[-1] + 1])
            else:
                sets.append(rows[list(own)])
        return vectors, sets
