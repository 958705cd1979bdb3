"""CLIP, SigLIP and other dual encoders of ``transformers``: ``clip:NAME_OR_FOLDER``.

Global vectors are the library's own (``get_image_features``, ``get_text_features``), of unit
length. The concepts of a picture are the tokens of its patches, those of a sentence the tokens of
its words: rows of the last layer of the tower, each projected into the joint space as if it were
the only token that the tower pools. So the token that a tower pools (CLIP's [CLS] or end of text)
would give the global vector itself. Where a head attends to all tokens, as for SigLIP's pictures,
the softmax over a single token is 1, and only the path from values to the output remains (the dense
use of CLIP of Zhou et al., Extract Free Dense Labels from CLIP, ECCV 2022, section 3.3).

Two networks in ONNX as others publish them (``runtime.onnx_pair``) have global vectors alone.
Nothing is downloaded, and no code of a model is run.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boc import models
from boc.errors import EncoderError
from boc.types import Identity, Runtime

from .runtime.device import import_for_torch, runs_onnx
from .runtime.dual_encoder import DualEncoder, EncodedTexts, choose_towers
from .runtime.dual_onnx import DualOnnx
from .runtime.onnx_pair import PairOnnx, describe
from .runtime.onnx_record import ModelFiles, read_record

if TYPE_CHECKING:
    from tokenizers import Encoding

    from .runtime.dual_network import DualNetwork

CONFIG = "config.json"
# It stands for a piece without text of its own: a byte of a character that an earlier piece shows.
JOINER = "\u200d"


def words(text: str, encoding: Encoding) -> list[str]:
    """Return the pieces of ``text``, one per token that is not special, as written in the text. A
    piece that continues the word of the previous one starts with "##", whatever marks the tokenizer
    uses."""
    pieces: list[str] = []
    end = 0
    last = None
    for token, (start, stop), word, special in zip(
        encoding.tokens,
        encoding.offsets,
        encoding.word_ids,
        encoding.special_tokens_mask,
        strict=True,
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
        end = max(end, stop)
        last = word
    return pieces


def _joins(letter: str) -> bool:
    return not letter.isspace() and unicodedata.category(letter)[0] not in "PS"


def load(argument: str, runtime: Runtime) -> DualEncoder:
    """Load the dual encoder in a folder, of ``boc model get``, or of this name in the Hugging Face
    cache.

    Nothing is downloaded. Weights are read from safetensors, or from torch files that contain only
    weights. EncoderError says how to get what is missing, or what is wrong with an unusable model.
    """
    name, folder = find(argument)
    pair = models.pair_in(folder)
    towers: Any
    pictures: Callable[[], Any]
    if pair is not None:
        if runtime.device == "cuda":
            raise EncoderError(
                f"{name}: networks in ONNX, which run on the CPU here",
                "leave out <--device>, or get weights of transformers for the card: "
                "<boc model get google/siglip2-base-patch16-256>",
            )
        files = parts(name, folder)
        if read_record(folder, files) is None:
            digest(name, folder)
        record = describe(folder, pair, files)
        contents = record.digest
        pictures = cache(partial(PairOnnx, folder, record, runtime.batch, pair))
        towers = pictures()
    else:
        own = read_record(folder, parts(name, folder)) if runs_onnx(runtime) else None
        contents = digest(name, folder) if own is None else own.digest
        towers, pictures = choose_towers(
            own,
            runtime,
            lambda record: DualOnnx(folder, record, runtime.batch),
            lambda: open_network(name, folder, runtime),
        )

    def encode_texts(texts: Sequence[str]) -> EncodedTexts:
        encodings = towers.form.encode(texts)
        vectors, sets = towers.texts(encodings)
        return vectors, sets, [words(*pair) for pair in zip(texts, encodings, strict=True)]

    return DualEncoder(
        Identity(f"clip:{name}", contents, towers.dim),
        towers.form,
        lambda: pictures().preparer,
        lambda prepared: pictures().images(prepared),
        encode_texts,
        concepts=towers.grid is not None,
    )


def open_network(name: str, folder: Path, runtime: Runtime) -> DualNetwork:
    """Open the model in a folder on torch. EncoderError says what is wrong with it."""
    parts(name, folder)
    module = import_for_torch("dual_network")
    network: DualNetwork = module.read_model(name, folder, runtime)
    return network


def parts(name: str, folder: Path) -> ModelFiles:
    """Return what the networks in ONNX of a model depend on. EncoderError without weights."""
    weights = models.weights(folder)
    if not weights:
        raise EncoderError(
            f"{name}: no weights in {folder} (model.safetensors); copy all of the model there",
        )
    settings = models.settings(folder)
    return ModelFiles(settings, weights, lambda: models.contents(folder, weights))


def digest(name: str, folder: Path) -> str:
    """Return the digest of a model. EncoderError if it is not what was downloaded."""
    contents = parts(name, folder).digest()
    got = models.read(folder)
    if got is not None and got.contents != contents:
        changed = ", ".join(models.verify(got)) or "a file that was added"
        raise EncoderError(
            f"{name}: not as downloaded ({changed})",
            f"get it again: <boc model get {got.repository}>",
        )
    return contents


def find(argument: str) -> tuple[str, Path]:
    """Return the name of the model, and its folder."""
    folder = Path(argument)
    if folder.is_dir():
        if not (folder / CONFIG).is_file() and models.pair_in(folder) is None:
            raise EncoderError(
                f"{folder}: no folder of the transformers library (no config.json), and no two "
                "networks in ONNX; give such a folder",
            )
        return str(folder.resolve()), folder
    name = argument
    if argument in models.CATALOGUE:
        name = models.CATALOGUE[argument].repository
    got = models.find(name)
    if got is not None:
        return name, got.folder
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, CONFIG)
    except HFValidationError:
        raise EncoderError(
            f"{argument}: no such folder; give one that exists, or a name such as clip",
        ) from None
    # A file that is known to be absent has a mark in place of a path.
    if not isinstance(cached, str):
        raise EncoderError(
            f"{argument}: no such folder, and no model of that name on this machine",
            f"download it with: <boc model get {argument}>, then repeat the command",
        )
    return name, Path(cached).parent
