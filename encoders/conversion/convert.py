"""Conversion of a published checkpoint to a model folder, for ``boc convert``."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from tokenizers import BertWordPieceTokenizer

from boc.atomic_files import sole_writer
from boc.errors import EncoderError
from boc.foreign import parse_json
from boc.inputs.text_lines import read_ids
from boc.plugins import RegionSource

from ..networks import text_towers
from ..networks.base import Network
from ..networks.foreign import reading_model
from ..networks.tokens import Vocabulary, WordPieces
from ..runtime.model_folder import check_model_folder, create_folder, save_weights
from . import checkpoints
from .vsrn_checkpoints import check_vocabulary, read_vocabulary, vsrn_from_published

NEEDED = ("[UNK]", "[CLS]", "[SEP]")
NOTES = ("config.json", "training.json", "history.json")
"""Files that show that a folder holds a model, and how it was made."""


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion: the kind of network, its settings, its number of parameters, and
    what the file says of its training (epoch, best scores, pooling of alignments)."""

    kind: str
    settings: dict[str, Any]
    parameters: int
    training: dict[str, Any]


def convert(
    checkpoint: Path,
    folder: Path,
    tokens: Path,
    source: RegionSource,
    *,
    stop_list: Path | None = None,
) -> Conversion:
    """Write the network in ``checkpoint`` with its tokens and region source into the model folder
    ``folder``.

    ``tokens`` is BERT's vocab.txt or tokenizer.json for a TERN or TERAN, the vocabulary (pickle or
    JSON) for a VSRN. ``stop_list`` has the stop-words, one a line, of a TERAN that leaves them out,
    which does not hold them. EncoderError, and nothing written, for files of the wrong kind or of
    different models, and if the folder holds one.
    """
    if (folder / "config.json").exists():
        raise EncoderError(
            f"{folder} holds a model already; choose another folder with -o, or delete this one "
            "first",
        )
    check_model_folder(folder)
    if not tokens.is_file():
        raise EncoderError(
            f"{tokens}: no such file; name the vocabulary that the checkpoint came with",
        )
    published = checkpoints.read_published(checkpoint)
    kind, network = from_published(published)
    if source.identity.dim != network.config.region_dim:
        raise EncoderError(
            f"regions of {source.identity.spec} have {source.identity.dim} numbers, those of the "
            "checkpoint "
            f"{network.config.region_dim}; name the features that it was trained on, for example "
            "files:DIR",
        )
    words = _words(tokens, network) if kind == "vsrn" else _word_pieces(tokens, network)
    left_out = not getattr(network.config, "stop_words", True)
    if left_out and stop_list is None:
        raise EncoderError(
            f"{checkpoint}: this TERAN leaves out stop-words, and holds no list of them",
            "name one with <--stop-list>, a word per line (its authors take the English list of "
            "NLTK)",
        )
    if stop_list is not None and not left_out:
        raise EncoderError(
            f"{checkpoint}: this network leaves out no stop-words",
            "leave out <--stop-list>",
        )
    if stop_list is not None:
        network.text["stop_ids"] = text_towers.stop_ids(words, read_ids(stop_list))
    with sole_writer(folder):
        for note in NOTES:
            (folder / note).unlink(missing_ok=True)
        save_weights(folder, network.state_dict())
        create_folder(folder, kind, network, words, source)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return Conversion(kind, asdict(network.config), parameters, _training(kind, published))


def from_published(checkpoint: Mapping[str, Any]) -> tuple[str, Network]:
    """Kind and network of a checkpoint from ``read_published``. EncoderError says what does not
    fit."""
    kind = checkpoints.kind_of(checkpoint)
    return kind, vsrn_from_published(checkpoint) if kind == "vsrn" else checkpoints.network_from(
        kind,
        checkpoint,
    )


def _words(path: Path, network: Network) -> Vocabulary:
    words = read_vocabulary(path)
    check_vocabulary(words, network, path)
    return Vocabulary(words)


def _word_pieces(path: Path, network: Network) -> WordPieces:
    """Return the tokenizer of an uncased BERT; only the vocabulary of a tokenizer.json is used."""
    config = network.txt_enc.bert_model.config
    pieces = _read_pieces(path)
    if len(pieces) != config.vocab_size:
        raise EncoderError(
            f"{path}: {len(pieces)} word-pieces, but the checkpoint was trained with "
            f"{config.vocab_size}; "
            "take the vocabulary of the BERT that it began with (bert-base-uncased has 30522)",
        )
    return WordPieces(
        BertWordPieceTokenizer(pieces, lowercase=True)._tokenizer,
        config.max_position_embeddings,
    )


def _read_pieces(path: Path) -> dict[str, int]:
    """Read word-pieces and their ids, which are 0, 1, 2 ..., from a vocab.txt (one per line) or a
    tokenizer.json."""
    with reading_model(
        lambda reason: (
            f"{path}: not the vocabulary of a BERT, vocab.txt or tokenizer.json ({reason})"
        ),
    ):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            vocabulary = parse_json(text)["model"]["vocab"]
        else:
            vocabulary = {
                piece: number for number, piece in enumerate(text.removesuffix("\n").split("\n"))
            }
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise ValueError("its ids are not 0, 1, 2 ... or a piece occurs twice")
        missing = [piece for piece in NEEDED if piece not in vocabulary]
        if missing:
            raise ValueError(f"{' '.join(missing)} not in it")
    pieces: dict[str, int] = vocabulary
    return pieces


def _training(kind: str, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    record = {
        key: float(value)
        for key, value in checkpoint.items()
        if (key == "epoch" or str(key).startswith("best_")) and isinstance(value, Real)
    }
    pooling = checkpoints.pooling(checkpoint) if kind == "teran" else None
    return record if pooling is None else {**record, "pooling": pooling}
