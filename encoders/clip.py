"""CLIP, SigLIP, and the other dual encoders of the ``transformers`` library, and CLIPs of ``open_clip``:
``clip:NAME_OR_FOLDER``.

Global vectors are the library's own (``get_image_features``, ``get_text_features``), of unit length. The concepts of a
picture are the tokens of its patches, those of a sentence the tokens of its words: rows of the last layer of the tower,
each projected into the joint space as if it were the only token that the tower pools. So the token that a tower pools
(CLIP's [CLS] or end of text) would give the global vector itself. Where a head attends to all tokens, as for SigLIP's
pictures, the softmax over a single token is 1, and only the path from values to the output remains (the dense use of
CLIP of Zhou et al., Extract Free Dense Labels from CLIP, ECCV 2022, section 3.3).

Nothing is downloaded, and no code of a model is run.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from numpy.typing import NDArray
from PIL import Image
from tokenizers import Encoding, normalizers
from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoConfig, AutoImageProcessor, AutoTokenizer
from transformers.utils import logging as transformers_logging

from boc import models
from boc.errors import EncoderError, ImageError
from boc.inputs.images import read_image
from boc.types import Embeddings, Identity, ImageRef, Ragged, Runtime

from .conversion import open_clip
from .networks.dual_tower import Tower
from .networks.foreign import reading_model
from .runtime import device
from .runtime.batching import in_batches, to_device

WORKS = "CLIP, SigLIP, SigLIP 2, MetaCLIP 2, Chinese-CLIP, AltCLIP, CLIPSeg, ALIGN, AIMv2, VisionTextDualEncoder"
CONFIGS = ("config.json", "open_clip_config.json")
EXAMPLE = "clip"
LONGEST = 512  # ids per text, if neither tokenizer nor network has a limit
THINNEST = 100  # largest ratio of the long to the short side: resizing the short side enlarges the long one too
JOINER = "\u200d"  # stands for a piece without text of its own: a byte of a character that an earlier piece shows

Inputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class ClipInput:
    """The input of the network for a picture: ``inputs`` are arrays by name, ``boxes`` float32 (n, 4) the patches as
    fractions of the width and height of the picture; n is 0 for a network without patches."""

    inputs: Inputs
    boxes: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.boxes)


@dataclass(frozen=True)
class Preparer:
    """Prepares pictures with the image processor of the library. ``grid`` holds the numbers of rows and columns of
    patches, None for a network without patches; with NaFlex networks each picture has its own grid."""

    processor: Any
    grid: tuple[int, int] | None

    def __call__(self, image: ImageRef) -> ClipInput:
        picture = read_image(image.path)
        width, height = picture.size
        if max(width, height) > THINNEST * min(width, height):
            raise ImageError(f"{image.path}: {width} x {height} pixels, the limit is 1 : {THINNEST}; crop the picture")
        inputs = self.inputs(picture)
        if self.grid is None:
            return ClipInput(inputs, np.empty((0, 4), np.float32))
        rows, columns = inputs["spatial_shapes"].tolist() if "spatial_shapes" in inputs else self.grid
        return ClipInput(inputs, patch_boxes(window(self.processor, width, height), rows, columns))

    def inputs(self, picture: Image.Image) -> Inputs:
        # Explicit, because the rows of a picture with one or three rows could be mistaken for channels.
        arrays = self.processor(picture, return_tensors="np", input_data_format="channels_last")
        return {name: np.asarray(values)[0] for name, values in arrays.items()}


def window(processor: Any, width: int, height: int) -> tuple[float, float, float, float]:
    """x1, y1, x2, y2 of the area that the network sees after cropping, as fractions of the width and height of the
    picture. Beyond [0, 1] if the crop is larger than the picture."""
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
    clipped: NDArray[np.float32] = np.clip(boxes, 0, 1).astype(np.float32)
    return clipped


def words(text: str, encoding: Encoding) -> list[str]:
    """Return the pieces of ``text``, one per token that is not special, as written in the text. A piece that continues
    the word of the previous one starts with "##", whatever marks the tokenizer uses."""
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


class ClipEncoder:
    """A dual encoder of the library as an Encoder. Its concepts are patches and words without special tokens; they are
    not of unit length."""

    def __init__(self, model: Any, tokenizer: Any, processor: Any, name: str, digest: str, runtime: Runtime) -> None:
        self.device = device.pick(runtime.device)
        self.model = model.eval().to(self.device)
        self.tokenizer = tokenizer
        self._images = Tower(model.get_image_features, model.vision_model, getattr(model, "visual_projection", None))
        self._texts = Tower(model.get_text_features, model.text_model, getattr(model, "text_projection", None))
        self._limit = _limit(tokenizer, model.text_model)
        # SigLIP was trained with lower-case texts padded to full length, and reads the padding.
        self._full = model.config.text_config.model_type.startswith("siglip")
        if self._full:
            backend = tokenizer.backend_tokenizer
            others = [] if backend.normalizer is None else [backend.normalizer]
            backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *others])
        self.identity, self.preparer = self._probe(Preparer(processor, None), name, digest)
        self._in_batches = partial(in_batches, self.device, runtime.precision, self.identity.dim, size=runtime.batch)
        if runtime.compile:
            self._images.compile()
            self._texts.compile()

    def prepare(self, image: ImageRef) -> ClipInput:
        return self.preparer(image)

    def encode_images(self, prepared: Sequence[ClipInput]) -> Embeddings:
        def encode(batch: Sequence[ClipInput]) -> tuple[Tensor, list[Tensor]]:
            vectors, hidden = self._images(**self._stack([each.inputs for each in batch]))
            if self.preparer.grid is None:
                return vectors, [vectors[:0]] * len(batch)
            before = 0 if "spatial_shapes" in batch[0].inputs else hidden.shape[1] - len(batch[0])
            tokens = self._images.joint(hidden[:, before:])
            return vectors, [rows[: len(each)] for rows, each in zip(tokens, batch, strict=True)]

        vectors, sets = self._in_batches(prepared, [len(each) for each in prepared], encode)
        if self.preparer.grid is None:
            return Embeddings("image", vectors)
        return Embeddings("image", vectors, sets, boxes=Ragged.from_sets([each.boxes for each in prepared], 4))

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        encodings = self.tokenize(texts)

        def encode(batch: Sequence[Encoding]) -> tuple[Tensor, list[Tensor]]:
            inputs, masks = self._pad(batch)
            vectors, hidden = self._texts(**inputs)
            if self.preparer.grid is None:
                return vectors, [vectors[:0]] * len(batch)
            return vectors, [rows[mask] for rows, mask in zip(self._texts.joint(hidden), masks, strict=True)]

        vectors, sets = self._in_batches(encodings, [len(each) for each in encodings], encode)
        if self.preparer.grid is None:
            return Embeddings("text", vectors)
        return Embeddings("text", vectors, sets, words=[words(*pair) for pair in zip(texts, encodings, strict=True)])

    def tokenize(self, texts: Sequence[str]) -> list[Encoding]:
        """Return the ids of each text, special ones included, with their positions in the text."""
        if not texts:
            return []
        batch = self.tokenizer(list(texts), truncation=True, max_length=self._limit)
        encodings: list[Encoding] = batch.encodings
        return encodings

    @torch.inference_mode()
    def _probe(self, preparer: Preparer, name: str, digest: str) -> tuple[Identity, Preparer]:
        """Run a picture and a sentence through the towers, to learn their widths, the grid of patches, and the token
        maps."""
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
        """Return the padded inputs of the tower, and a mask (B, L) of the tokens that are not special."""
        width = self._limit if self._full else max(1, *(len(each) for each in batch))
        ids = np.full((len(batch), width), self.tokenizer.pad_token_id or 0, np.int64)
        attended, masks = np.zeros(ids.shape, np.int64), np.zeros(ids.shape, bool)
        left = self._full and self.tokenizer.padding_side == "left"
        for row, each in enumerate(batch):
            place = slice(width - len(each), width) if left else slice(len(each))
            ids[row, place], attended[row, place] = each.ids, 1
            masks[row, place] = np.array(each.special_tokens_mask) == 0
        inputs = {"input_ids": ids}
        if not self._full and "attention_mask" in self.tokenizer.model_input_names:
            inputs["attention_mask"] = attended
        tensors = {name: to_device(torch.from_numpy(array), self.device) for name, array in inputs.items()}
        return tensors, to_device(torch.from_numpy(masks), self.device)


def load(argument: str, runtime: Runtime) -> ClipEncoder:
    """Load the dual encoder in a folder, or with this name among the models of ``boc model get`` or in the local cache
    of the Hugging Face hub.

    Nothing is downloaded. Weights are read from safetensors, or from torch files that contain only weights.
    EncoderError says how to get what is missing, or what is wrong with an unusable model.
    """
    device.pick(runtime.device)
    name, folder = _find(argument)
    unusable = f"get it again, or take one of {WORKS}"
    with _quiet(), reading_model(lambda reason: f"{name}: no dual encoder that can be used ({reason}); {unusable}"):
        weights, digest = _contents(name, folder)
        read = _open_clip if weights[0].startswith("open_clip") else _transformers
        model, tokenizer, processor = read(name, folder, weights)
        if not tokenizer.is_fast:
            raise ValueError("its tokenizer needs transformers 5: pip install -U transformers")
        return ClipEncoder(model.float(), tokenizer, processor, name, digest, runtime)


def _transformers(name: str, folder: Path, weights: list[str]) -> tuple[Any, Any, Any]:
    """Return the network, the tokenizer and the image processor of a folder of the transformers library."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    kind: Any = MODEL_MAPPING.get(type(config), None)
    if not (hasattr(kind, "get_image_features") and hasattr(kind, "get_text_features")):
        raise EncoderError(
            f"{name}: a model of type {config.model_type!r} has no vectors of pictures and of texts, each on "
            f"its own; take one of {WORKS}"
        )
    model, info = kind.from_pretrained(folder, config=config, local_files_only=True, output_loading_info=True)
    absent = sorted(info["missing_keys"])
    if absent:
        raise ValueError(f"{len(absent)} weights are missing, such as {absent[0]}")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    # Pillow resizes as the models' authors did; torchvision, the default where it is installed, differs a little.
    return model, tokenizer, AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil")


