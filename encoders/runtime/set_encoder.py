"""The encoder around a trained network, with its region source and tokenizer; torch is imported
only if it is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from boc.errors import EncoderError
from boc.plugins import RegionSource
from boc.types import Embeddings, Identity, ImageRef, Ragged, Regions, Runtime

from .. import regions
from ..networks.tokens import Tokens, read_tokens
from .device import has_cuda, import_for_torch, runs_onnx
from .model_config import REGIONS, folder_digest, parts, read_config, reading_damaged
from .onnx_record import IMAGE, TEXT, read_record

if TYPE_CHECKING:
    from .torch_towers import TorchTowers


class SetEncoder:
    """A trained network as an Encoder. The concept sets are the regions and words without special
    rows.

    ``images`` encodes a batch: vectors (n, d), and the row of each region; ``texts`` too, by ids,
    with the places of words. ``source`` opens the region source with the first picture.
    """

    def __init__(
        self,
        images: Callable[..., Any],
        texts: Callable[..., Any],
        tokens: Tokens,
        source: Callable[[], RegionSource],
        identity: Identity,
    ) -> None:
        self._images = images
        self.encode_ids = texts
        self.tokens = tokens
        self.identity = identity
        self._source = source

    @cached_property
    def regions(self) -> RegionSource:
        return self._source()

    @property
    def preparer(self) -> RegionSource:
        return self.regions

    @property
    def vocabulary(self) -> frozenset[str]:
        return self.tokens.vocabulary

    def prepare(self, image: ImageRef) -> Regions:
        return self.regions(image)

    def encode_images(self, prepared: Sequence[Regions]) -> Embeddings:
        vectors, sets = self._images(prepared)
        return Embeddings(
            "image",
            vectors,
            sets,
            boxes=Ragged.from_sets([r.boxes for r in prepared], 4),
        )

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        return self.encode_words(texts)[0]

    def encode_words(self, texts: Sequence[str]) -> tuple[Embeddings, list[list[int]]]:
        """Return the embeddings of sentences, and the ids of the words of each."""
        ids = self.tokens.ids(texts)
        vectors, sets, places = self.encode_ids(ids)
        words = [[row[i] for i in own] for row, own in zip(ids, places, strict=True)]
        return Embeddings("text", vectors, sets, words=self.tokens.strings(words)), words

    def alone(self) -> SetEncoder:
        """Return the encoder of the same network without context."""
        spec = f"{self.identity.spec}?alone"
        digest = f"alone:{self.identity.digest}"
        identity = Identity(spec, digest, self.identity.dim)
        return AloneEncoder(self._images, self.encode_ids, self.tokens, self._source, identity)


class AloneEncoder(SetEncoder):
    """An encoder whose concepts have no context: each region and each word goes through the network
    alone (BoC, section IV). Global vectors are those of the whole pictures and sentences."""

    def encode_images(self, prepared: Sequence[Regions]) -> Embeddings:
        """Each region is encoded as the only region of a picture, which costs as much as a
        picture."""
        whole = super().encode_images(prepared)
        single = [
            Regions(r.features[i : i + 1], r.boxes[i : i + 1])
            for r in prepared
            for i in range(len(r))
        ]
        alone = super().encode_images(single).concepts
        assert alone is not None
        return _with_concepts(whole, alone.values)

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Each word is encoded as the only word of a text; equal words are encoded once."""
        whole, words = self.encode_words(texts)
        each, place = np.unique(
            np.concatenate([np.empty(0, np.int64), *map(np.array, words)]),
            return_inverse=True,
        )
        first, last = self.tokens.ids([""])[0]
        alone = [[first, int(word), last] for word in each]
        _, sets, _ = self.encode_ids(alone, [[1]] * len(alone))
        return _with_concepts(whole, sets.values[place])


def load_encoder(kind: str, argument: str, runtime: Runtime) -> SetEncoder:
    """Return the encoder of a model folder ``FOLDER``, or without context, ``FOLDER?alone``, which
    has the same global vectors, and another digest.

    Raises EncoderError if the folder holds no network, or the variant is unknown.
    """
    folder, mark, variant = argument.partition("?")
    if mark and variant != "alone":
        raise EncoderError(f"no variant {variant!r} of {kind}; write FOLDER or FOLDER?alone")
    encoder = _load(Path(folder), kind, runtime)
    return encoder.alone() if mark else encoder


def _load(folder: Path, kind: str, runtime: Runtime) -> SetEncoder:
    """Sentences go through ONNX Runtime wherever a folder has its networks, pictures only where
    there is no GPU."""
    config = read_config(folder)
    with reading_damaged(folder):
        tokens = read_tokens(folder / "tokenizer.json", config["text"])
    record = read_record(folder, parts(folder)) if runs_onnx(runtime) else None
    files = record.files if record is not None else {}
    name = f"{kind}:{folder.resolve()}"

    @cache
    def on_torch() -> TorchTowers:
        network = import_for_torch("model_folder").load_network(folder, config)
        towers: TorchTowers = import_for_torch("torch_towers").TorchTowers(network, runtime)
        return towers

    def source() -> RegionSource:
        network = folder / REGIONS
        with reading_damaged(folder):
            loaded = regions.load(config["regions"]["spec"], network if network.is_file() else None)
        if loaded.identity.digest != config["regions"]["digest"]:
            raise EncoderError(
                f"{folder}: its region source {config['regions']['spec']} has changed; restore "
                "the old one",
            )
        return loaded

    if record is not None and TEXT in files:
        from .onnx_towers import OnnxTowers

        onnx = OnnxTowers(folder, record, runtime.batch)
        on_cpu = IMAGE in files and (runtime.device == "cpu" or not has_cuda())
        images = onnx.images if on_cpu else lambda prepared: on_torch().images(prepared)
        return SetEncoder(
            images,
            onnx.texts,
            tokens,
            source,
            Identity(name, record.digest, record.dim),
        )
    towers = on_torch()
    identity = Identity(name, folder_digest(folder), towers.network.dim)
    return SetEncoder(towers.images, towers.texts, tokens, source, identity)


def _with_concepts(whole: Embeddings, values: NDArray[np.float32]) -> Embeddings:
    assert whole.concepts is not None
    return replace(whole, concepts=Ragged(values, whole.concepts.offsets))
