"""CLIP, SigLIP, and the other dual encoders of the ``transformers`` library: ``clip:NAME_OR_FOLDER``.

Global vectors are the library's own (``get_image_features``, ``get_text_features``), of unit length. The concepts of a
picture are the tokens of its patches, those of a sentence the tokens of its words: rows of the tower's last layer,
brought into the joint space as if each were all that its tower had to pool. So the token that a tower pools, CLIP's
[CLS] or end of text, would go to the global vector itself; where a head attends to all tokens, as over SigLIP's
pictures, the softmax over a single one is 1, and what is left of the head is its way from values to the output (the
dense reading of CLIP of Zhou et al., Extract Free Dense Labels from CLIP, ECCV 2022, section 3.3).

Nothing is downloaded, and no code of a model is run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError
from tokenizers import Encoding
from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoConfig, AutoImageProcessor, AutoTokenizer
from transformers.utils import logging as transformers_logging

from boc.errors import EncoderError, ImageError
from boc.inputs.images import read_image
from boc.types import Embeddings, Identity, ImageRef, Ragged, Runtime

from .runtime import device
from .runtime.batching import in_batches, to_device

WORKS = "CLIP, SigLIP, SigLIP 2, MetaCLIP 2, Chinese-CLIP, AltCLIP, CLIPSeg, ALIGN, AIMv2, VisionTextDualEncoder"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
SETTINGS = (
    "config.json", "preprocessor_config.json", "processor_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "spiece.model",
    "sentencepiece.bpe.model", "tokenizer.model",
)  # fmt: skip
EXAMPLE = "openai/clip-vit-base-patch32"
LONGEST = 512  # ids of a text, where neither tokenizer nor network has a limit
THINNEST = 100  # a picture's long side in its short ones: resizing the short one enlarges the long one with it
CLOSE = 1e-3  # of the global vector's length: float32 rounding is a hundredth of it, other tokens are far
JOINER = "\u200d"  # stands for a piece without text of its own: a byte of a character that an earlier piece shows

# What the library raises for files that are damaged, foreign, or of a newer version.
UNUSABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError, SafetensorError,
            UnpicklingError, EOFError)  # fmt: skip

# Pillow resizes as the models' authors did; torchvision, which the library prefers where it is there, differs in the
# last digits. How to ask for it in version 5 of the library, and before.
WITH_PILLOW: dict[str, Any] = (
    {"backend": "pil"} if importlib.util.find_spec("transformers.image_processing_backends") else {"use_fast": False}
)

Inputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Prepared:
    """A picture as the network reads it: ``inputs`` are arrays by name, ``boxes`` float32 (n, 4) the patches in parts
    of the picture's width and height; n is 0 for a network without patches."""

    inputs: Inputs
    boxes: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.boxes)


@dataclass(frozen=True)
class Preparer:
    """Pictures through the image processor of the library; ``grid`` counts rows and columns of patches, None for a
    network without them. Pictures of NaFlex networks have grids of their own."""

    processor: Any
    grid: tuple[int, int] | None

    def __call__(self, image: ImageRef) -> Prepared:
        picture = read_image(image.path)
        width, height = picture.size
        if max(width, height) > THINNEST * min(width, height):
            raise ImageError(f"{image.path}: {width} x {height} pixels, the limit is 1 : {THINNEST}; crop the picture")
        inputs = self.inputs(picture)
        if self.grid is None:
            return Prepared(inputs, np.empty((0, 4), np.float32))
        rows, columns = inputs["spatial_shapes"].tolist() if "spatial_shapes" in inputs else self.grid
        return Prepared(inputs, patch_boxes(window(self.processor, width, height), rows, columns))

    def inputs(self, picture: Image.Image) -> Inputs:
        # Said aloud, because a picture of one or three rows could be taken for channels.
        found = self.processor(picture, return_tensors="np", input_data_format="channels_last")
        return {name: np.asarray(values)[0] for name, values in found.items()}


def window(processor: Any, width: int, height: int) -> tuple[float, float, float, float]:
    """x1, y1, x2, y2 of what the network sees, in parts of a picture's width and height: all of it, but for what is
    cropped. Beyond [0, 1] where a crop is larger than the picture."""
    size, crop = getattr(processor, "size", None) or {}, getattr(processor, "crop_size", None) or {}
    if getattr(processor, "do_resize", False):
        shortest = size.get("shortest_edge")
        if shortest:
            short = min(width, height)
            width, height = int(shortest * width / short), int(shortest * height / short)
        elif size.get("height") and size.get("width"):
            width, height = size["width"], size["height"]
    if not getattr(processor, "do_center_crop", False) or not crop.get("height") or not crop.get("width"):
        return 0.0, 0.0, 1.0, 1.0
    left, top = (width - crop["width"]) // 2, (height - crop["height"]) // 2
    return left / width, top / height, (left + crop["width"]) / width, (top + crop["height"]) / height


