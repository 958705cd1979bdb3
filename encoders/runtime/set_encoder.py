"""Load encoders from model folders, with their region sources and tokenizers. Torch is imported
only if it is used."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from boc.errors import EncoderError
from boc.plugins import RegionSource
from boc.types import Embeddings, Identity, Ragged, Regions, Runtime
from boc.vectors import Floats

from .. import regions
from ..networks.tokens import read_tokens
from .device import has_cuda, import_for_torch, runs_onnx
from .dual_encoder import DualEncoder, Encoded
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
from .onnx_record import IMAGE, TEXT, read_record
from .onnx_towers import OnnxTowers


@dataclass
class SetEncoder(DualEncoder):
    """Encoder that runs the networks of a model folder. ``texts`` encodes ids, and ``pictures``
    opens the picture tower. A query ``bank`` adds the offset components."""

    texts: Any
    pictures: Callable[[], Any]
    bank: HubBank | None = None

    def encode_images(self, prepared: Sequence[Regions]) -> Embeddings:
        vectors, sets = self.image_sets(prepared)
        if self.bank is not None:
            vectors, sets = self.bank.extend("image", vectors, sets)
        boxes = Ragged.from_sets([each.boxes for each in prepared], 4)
        return Embeddings("image", vectors, sets, boxes=boxes)

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        vectors, sets, words = self.text_sets(texts)
        if self.bank is not None:
            vectors, sets = self.bank.extend("text", vectors, sets, texts)
        return Embeddings("text", vectors, sets, words=self.tokens.strings(words))

    def image_sets(self, prepared: Sequence[Regions]) -> Encoded:
        """Encode pictures. Return vectors and region sets."""
        vectors, sets = self.pictures().images(prepared)
        return vectors, sets

    def text_sets(
        self,
        texts: Sequence[str],
    ) -> tuple[Floats, Ragged, list[list[int]]]:
        """Encode texts. Return vectors, word sets and word ids."""
        ids = self.tokens.ids(texts)
        vectors, sets, places = self.texts.texts(ids)
        words = [[row[i] for i in own] for row, own in zip(ids, places, strict=True)]
        return vectors, sets, words


class AloneEncoder(SetEncoder):
    """Encoder whose concepts have no context, because each region and each word is encoded on its
    own (BoC, section IV). Global vectors still represent whole pictures and sentences."""

    def image_sets(self, prepared: Sequence[Regions]) -> Encoded:
        """Encode each region as the only region of a picture, which costs as much as encoding a
        picture."""
        vectors, whole = super().image_sets(prepared)
        single = [
            Regions(each.features[i : i + 1], each.boxes[i : i + 1])
            for each in prepared
            for i in range(len(each))
        ]
        _, alone = super().image_sets(single)
        return vectors, Ragged(alone.values, whole.offsets)

    def text_sets(
        self,
        texts: Sequence[str],
    ) -> tuple[Floats, Ragged, list[list[int]]]:
        """Encode each distinct word once, as the only word of a text."""
        vectors, whole, words = super().text_sets(texts)
        flat = np.array([word for row in words for word in row], np.int64)
        each, place = np.unique(flat, return_inverse=True)
        first, last = self.tokens.ids([""])[0]
        alone = [[first, int(word), last] for word in each]
        _, sets, _ = self.texts.texts(alone, [[1]] * len(alone))
        return vectors, Ragged(sets.values[place], whole.offsets), words


def load_encoder(kind: str, argument: str, runtime: Runtime) -> SetEncoder:
    """Return the encoder in a model folder, ``FOLDER``, or its variant without context,
    ``FOLDER?alone``, which has the same global vectors but another digest.

    Raises EncoderError if the folder has no network, or if the variant is unknown.
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
                f"{folder}: its region source {spec} has changed; restore the old source",
            )
        return source

    record = None
    if runs_onnx(runtime):
        record = read_record(folder, parts(folder))
    texts: Any
    if record is None or TEXT not in record.files:
        record = None
        texts = on_torch()
        digest = folder_digest(folder)
    else:
        texts = OnnxTowers(folder, record, runtime.batch)
        digest = record.digest

    @cache
    def pictures() -> Any:
        # On a machine with a GPU, ONNX Runtime encodes only sentences.
        on_card = runtime.device != "cpu" and has_cuda()
        if record is not None and (on_card or IMAGE not in record.files):
            return on_torch()
        return texts

    spec = f"{kind}:{folder.resolve()}"
    bank = None
    dim = texts.dim
    if (folder / HUBS).is_file():
        with reading_damaged(folder):
            bank = HubBank.read(folder / HUBS)
            digest = hub_digest(digest, folder)
            dim += MORE
    chosen = SetEncoder
    if mark:
        spec = f"{spec}?alone"
        digest = f"alone:{digest}"
        chosen = AloneEncoder
    return chosen(Identity(spec, digest, dim), tokens, open_source, texts, pictures, bank)
