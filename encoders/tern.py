"""TERN, the Transformer Encoder Reasoning Network (Messina et al., ICPR 2020): the network and its encoder.

Module names follow the published checkpoints, so that their tensors load by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import BertConfig

from boc.errors import EncoderError
from boc.types import Embeddings, Identity, ImageRef, Ragged, Regions, RegionSource

from . import _text
from ._layers import padding_mask, transformer

BOX_CODE = 5  # x1, y1, x2, y2, area
BATCH = 64
VARIANTS = ("alone", "special")
WHOLE = np.array([[0, 0, 1, 1]], dtype=np.float32)  # the box of I-CLS, which gathers the picture


@dataclass(frozen=True)
class TernConfig:
    """Sizes of the network; the defaults are the published ones.

    ``region_dim`` is the width of a region's feature, ``visual_width`` that of the visual transformer, ``joint_width``
    that of the common space. The text tower has sizes of its own (``transformers.BertConfig``). Features are raised to
    ``region_power`` before all else, their signs kept: 1 is the published network, 0.5 evens out the activations of
    rectified convolutions.
    """

    region_dim: int = 2048
    visual_width: int = 2048
    visual_layers: int = 4
    joint_width: int = 1024
    joint_layers: int = 2
    heads: int = 4
    feedforward: int = 2048
    dropout: float = 0.1
    region_power: float = 1.0


class _BoxFusion(nn.Module):
    """Concatenate a region's feature and its box code, and process both (TERN, eq. 2 and "concat-and-process").

    The code is x1/W, y1/H, x2/W, y2/H and the area; the paper's eq. 2 divides otherwise, its code and this one do so.
    """

    def __init__(self, region_dim: int, width: int) -> None:
        super().__init__()
        self.map = nn.Sequential(nn.Linear(region_dim + BOX_CODE, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, features: Tensor, boxes: Tensor) -> Tensor:
        area = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
        fused: Tensor = self.map(torch.cat([features, boxes, area[..., None]], dim=-1))
        return fused


class _ImageTower(nn.Module):
    def __init__(self, config: TernConfig) -> None:
        super().__init__()
        self.pos_encoding_image = _BoxFusion(config.region_dim, config.visual_width)
        self.transformer_encoder = transformer(
            config.visual_width, config.heads, config.feedforward, config.visual_layers, config.dropout
        )

    def forward(self, features: Tensor, boxes: Tensor, mask: Tensor) -> Tensor:
        fused = self.pos_encoding_image(features, boxes)
        encoded: Tensor = self.transformer_encoder(fused, src_key_padding_mask=mask)
        return encoded


class _TextTower(nn.Module):
    def __init__(self, bert: BertConfig) -> None:
        super().__init__()
        self.bert_model = _text.build(bert)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        mask = (~padding_mask(lengths, ids.shape[1])).long()
        hidden: Tensor = self.bert_model(input_ids=ids, attention_mask=mask).last_hidden_state
        return hidden


class Tern(nn.Module):
    """Images as sets of regions and sentences as sequences of word-pieces, into one space.

    Both ``images`` and ``texts`` return unit global vectors (B, joint_width) and un-normalised sets
    (B, rows, joint_width). Row 0 of a set is I-CLS or [CLS]; rows behind the length are padding without meaning.
    """

    def __init__(self, config: TernConfig, bert: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.img_enc = _ImageTower(config)
        self.txt_enc = _TextTower(bert)
        self.img_proj = nn.Linear(config.visual_width, config.joint_width)
        self.cap_proj = nn.Linear(bert.hidden_size, config.joint_width)
        self.transformer_encoder_1 = transformer(
            config.joint_width, config.heads, config.feedforward, config.joint_layers, config.dropout
        )

    def images(self, features: Tensor, boxes: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """features (B, n, region_dim), boxes (B, n, 4) in parts of width and height, lengths (B,) of the n.

        An all-zero row goes before the regions: I-CLS, which gathers the picture.
        """
        features = raised(features, self.config.region_power)
        features, boxes = nn.functional.pad(features, (0, 0, 1, 0)), nn.functional.pad(boxes, (0, 0, 1, 0))
        mask = padding_mask(lengths + 1, features.shape[1])
        return self._join(self.img_proj(self.img_enc(features, boxes, mask)), mask)

    def texts(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """ids (B, L) with [CLS] and [SEP], lengths (B,)."""
        return self.words(self.txt_enc(ids, lengths), lengths)

    def words(self, hidden: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The same from what the text tower gave: hidden (B, L, h), lengths (B,)."""
        return self._join(self.cap_proj(hidden), padding_mask(lengths, hidden.shape[1]))

    def _join(self, rows: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        joined = self.transformer_encoder_1(rows, src_key_padding_mask=mask)
        first = joined[:, 0]
        return first / first.norm(dim=1, keepdim=True), joined


def raised(features: Tensor, power: float) -> Tensor:
    """|x| ** power with the sign of x."""
    return features if power == 1 else features.sign() * features.abs().pow(power)


def pad_regions(regions: Sequence[Regions]) -> tuple[Tensor, Tensor, Tensor]:
    """features (B, n, d), boxes (B, n, 4), lengths (B,), zero-padded to the longest."""
    features = pad_sequence([torch.from_numpy(np.asarray(r.features)) for r in regions], batch_first=True)
    boxes = pad_sequence([torch.from_numpy(np.asarray(r.boxes)) for r in regions], batch_first=True)
    return features.float(), boxes.float(), torch.tensor([len(r) for r in regions])


class TernEncoder:
    """A trained TERN as an Encoder: pictures through its region source.

    The concept sets are without I-CLS, [CLS] and [SEP], unless ``special`` is set: then they keep these rows, under
    the box of the whole picture and the words "[CLS]" and "[SEP]".
    """

    def __init__(
        self,
        model: Tern,
        tokenizer: Any,
        regions: RegionSource,
        identity: Identity,
        device: str,
        special: bool = False,
    ) -> None:
        self.model = model.eval().to(device)
        self.tokenizer = tokenizer
        self.regions = regions
        self.identity = identity
        self.device = device
        self.special = special

    def prepare(self, image: ImageRef) -> Regions:
        return self.regions(image)

    def encode_images(self, prepared: Sequence[Regions]) -> Embeddings:
        def encode(batch: Sequence[Regions]) -> tuple[Tensor, Tensor, list[slice]]:
            features, boxes, lengths = (t.to(self.device) for t in pad_regions(batch))
            vectors, sets = self.model.images(features, boxes, lengths)
            return vectors, sets, [slice(0 if self.special else 1, 1 + len(r)) for r in batch]

        first = [WHOLE] if self.special else []
        boxes = Ragged.from_sets([np.concatenate([*first, r.boxes]) for r in prepared], 4)
        return Embeddings("image", *self._batches(prepared, encode), boxes=boxes)

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        ids = self.tokenize(texts)
        words = _text.pieces(self.tokenizer, texts, self._limit, special=self.special)
        return Embeddings("text", *self.encode_ids(ids), words=words)

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids that the network reads of each text, [CLS] and [SEP] included."""
        return _text.tokenize(self.tokenizer, texts, self._limit)

    def encode_ids(self, ids: Sequence[list[int]]) -> tuple[NDArray[np.float32], Ragged]:
        """Global vectors and concept sets of texts that are ids already."""

        def encode(batch: Sequence[list[int]]) -> tuple[Tensor, Tensor, list[slice]]:
            padded, lengths = (t.to(self.device) for t in _text.pad(batch))
            vectors, sets = self.model.texts(padded, lengths)
            return vectors, sets, [slice(0, n) if self.special else slice(1, n - 1) for n in lengths.tolist()]

        return self._batches(ids, encode)

    @property
    def _limit(self) -> int:
        limit: int = self.model.txt_enc.bert_model.config.max_position_embeddings
        return limit

    @torch.inference_mode()
    def _batches(self, inputs: Sequence[Any], encode: Any) -> tuple[NDArray[np.float32], Ragged]:
        vectors, sets = [np.empty((0, self.identity.dim), np.float32)], []
        for start in range(0, len(inputs), BATCH):
            batch, rows, slices = encode(inputs[start : start + BATCH])
            vectors.append(batch.float().cpu().numpy())
            sets += [row[s].float().cpu().numpy() for row, s in zip(rows, slices, strict=True)]
        return np.concatenate(vectors), Ragged.from_sets(sets, self.identity.dim)


class AloneEncoder:
    """A TERN whose concepts know no context: each region and each word-piece goes through the network on its own
    (BoC, section IV). Global vectors are those of the whole pictures and sentences."""

    def __init__(self, encoder: TernEncoder, identity: Identity) -> None:
        self.encoder = encoder
        self.identity = identity
        self.regions = encoder.regions

    def prepare(self, image: ImageRef) -> Regions:
        return self.encoder.prepare(image)

    def encode_images(self, prepared: Sequence[Regions]) -> Embeddings:
        """A region on its own is the one concept of a picture with no other; costs one such picture a region."""
        whole = self.encoder.encode_images(prepared)
        single = [Regions(r.features[i : i + 1], r.boxes[i : i + 1]) for r in prepared for i in range(len(r))]
        return _with_concepts(whole, self.encoder.encode_images(single).concepts.values)

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """A word-piece on its own is the one concept of [CLS] piece [SEP]; equal pieces are encoded once."""
        whole = self.encoder.encode_texts(texts)
        ids = self.encoder.tokenize(texts)
        pieces, place = np.unique([piece for row in ids for piece in row[1:-1]], return_inverse=True)
        _, sets = self.encoder.encode_ids([[ids[0][0], int(piece), ids[0][-1]] for piece in pieces])
        return _with_concepts(whole, sets.values[place])


def load(spec: str, device: str = "auto") -> TernEncoder | AloneEncoder:
    """The encoder in the folder ``spec``, as ``boc train`` writes it; ``device`` is cpu, cuda, or auto for the better.

    ``FOLDER?alone`` encodes regions and words one by one, ``FOLDER?special`` keeps the special positions in the sets;
    both have the same global vectors, and digests of their own. Raises EncoderError if the folder holds no TERN.
    """
    from ._checkpoint import load_folder

    folder, mark, variant = spec.partition("?")
    if mark and variant not in VARIANTS:
        raise EncoderError(f"no variant {variant!r} of a TERN; write FOLDER, FOLDER?alone or FOLDER?special")
    encoder = load_folder(Path(folder), device)
    if not mark:
        return encoder
    base = encoder.identity
    identity = Identity(f"{base.spec}?{variant}", f"{variant}:{base.digest}", base.dim)
    if variant == "alone":
        return AloneEncoder(encoder, identity)
    encoder.special, encoder.identity = True, identity
    return encoder


def _with_concepts(whole: Embeddings, values: NDArray[np.float32]) -> Embeddings:
    return replace(whole, concepts=Ragged(values, whole.concepts.offsets))