def patch_boxes(seen: tuple[float, float, float, float], rows: int, columns: int) -> NDArray[np.float32]:
    """(rows * columns, 4): ``seen`` cut into equal parts, row by row, within [0, 1]."""
    xs, ys = np.linspace(seen[0], seen[2], columns + 1), np.linspace(seen[1], seen[3], rows + 1)
    y, x = (each.ravel() for each in np.mgrid[:rows, :columns])
    boxes = np.stack([xs[x], ys[y], xs[x + 1], ys[y + 1]], axis=1)
    return np.clip(boxes, 0, 1).astype(np.float32)


def words(text: str, encoding: Encoding) -> list[str]:
    """The pieces of ``text``, one for each token that is not special: as they are written in it, with "##" before a
    piece that continues the word of the one before it, whatever the tokenizer's own marks are."""
    pieces: list[str] = []
    end, last = 0, None
    for token, (start, stop), word, special in zip(
        encoding.tokens, encoding.offsets, encoding.word_ids, encoding.special_tokens_mask, strict=True
    ):
        if special:
            continue
        new = text[max(start, end) : stop]
        piece = new.strip()
        if not piece:
            piece = f"##{JOINER}" if pieces and start < end else token
        elif pieces and start <= end and word == last and _joins(text[end - 1]) and _joins(new[0]):
            piece = f"##{piece}"
        pieces.append(piece)
        end, last = max(end, stop), word
    return pieces


def _joins(letter: str) -> bool:
    return not letter.isspace() and unicodedata.category(letter)[0] not in "PS"


