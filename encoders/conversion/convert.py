"""From a published checkpoint to a model folder: what ``boc convert`` does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from tokenizers.implementations import BertWordPieceTokenizer

from boc.atomic_files import sole_writer
from boc.errors import EncoderError
from boc.plugins import RegionSource

from ..networks import text_towers
from ..networks.base import Network
from ..networks.word_tokenizer import Words
from ..runtime.model_folder import create_folder, save_weights
from . import checkpoints
from .checkpoints import teran_from_published, tern_from_published
from .vsrn_checkpoints import check_vocabulary, read_vocabulary, vsrn_from_published

MAKERS: dict[str, Callable[[Mapping[str, Any]], Network]] = {
    "tern": tern_from_published,
    "teran": teran_from_published,
    "vsrn": vsrn_from_published,
}
NEEDED = ("[UNK]", "[CLS]", "[SEP]")
NOTES = (
    "config.json",
    "training.json",
    "history.json",
)  # what says of a folder that it holds a model, and how it was made


@dataclass(frozen=True)
class Converted:
    """What was found: the kind of network, its settings, the number of its parameters, and what the file told of its
    training: epoch, best scores, the pooling of alignments."""

    kind: str
    settings: dict[str, Any]
    parameters: int
    training: dict[str, Any]


def convert(checkpoint: Path, folder: Path, tokens: Path, source: RegionSource, *, replace: bool = False) -> Converted:
    """Write the network in ``checkpoint`` with its tokens and region source into the model folder ``folder``.

    ``tokens`` is BERT's vocab.txt or tokenizer.json for a TERN or TERAN, the vocabulary (pickle or JSON) for a VSRN.
    Raises EncoderError for files that are not what they should be or do not belong together, and if the folder holds a
    model and ``replace`` is not set. Nothing is written then.
    """
    if (folder / "config.json").exists() and not replace:
        raise EncoderError(f"{folder} holds a model already; choose another folder with -o, or replace it: --replace")
    if not tokens.is_file():
        raise EncoderError(f"{tokens}: no such file; name the vocabulary that the checkpoint came with")
    found = checkpoints.read_published(checkpoint)
    kind, network = from_published(found)
    if source.identity.dim != network.config.region_dim:
        raise EncoderError(
            f"regions of {source.identity.spec} have {source.identity.dim} numbers, those of the checkpoint "
            f"{network.config.region_dim}; name the features that it was trained on, for example files:DIR"
        )
    words = _words(tokens, network) if kind == "vsrn" else _word_pieces(tokens, network)
    if not getattr(network.config, "stop_words", True):
        network.text["stop_ids"] = text_towers.stop_ids(words)
    with sole_writer(folder):
        for note in NOTES:
            (folder / note).unlink(missing_ok=True)
        save_weights(folder, network.state_dict())
        create_folder(folder, kind, network, words, source)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return Converted(kind, asdict(network.config), parameters, _training(kind, found))


def from_published(checkpoint: Mapping[str, Any]) -> tuple[str, Network]:
    """Kind and network of a checkpoint that ``read_published`` read. EncoderError says what does not fit."""
    kind = checkpoints.kind_of(checkpoint)
    return kind, MAKERS[kind](checkpoint)


def _words(path: Path, network: Network) -> Words:
    words = read_vocabulary(path)
    check_vocabulary(words, network, path)
    return Words(words)


def _word_pieces(path: Path, network: Network) -> text_towers.WordPieces:
    """The tokens of an uncased BERT: of a tokenizer.json only the vocabulary counts, for the published networks know
    one way to cut words."""
    config = network.txt_enc.bert_model.config
    pieces = _read_pieces(path)
    if len(pieces) != config.vocab_size:
        raise EncoderError(
            f"{path}: {len(pieces)} word-pieces, but the checkpoint was trained with {config.vocab_size}; "
            "take the vocabulary of the BERT that it began with (bert-base-uncased has 30522)"
        )
    return text_towers.WordPieces(
        BertWordPieceTokenizer(pieces, lowercase=True)._tokenizer, config.max_position_embeddings
    )


def _read_pieces(path: Path) -> dict[str, int]:
    """Word-pieces and their ids, which are 0, 1, 2 ..., of a vocab.txt (one a line) or a tokenizer.json."""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text)["model"]["vocab"] if path.suffix == ".json" else _numbered(text)
        if sorted(found.values()) != list(range(len(found))):
            raise ValueError("its ids are not 0, 1, 2 ... or a piece occurs twice")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise EncoderError(f"{path}: not the vocabulary of a BERT, vocab.txt or tokenizer.json ({error})") from error
    missing = [piece for piece in NEEDED if piece not in found]
    if missing:
        raise EncoderError(f"{path}: not the vocabulary of a BERT, {' '.join(missing)} not in it")
    pieces: dict[str, int] = found
    return pieces


def _numbered(text: str) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(text.removesuffix("\n").split("\n"))}


def _training(kind: str, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    told = {
        key: float(value)
        for key, value in checkpoint.items()
        if (key == "epoch" or str(key).startswith("best_")) and isinstance(value, Real)
    }
    pooling = checkpoints.pooling(checkpoint) if kind == "teran" else None
    return told if pooling is None else {**told, "pooling": pooling}