def _open_clip(_: str, folder: Path, weights: list[str]) -> tuple[Any, Any, Any]:
    return open_clip.load(folder, weights[0])


def _find(argument: str) -> tuple[str, Path]:
    """Return the name of the model, and its folder."""
    folder = Path(argument)
    if folder.is_dir():
        if not any((folder / name).is_file() for name in CONFIGS):
            raise EncoderError(f"{folder}: no folder of the transformers library (no config.json); give such a folder")
        return str(folder.resolve()), folder
    entry = models.CATALOGUE.get(argument)
    name = argument if entry is None else entry.repository
    got = models.find(name)
    if got is not None:
        return name, got.folder
    try:
        cached = next(
            (path for config in CONFIGS if isinstance(path := try_to_load_from_cache(name, config), str)), None
        )
    except HFValidationError:
        raise EncoderError(f"{argument}: no such folder; give one that exists, or a name such as {EXAMPLE}") from None
    if cached is None:
        raise EncoderError(
            f"{argument}: no such folder, and no model of that name on this machine; download it with: boc model get "
            f"{argument}, then repeat the command"
        )
    return name, Path(cached).parent


def _contents(name: str, folder: Path) -> tuple[list[str], str]:
    """Return the files that hold the weights, and the digest of the model. EncoderError if it is not what was
    downloaded."""
    weights = models.weights(folder)
    if not weights:
        raise EncoderError(f"{name}: no weights in {folder} (model.safetensors); copy all of the model there")
    digest = models.contents(folder, weights)
    got = models.read(folder)
    if got is not None and got.contents != digest:
        changed = ", ".join(models.verify(got)) or "a file that was added"
        raise EncoderError(
            f"{name}: not as it was downloaded ({changed}); get it again: boc model get {got.repository}"
        )
    return weights, digest


def _limit(tokenizer: Any, tower: nn.Module) -> int:
    """Return the largest number of ids per text for the text tower."""
    limits: list[int] = [LONGEST, tokenizer.model_max_length]
    for name, table in tower.named_modules():
        if isinstance(table, nn.Embedding) and name.endswith(("position_embedding", "position_embeddings")):
            # RoBERTa counts positions from the one after the padding id.
            limits.append(table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1))
    return min(limits)


def _grid(inputs: Inputs, tokens: int, patch: Any) -> tuple[int, int] | None:
    """Return the rows and columns of patches among the tokens of a picture, None without a grid."""
    if "spatial_shapes" in inputs:
        rows, columns = inputs["spatial_shapes"].tolist()
        return rows, columns
    height, width = inputs["pixel_values"].shape[-2:]
    if patch:
        down, across = patch if isinstance(patch, (list, tuple)) else (patch, patch)
        rows, columns = height // down, width // across
        if rows * columns <= tokens <= rows * columns + 16:  # [CLS] and registers come before them
            return rows, columns
    side = round(tokens**0.5)
    return (side, side) if side * side == tokens and height == width else None


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library; this module checks what matters."""
    transformers_logging.disable_progress_bar()
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