class _Tower:
    """One of the two towers: inputs to global vectors and tokens, tokens to the joint space.

    ``features`` is the library's function for the global vectors, ``tower`` the network that it calls, ``projection``
    what it does last, if anything.
    """

    def __init__(self, features: Callable[..., Any], tower: nn.Module, projection: nn.Module | None) -> None:
        self._features = features
        self._tower = tower
        self._projection = projection or nn.Identity()
        self._pool: nn.Module = nn.Identity()
        self._hidden: Tensor | None = None
        # The functions for the global vectors gave nothing else before version 5 of the library.
        tower.register_forward_hook(self._keep)

    def __call__(self, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Unit vectors (B, dim), and the tokens (B, T, w) of the last layer."""
        found = self._features(**inputs)
        vectors = found if isinstance(found, Tensor) else found.pooler_output
        hidden, self._hidden = self._hidden, None
        if hidden is None:
            raise RuntimeError("the tower was not called")
        if hidden.ndim == 4:  # a map of a convolutional network
            hidden = hidden.flatten(2).transpose(1, 2)
        return nn.functional.normalize(vectors.float(), dim=-1), hidden

    def joint(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T, w), each pooled as the only one, in the joint space (B, T, dim)."""
        single = tokens.flatten(0, 1)[:, None]
        found: Tensor = self._projection(self._pool(single).flatten(1))
        return found.unflatten(0, tokens.shape[:2])

    def learn_pool(self, vector: Tensor, hidden: Tensor) -> bool:
        """Find what the tower does to a token between its last layer and the projection, from the unit vector (1, dim)
        and the tokens (1, T, w) of one input. False where tokens have no way of their own.

        The right one leads one of the tokens to the vector, or their mean; a head that attends to all of them can
        not, and is taken if nothing else does.
        """
        inner = getattr(self._tower, "vision_model", getattr(self._tower, "text_model", self._tower))
        heads = [getattr(inner, name, None) for name in ("post_layernorm", "pooler", "head")]
        known = [head for head in heads if isinstance(head, nn.Module) and any(True for _ in head.parameters())]
        for self._pool in (nn.Identity(), *known):
            rows = self.joint(hidden)[0].float()
            candidates = nn.functional.normalize(torch.cat([rows, rows.mean(0, keepdim=True)]), dim=-1)
            if float((candidates - vector).norm(dim=1).min()) <= CLOSE:
                return True
        return heads[-1] is not None

    def compile(self) -> None:
        self._tower.forward = torch.compile(self._tower.forward)

    def _keep(self, _: nn.Module, __: Any, output: Any) -> None:
        self._hidden = output[0]


class ClipEncoder:
    """A dual encoder of the library as an Encoder. The concepts are patches and words, special tokens left out; not of
    unit length."""

    def __init__(
        self, model: nn.Module, tokenizer: Any, processor: Any, name: str, digest: str, runtime: Runtime
    ) -> None:
        self.device = device.pick(runtime.device)
        self.model = model.eval().to(self.device)
        self.tokenizer = tokenizer
        self._precision = runtime.precision
        self._size = runtime.batch
        self._images = _Tower(model.get_image_features, model.vision_model, getattr(model, "visual_projection", None))
        self._texts = _Tower(model.get_text_features, model.text_model, getattr(model, "text_projection", None))
        self._limit = _limit(tokenizer, model.text_model)
        # SigLIP learned with all texts at full length, and reads the padding.
        self._full = model.config.text_config.model_type.startswith("siglip")
        self.identity, self.preparer = self._probe(Preparer(processor, None), name, digest)
        if runtime.compile:
            self._images.compile()
            self._texts.compile()

    def prepare(self, image: ImageRef) -> Prepared:
        return self.preparer(image)

    def encode_images(self, prepared: Sequence[Prepared]) -> Embeddings:
        def encode(batch: Sequence[Prepared]) -> tuple[Tensor, list[Tensor]]:
            vectors, hidden = self._images(**self._stack([each.inputs for each in batch]))
            if self.preparer.grid is None:
                return vectors, [vectors[:0]] * len(batch)
            before = 0 if "spatial_shapes" in batch[0].inputs else hidden.shape[1] - len(batch[0])
            tokens = self._images.joint(hidden[:, before:])
            return vectors, [rows[: len(each)] for rows, each in zip(tokens, batch, strict=True)]

        vectors, sets = self._batches(prepared, [len(each) for each in prepared], encode)
        if self.preparer.grid is None:
            return Embeddings("image", vectors)
        return Embeddings("image", vectors, sets, boxes=Ragged.from_sets([each.boxes for each in prepared], 4))

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        encodings = self.tokenize(texts)

        def encode(batch: Sequence[Encoding]) -> tuple[Tensor, list[Tensor]]:
            inputs, kept = self._pad(batch)
            vectors, hidden = self._texts(**inputs)
            if self.preparer.grid is None:
                return vectors, [vectors[:0]] * len(batch)
            return vectors, [rows[mask] for rows, mask in zip(self._texts.joint(hidden), kept, strict=True)]

        vectors, sets = self._batches(encodings, [len(each) for each in encodings], encode)
        if self.preparer.grid is None:
            return Embeddings("text", vectors)
        return Embeddings("text", vectors, sets, words=[words(*pair) for pair in zip(texts, encodings, strict=True)])

    def tokenize(self, texts: Sequence[str]) -> list[Encoding]:
        """The ids that the network reads of each text, special ones included, with the places that they come from."""
        if not texts:
            return []
        found = self.tokenizer(list(texts), truncation=True, max_length=self._limit)
        encodings: list[Encoding] = found.encodings
        return encodings

    @torch.inference_mode()
    def _probe(self, preparer: Preparer, name: str, digest: str) -> tuple[Identity, Preparer]:
        """A picture and a sentence through both towers: their widths, the grid of patches, the ways of the tokens."""
        inputs = preparer.inputs(Image.radial_gradient("L").convert("RGB"))
        image, patches = self._images(**self._stack([inputs]))
        text, tokens = self._texts(**self._pad(self.tokenize(["a photo"]))[0])
        if image.ndim != 2 or image.shape != text.shape:
            raise ValueError(f"vectors of pictures {tuple(image.shape)} and texts {tuple(text.shape)} do not compare")
        ways = self._images.learn_pool(image, patches), self._texts.learn_pool(text, tokens)
        grid = _grid(inputs, patches.shape[1], getattr(self.model.config.vision_config, "patch_size", None))
        identity = Identity(f"clip:{name}", digest, image.shape[1])
        return identity, Preparer(preparer.processor, grid if all(ways) else None)

    def _stack(self, inputs: Sequence[Inputs]) -> dict[str, Tensor]:
        stacked = {name: torch.from_numpy(np.stack([each[name] for each in inputs])) for name in inputs[0]}
        return {name: to_device(tensor, self.device) for name, tensor in stacked.items()}

    def _pad(self, batch: Sequence[Encoding]) -> tuple[dict[str, Tensor], Tensor]:
        """What the tower reads, and a mask (B, L) of the tokens that are not special."""
        width = self._limit if self._full else max(1, *(len(each) for each in batch))
        ids = np.full((len(batch), width), self.tokenizer.pad_token_id or 0, np.int64)
        mask, kept = np.zeros(ids.shape, np.int64), np.zeros(ids.shape, bool)
        left = self._full and self.tokenizer.padding_side == "left"
        for row, each in enumerate(batch):
            place = slice(width - len(each), width) if left else slice(len(each))
            ids[row, place], mask[row, place] = each.ids, 1
            kept[row, place] = np.array(each.special_tokens_mask) == 0
        inputs = {"input_ids": ids}
        if "attention_mask" in self.tokenizer.model_input_names:
            inputs["attention_mask"] = mask
        tensors = {name: to_device(torch.from_numpy(array), self.device) for name, array in inputs.items()}
        return tensors, to_device(torch.from_numpy(kept), self.device)

    def _batches(
        self, inputs: Sequence[Any], lengths: Sequence[int], encode: Callable[..., Any]
    ) -> tuple[NDArray[np.float32], Ragged]:
        return in_batches(self.device, self._precision, self.identity.dim, inputs, lengths, encode, self._size)


def load(argument: str, runtime: Runtime) -> ClipEncoder:
    """The dual encoder in a folder, or of that name in the cache of the Hugging Face hub; never from the network.

    Weights are read from safetensors, or from torch files of nothing but weights. EncoderError says how to get what is
    missing, and what is wrong with a model that cannot be used.
    """
    device.pick(runtime.device)
    name, folder = _find(argument)
    with _quiet():
        try:
            config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            kind = MODEL_MAPPING.get(type(config), None)
            if not (hasattr(kind, "get_image_features") and hasattr(kind, "get_text_features")):
                raise EncoderError(
                    f"{name}: a model of type {config.model_type!r} has no vectors of pictures and of texts, each on "
                    f"its own; take one of {WORKS}"
                )
            weights = _weights(name, folder)
            model, info = kind.from_pretrained(folder, config=config, local_files_only=True, output_loading_info=True)
            absent = sorted(info["missing_keys"])
            if absent:
                raise ValueError(f"{len(absent)} weights are missing, such as {absent[0]}")
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, **WITH_PILLOW)
            if not tokenizer.is_fast:
                raise ValueError("its tokenizer needs transformers 5: pip install -U transformers")
            digest = _digest(folder, weights)
            return ClipEncoder(model.float(), tokenizer, processor, name, digest, runtime)
        except UNUSABLE as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise EncoderError(
                f"{name}: no dual encoder that can be used ({reason}); get it anew, or take one of {WORKS}"
            ) from error


