"""Tokenizers: word-pieces of a BERT, and whole words with a learned or a published vocabulary
(VSRN, section 3.2)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from boc.atomic_files import open_whole
from boc.errors import EncoderError, needing
from boc.foreign import parse_json

SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
# The limit of ids per text, if the network has no limit.
LIMIT = 512

# Replaces the Punkt model of nltk's word_tokenize, which is a download: a sentence ends at . ! or ?
# before a space, unless it closes a single letter ("a.m.", an initial) or one of a few
# abbreviations.
_SENTENCE_END = re.compile(
    r"(?<=[.!?])(?<!\b\w\.)(?<!\b(?:mr|ms|dr|st|jr|sr|vs)\.)(?<!\b(?:mrs|etc)\.)\s+",
)


def tokenize(text: str) -> list[str]:
    """Return the Treebank tokens of a lower-cased text, as nltk's ``word_tokenize`` does except at
    rare sentence ends.

    EncoderError without nltk.
    """
    treebank = _treebank()
    return [
        token
        for sentence in _SENTENCE_END.split(text.lower())
        for token in treebank.tokenize(sentence)
    ]


class Vocabulary:
    """A vocabulary: ``words[i]`` is the word of id i. The first four words are <pad>, <start>,
    <end> and <unk>.

    EncoderError for a vocabulary that begins differently or names a word twice.
    """

    def __init__(
        self,
        words: Sequence[str],
        limit: int = LIMIT,
    ) -> None:
        if tuple(words[: len(SPECIALS)]) != SPECIALS:
            raise EncoderError(
                f"a vocabulary of words must begin with {' '.join(SPECIALS)}, got "
                f"{list(words[:4])}",
            )
        self.words = list(words)
        self.limit = limit
        self._ids = {word: number for number, word in enumerate(self.words)}
        for number, word in enumerate(self.words):
            if self._ids[word] != number:
                raise EncoderError(f"{word!r} is twice in the vocabulary; each word needs one id")

    @classmethod
    def learn(
        cls,
        captions: Iterable[str],
        min_count: int = 4,
    ) -> Vocabulary:
        """Learn the words that occur at least ``min_count`` times in captions, most frequent first,
        ties alphabetical."""
        counts = Counter(token for caption in captions for token in tokenize(caption))
        frequent = (word for word, count in counts.items() if count >= min_count)
        return cls([*SPECIALS, *sorted(frequent, key=lambda word: (-counts[word], word))])

    @property
    def size(self) -> int:
        return len(self.words)

    @property
    def vocabulary(self) -> frozenset[str]:
        return frozenset(self.words[len(SPECIALS) :])

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return <start>, the words of each text, and <end>; words beyond ``limit`` ids are cut."""
        start, end, unknown = range(1, 4)
        rows = []
        for text in texts:
            tokens = tokenize(text)[: self.limit - 2]
            rows.append([start, *(self._ids.get(token, unknown) for token in tokens), end])
        return rows

    def strings(self, ids: Sequence[Sequence[int]]) -> list[list[str]]:
        """Return the word of each id; <unk> for unknown words."""
        return [[self.words[number] for number in row] for row in ids]

    def dump(self) -> str:
        """Return JSON for ``read_tokens``."""
        content = {"kind": "words", "words": self.words, "limit": self.limit}
        return json.dumps(content, ensure_ascii=False)


class Tokens(Protocol):
    """A tokenizer of texts: ids with special ids first and last, and 0 for padding."""

    @property
    def size(self) -> int:
        """The number of different ids."""

    @property
    def vocabulary(self) -> frozenset[str]:
        """The words that have an id of their own."""

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, cut to the limit of the tower."""

    def strings(self, ids: Sequence[Sequence[int]]) -> list[list[str]]:
        """Return the tokens of the ids as readable strings."""

    def dump(self) -> str:
        """Return JSON from which ``read_tokens`` restores the tokenizer."""


class WordPieces:
    """Word-pieces of a BERT: [CLS] + pieces + [SEP], at most ``limit`` ids."""

    def __init__(self, tokenizer: Tokenizer, limit: int) -> None:
        self._tokenizer = tokenizer
        tokenizer.no_padding()
        tokenizer.enable_truncation(limit)

    @property
    def size(self) -> int:
        return self._tokenizer.get_vocab_size()

    @property
    def vocabulary(self) -> frozenset[str]:
        return whole_words(self._tokenizer)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]

    def strings(self, ids: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[str(self._tokenizer.id_to_token(number)) for number in row] for row in ids]

    def dump(self) -> str:
        return self._tokenizer.to_str()


def read_tokens(path: Path, text: Mapping[str, Any]) -> Tokens:
    """Restore the tokenizer from a file of ``dump``, for the tower ``text`` (see
    ``text_towers.build``)."""
    with open_whole(path) as file:
        dumped = file.read().decode()
    tokens = parse_json(dumped)
    if tokens.get("kind") == "words":
        if not is_words(tokens["words"]):
            raise ValueError(f"{path} holds no vocabulary")
        return Vocabulary(tokens["words"], int(tokens["limit"]))
    # The library's own error has no class.
    if not {"model", "pre_tokenizer", "normalizer"} <= set(tokens):
        raise ValueError(f"{path} holds no tokenizer")
    return WordPieces(Tokenizer.from_str(dumped), text.get("max_position_embeddings", LIMIT))


def whole_words(tokenizer: Tokenizer) -> frozenset[str]:
    """Return the words that are one token of a tokenizer, in lower case, without its marks of word
    ends or starts."""
    tokens = tokenizer.get_vocab()
    mark = ""
    # The first mark stands at the end of a word, the other marks stand at the beginning.
    for known in ("</w>", "\u2581", "\u0120"):
        if sum(known in token for token in tokens) > len(tokens) / 20:
            mark = known
            break
    words = (token.replace(mark, "").lower() for token in tokens if mark in token)
    return frozenset(word for word in words if word.isalpha())


def is_words(value: Any) -> bool:
    """Return whether ``value`` is a list of strings."""
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


@cache
def _treebank() -> Any:
    # Importing a part of nltk imports all of nltk, which takes seconds, so the first text triggers
    # the import.
    with needing("a tower that reads whole words", "words", EncoderError):
        from nltk.tokenize.destructive import NLTKWordTokenizer
    return NLTKWordTokenizer()
