"""Convert a published checkpoint to a model folder, for ``boc convert``."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from boc.atomic_files import sole_writer
from boc.errors import EncoderError
from boc.foreign import parse_json
from boc.inputs.text_lines import read_ids
from boc.plugins import RegionSource

from ..networks import text_towers
from ..networks.base import Network
from ..networks.foreign import reading_model
from ..networks.tokens import Tokens, Vocabulary, WordPieces
from ..runtime.model_folder import check_model_folder, create_folder, save_weights
from . import checkpoints
from .vsrn_checkpoints import check_vocabulary, read_vocabulary, vsrn_from_published


@dataclass(frozen=True)
class Conversion:
    """Result of a conversion: the kind of network, its settings and its number of parameters."""

    kind: str
    settings: dict[str, Any]
    parameters: int


def convert(
    checkpoint: Path,
    folder: Path,
    tokens: Path,
    source: RegionSource,
    *,
    stop_list: Path | None = None,
) -> Conversion:
    """Write the network in ``checkpoint``, its tokens and its region source to the model folder
    ``folder``.

    ``tokens`` is BERT's vocab.txt or tokenizer.json for a TERN or TERAN, and the vocabulary (pickle
    or JSON) for a VSRN. ``stop_list`` is a file with one stop-word per line. A TERAN that ignores
    stop-words needs this file, because its checkpoint does not contain the list. Raises
    EncoderError, before any file is written, if files are of the wrong kind or from different
    models, or if the folder already contains a model.
    """
    if (folder / "config.json").exists():
        raise EncoderError(
            f"{folder} already contains a model; choose another folder with -o, or delete this one "
            "first",
        )
    check_model_folder(folder)
    if not tokens.is_file():
        raise EncoderError(
            f"{tokens}: file does not exist; name the vocabulary that came with the checkpoint",
        )
    kind, network = from_published(checkpoints.read_published(checkpoint))
    if source.identity.dim != network.config.region_dim:
        raise EncoderError(
            f"regions of {source.identity.spec} have {source.identity.dim} features, but the "
            f"checkpoint needs {network.config.region_dim}; use the features that it was trained "
            "on, for example files:DIR",
        )
    words: Tokens
    if kind == "vsrn":
        listed = read_vocabulary(tokens)
        check_vocabulary(listed, network, tokens)
        words = Vocabulary(listed)
    else:
        words = _word_pieces(tokens, network)
    left_out = not getattr(network.config, "stop_words", True)
    if left_out and stop_list is None:
        raise EncoderError(
            f"{checkpoint}: this TERAN ignores stop-words, but does not list them",
            "give a list with <--stop-list>, one word per line (the authors use NLTK's English "
            "list)",
        )
    if stop_list is not None:
        if not left_out:
            raise EncoderError(
                f"{checkpoint}: this network does not ignore stop-words",
                "leave out <--stop-list>",
            )
        network.text["stop_ids"] = text_towers.stop_ids(words, read_ids(stop_list))
    with sole_writer(folder):
        # These files mark a folder as a model and record how the model was created.
        for note in ("config.json", "training.json", "history.json"):
            (folder / note).unlink(missing_ok=True)
        save_weights(folder, network.state_dict())
        create_folder(folder, kind, network, words, source)
    return Conversion(
        kind,
        asdict(network.config),
        sum(parameter.numel() for parameter in network.parameters()),
    )


def from_published(checkpoint: Mapping[str, Any]) -> tuple[str, Network]:
    """Return the kind and the network of a checkpoint from ``read_published``. Raises EncoderError
    with the name of a part that does not match."""
    kind = checkpoints.kind_of(checkpoint)
    if kind == "vsrn":
        return kind, vsrn_from_published(checkpoint)
    return kind, checkpoints.network_from(kind, checkpoint)


def _word_pieces(path: Path, network: Network) -> WordPieces:
    """Return the tokenizer of an uncased BERT from a vocab.txt, with one word-piece per line, or
    from a tokenizer.json. Ids must be 0, 1, 2 ..."""
    config = network.txt_enc.bert_model.config
    with reading_model(
        lambda reason: (
            f"{path}: not the vocabulary of a BERT, vocab.txt or tokenizer.json ({reason})"
        ),
    ):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            pieces = parse_json(text)["model"]["vocab"]
        else:
            lines = text.removesuffix("\n").split("\n")
            pieces = {piece: number for number, piece in enumerate(lines)}
        if sorted(pieces.values()) != list(range(len(pieces))):
            raise ValueError("its ids are not 0, 1, 2 ... or a piece occurs twice")
        missing = [piece for piece in ("[UNK]", "[CLS]", "[SEP]") if piece not in pieces]
        if missing:
            raise ValueError(f"it lacks {' '.join(missing)}")
    if len(pieces) != config.vocab_size:
        raise EncoderError(
            f"{path}: {len(pieces)} word-pieces, but the checkpoint was trained with "
            f"{config.vocab_size}; use the vocabulary of the BERT on which it is based "
            "(bert-base-uncased has 30522)",
        )
    return WordPieces(text_towers.word_pieces(pieces), config.max_position_embeddings)
