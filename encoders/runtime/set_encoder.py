"""Loads encoders of model folders, with their region source and tokenizer; torch is imported only
if it is used."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.errors import EncoderError
from boc.plugins import RegionSource
from boc.types import Identity, Ragged, Regions, Runtime

from .. import regions
from ..networks.tokens import Tokens, read_tokens
from .device import import_for_torch, runs_onnx
from .dual_encoder import DualEncoder, Encoded, EncodedTexts, choose_towers
from .hubs import MORE, HubBank
from .model_config import (
    HUBS,
    REGIONS,
    folder_digest,
    hub_digest,
    parts,
    read_config,
    reading_damaged,
)
from .onnx_record import read_record
from .onnx_towers import OnnxTowers


class SetTowers:
    """The towers of a model folder behind their tokenizer: ``texts`` encodes ids, and ``pictures``
    opens the tower of the pictures."""

    def __init__(
        self,
        tokens: Tokens,
        texts: Any,
        pictures: Callable[[], Any],
    ) -> None:
        self.tokens = tokens
        self.encode_ids = texts.texts
        self._pictures = pictures

    def images(self, prepared: Sequence[Regions]) -> Encoded:
        vectors, sets = self._pictures().images(prepared)
        return vectors, sets

    def texts(self, texts: Sequence[str]) -> EncodedTexts:
        vectors, sets, words = self.encode_words(texts)
        return vectors, sets, self.tokens.strings(words)

    def encode_words(
        self,
        texts: Sequence[str],
    ) -> tuple[NDArray[np.float32], Ragged, list[list[int]]]:
        """Return vectors, the sets of the words, and the ids of the words."""
        ids = self.tokens.ids(texts)
        vectors, sets, places = self.encode_ids(ids)
        words = [[row[i] for i in own] for row, own in zip(ids, places, strict=True)]
        return vectors, sets, words


class AloneTowers(SetTowers):
    """Towers whose concepts have no context: each region and each word goes through the network
    alone (BoC, section IV). Global vectors are those of the whole pictures and sentences."""

    def images(self, prepared: Sequence[Regions]) -> Encoded:
        """Each region is encoded as the only region of a picture, which costs as much as a
        picture."""
        vectors, whole = super().images(prepared)
        single = [
            Regions(each.features[i : i + 1], each.boxes[i : i + 1])
            for each in prepared
            for i in range(len(each))
        ]
        _, alone = super().images(single)
        return vectors, Ragged(alone.values, whole.offsets)

    def texts(self, texts: Sequence[str]) -> EncodedTexts:
        """Each word is encoded as the only word of a text; equal words are encoded once."""
        vectors, whole, words = self.encode_words(texts)
        flat = np.array([word for row in words for word in row], np.int64)
        each, place = np.unique(flat, return_inverse=True)
        first, last = self.tokens.ids([""])[0]
        alone = [[first, int(word), last] for word in each]
        _, sets, _ = self.encode_ids(alone, [[1]] * len(alone))
        return vectors, Ragged(sets.values[place], whole.offsets), self.tokens.strings(words)


def load_encoder(kind: str, argument: str, runtime: Runtime) -> DualEncoder:
    """Return the encoder of a model folder ``FOLDER``, or without context, ``FOLDER?alone``, which
    has the same global vectors, and another digest.

    Raises EncoderError if the folder holds no network, or the variant is unknown.
    """
    name, mark, variant = argument.partition("?")
    if mark and variant != "alone":
        raise EncoderError(f"no variant {variant!r} of {kind}; write FOLDER or FOLDER?alone")
    folder = Path(name)
    config = read_config(folder)
    with reading_damaged(folder):
        tokens = read_tokens(folder / "tokenizer.json", config["text"])

    def on_torch() -> Any:
        network = import_for_torch("model_folder").load_network(folder, config)
        return import_for_torch("torch_towers").TorchTowers(network, runtime)

    def open_source() -> RegionSource:
        spec = config["regions"]["spec"]
        network = folder / REGIONS
        with reading_damaged(folder):
            source = regions.load(spec, network if network.is_file() else None)
        if source.identity.digest != config["regions"]["digest"]:
            raise EncoderError(
                f"{folder}: its region source {spec} has changed; restore the old one",
            )
        return source

    record = read_record(folder, parts(folder)) if runs_onnx(runtime) else None
    texts, pictures = choose_towers(
        record,
        runtime,
        lambda record: OnnxTowers(folder, record, runtime.batch),
        on_torch,
    )
    spec = f"{kind}:{folder.resolve()}"
    digest = folder_digest(folder) if record is None else record.digest
    towers = SetTowers(tokens, texts, pictures)
    bank = None
    dim = texts.dim
    if (folder / HUBS).is_file():
        with reading_damaged(folder):
            bank = HubBank.read(folder / HUBS)
            digest = hub_digest(digest, folder)
            dim += MORE
    if mark:
        spec = f"{spec}?alone"
        digest = f"alone:{digest}"
        towers = AloneTowers(tokens, texts, pictures)
    return DualEncoder(
        Identity(spec, digest, dim),
        tokens,
        open_source,
        towers.images,
        towers.texts,
        bank=bank,
    )