def _find(argument: str) -> tuple[str, Path]:
    """What the model is called, and its folder."""
    folder = Path(argument)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise EncoderError(f"{folder}: no folder of the transformers library (no config.json); give such a folder")
        return str(folder.resolve()), folder
    try:
        found = try_to_load_from_cache(argument, "config.json")
    except HFValidationError:
        raise EncoderError(f"{argument}: no such folder; give one that exists, or a name such as {EXAMPLE}") from None
    if not isinstance(found, str):
        raise EncoderError(
            f"{argument}: no such folder, and no model of that name on this machine; download it with: hf download "
            f"{argument}, then repeat the command"
        )
    return argument, Path(found).parent


def _weights(name: str, folder: Path) -> list[str]:
    """Names of the files that hold the weights."""
    first = next((file for file in WEIGHTS if (folder / file).is_file()), None)
    if first is None:
        raise EncoderError(f"{name}: no weights in {folder} (model.safetensors); copy all of the model there")
    if not first.endswith(".json"):
        return [first]
    index = json.loads((folder / first).read_text(encoding="utf-8"))
    return [first, *sorted(set(index["weight_map"].values()))]


def _digest(folder: Path, weights: Sequence[str]) -> str:
    """SHA-256 over the files that decide the output: names, sizes, contents."""
    digest = hashlib.sha256()
    for name in (*SETTINGS, *weights):
        path = folder / name
        if path.is_file():
            digest.update(f"{name} {path.stat().st_size}\n".encode())
            with path.open("rb") as handle:
                while block := handle.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


def _limit(tokenizer: Any, tower: nn.Module) -> int:
    """Ids that the text tower reads of a text."""
    limits = [LONGEST, tokenizer.model_max_length]
    for name, table in tower.named_modules():
        if isinstance(table, nn.Embedding) and name.endswith(("position_embedding", "position_embeddings")):
            # RoBERTa counts positions from behind that of the padding.
            limits.append(table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1))
    return min(limits)


def _grid(inputs: Inputs, tokens: int, patch: Any) -> tuple[int, int] | None:
    """Rows and columns of patches among the tokens of a picture, None where there is no such grid."""
    if "spatial_shapes" in inputs:
        rows, columns = inputs["spatial_shapes"].tolist()
        return rows, columns
    height, width = inputs["pixel_values"].shape[-2:]
    if patch:
        down, across = patch if isinstance(patch, (list, tuple)) else (patch, patch)
        rows, columns = height // down, width // across
        if rows * columns <= tokens <= rows * columns + 16:  # [CLS] and registers go before them
            return rows, columns
    side = round(tokens**0.5)
    return (side, side) if side * side == tokens and height == width else None


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's remarks: what matters of them is checked here."""
    transformers_logging.disable_progress_bar()
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
