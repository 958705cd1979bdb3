"""The encoder around a trained network: pictures go through its region source, sentences through its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from boc.errors import EncoderError
from boc.plugins import RegionSource
from boc.types import Embeddings, Identity, ImageRef, Ragged, Regions, Runtime

from ..networks import text_towers
from ..networks.base import Encodings, Network, pad_regions
from . import device
from .batching import in_batches, to_device


class SetEncoder:
    """A trained network as an Encoder. The concept sets are the regions and words without special rows."""

    def __init__(
        self,
        network: Network,
        tokens: text_towers.Tokens,
        regions: RegionSource,
        identity: Identity,
        runtime: Runtime,
    ) -> None:
        self.device = device.pick(runtime.device)
        self.network = network.eval().to(self.device)
        self.tokens = tokens
        self.regions = regions
        self.identity = identity
        self._precision = runtime.precision
        self._in_batches = partial(in_batches, self.device, runtime.precision, identity.dim, size=runtime.batch)
        self._images = torch.compile(network.images, dynamic=True) if runtime.compile else network.images
        self._texts = torch.compile(network.texts, dynamic=True) if runtime.compile else network.texts

    @property
    def preparer(self) -> RegionSource:
        return self.regions

    def prepare(self, image: ImageRef) -> Regions:
        return self.regions(image)

    def encode_images(self, prepared: Sequence[Regions]) -> Embeddings:
        before, _ = self.network.region_margins

        def encode(batch: Sequence[Regions]) -> tuple[Tensor, list[Tensor]]:
            features, boxes, lengths = (to_device(t, self.device) for t in pad_regions(batch))
            return self._rows(self._images(features, boxes, lengths), [range(before, before + len(r)) for r in batch])

        vectors, sets = self._in_batches(prepared, [len(r) for r in prepared], encode)
        return Embeddings("image", vectors, sets, boxes=Ragged.from_sets([r.boxes for r in prepared], 4))

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        ids = self.tokens.ids(texts)
        places = self.places(ids)
        words = self.tokens.strings([[row[i] for i in own] for row, own in zip(ids, places, strict=True)])
        return Embeddings("text", *self.encode_ids(ids, places), words=words)

    def encode_ids(
        self, ids: Sequence[list[int]], places: Sequence[Sequence[int]]
    ) -> tuple[NDArray[np.float32], Ragged]:
        """Encode texts that are given as ids: global vectors, and the rows ``places`` of each set."""
        inputs = list(zip(ids, places, strict=True))

        def encode(batch: Sequence[tuple[list[int], Sequence[int]]]) -> tuple[Tensor, list[Tensor]]:
            padded, lengths = (to_device(t, self.device) for t in text_towers.pad([row for row, _ in batch]))
            return self._rows(self._texts(padded, lengths), [own for _, own in batch])

        return self._in_batches(inputs, [len(row) for row in ids], encode)

    def places(self, ids: Sequence[list[int]]) -> list[Sequence[int]]:
        """Return the positions of the words among the ids of each text."""
        if not ids:
            return []
        masks = self.network.word_mask(*text_towers.pad(ids))  # on the host, without a device synchronisation
        return [torch.nonzero(mask).flatten().tolist() for mask in masks]

    def _rows(self, encoded: Encodings, places: Sequence[Sequence[int]]) -> tuple[Tensor, list[Tensor]]:
        """Return vectors, and the rows ``places`` of each set, as slices where possible, which avoid a device
        synchronisation."""
        vectors = encoded.vectors
        if self._precision != "float32":
            vectors = nn.functional.normalize(vectors.float(), dim=-1)
        gapless = [not len(p) or p[-1] - p[0] + 1 == len(p) for p in places]
        return vectors, [
            rows[p[0] : p[-1] + 1] if whole and len(p) else rows[list(p)]
            for rows, p, whole in zip(encoded.sets, places, gapless, strict=True)
        ]


class AloneEncoder:
    """An encoder whose concepts have no context: each region and each word goes through the network alone (BoC, section
    IV). Global vectors are those of the whole pictures and sentences."""

    def __init__(self, encoder: SetEncoder, identity: Identity) -> None:
        self.encoder = encoder
        self.identity = identity
        self.regions = encoder.regions

    @property
    def preparer(self) -> RegionSource:
        return self.encoder.preparer

    def prepare(self, image: ImageRef) -> Regions:
        return self.encoder.prepare(image)

    def encode_images(self, prepared: Sequence[Regions]) -> Embeddings:
        """Each region is encoded as the only region of a picture, which costs as much as a picture."""
        whole = self.encoder.encode_images(prepared)
        single = [Regions(r.features[i : i + 1], r.boxes[i : i + 1]) for r in prepared for i in range(len(r))]
        alone = self.encoder.encode_images(single).concepts
        assert alone is not None
        return _with_concepts(whole, alone.values)

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Each word is encoded as the only word of a text; equal words are encoded once."""
        whole = self.encoder.encode_texts(texts)
        ids = self.encoder.tokens.ids(texts)
        words = [np.array(row)[list(own)] for row, own in zip(ids, self.encoder.places(ids), strict=True)]
        each, place = np.unique(np.concatenate([np.empty(0, np.int64), *words]), return_inverse=True)
        alone = [[ids[0][0], int(word), ids[0][-1]] for word in each]
        _, sets = self.encoder.encode_ids(alone, [[1]] * len(alone))
        return _with_concepts(whole, sets.values[place])


def load_encoder(kind: str, argument: str, runtime: Runtime) -> SetEncoder | AloneEncoder:
    """Return the encoder of a model folder ``FOLDER``, or without context, ``FOLDER?alone``.

    Raises EncoderError if the folder holds no network of this ``kind``, or the variant is unknown.
    """
    from .model_folder import load_folder

    folder, mark, variant = argument.partition("?")
    if mark and variant != "alone":
        raise EncoderError(f"no variant {variant!r} of {kind}; write FOLDER or FOLDER?alone")
    encoder = SetEncoder(*load_folder(Path(folder), kind), runtime)
    if not mark:
        return encoder
    base = encoder.identity
    return AloneEncoder(encoder, Identity(f"{base.spec}?alone", f"alone:{base.digest}", base.dim))


def _with_concepts(whole: Embeddings, values: NDArray[np.float32]) -> Embeddings:
    assert whole.concepts is not None
    return replace(whole, concepts=Ragged(values, whole.concepts.offsets))
