"""Tokenize texts into BERT word-pieces, or into whole words with a learned or published vocabulary
(VSRN, section 3.2)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from tokenizers import Tokenizer

from boc.atomic_files import open_whole
from boc.errors import EncoderError, needing
from boc.foreign import parse_json
from boc.labels import ranked

SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
# Maximum number of ids per text if the network has no limit.
LIMIT = 512

# This pattern replaces the Punkt model of NLTK's word_tokenize, which must be downloaded. A
# sentence ends at . ! or ? before a space, except after a single letter ("a.m.", an initial) or a
# common abbreviation.
_SENTENCE_END = re.compile(
    r"(?<=[.!?])(?<!\b\w\.)(?<!\b(?:mr|ms|dr|st|jr|sr|vs)\.)(?<!\b(?:mrs|etc)\.)\s+",
)


def tokenize(text: str) -> list[str]:
    """Return the Treebank tokens of a text in lower case. The tokens match NLTK's
    ``word_tokenize``, except at unusual sentence ends.

    Raises EncoderError if NLTK is not installed.
    """
    treebank = _treebank()
    return [
        token
        for sentence in _SENTENCE_END.split(text.lower())
        for token in treebank.tokenize(sentence)
    ]


class Vocabulary:
    """Vocabulary of whole words, in which ``words[i]`` is the word with id i. The first four words
    are <pad>, <start>, <end> and <unk>.

    Raises EncoderError for a vocabulary that begins differently or repeats a word.
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
                raise EncoderError(
                    f"{word!r} occurs twice in the vocabulary; each word needs one id",
                )

    @classmethod
    def learn(
        cls,
        captions: Iterable[str],
        min_count: int = 4,
    ) -> Vocabulary:
        """Learn the words that occur at least ``min_count`` times in captions, most frequent first,
        with ties in alphabetical order."""
        counts = Counter(token for caption in captions for token in tokenize(caption))
        frequent = (word for word in ranked(counts) if counts[word] >= min_count)
        return cls([*SPECIALS, *frequent])

    @property
    def size(self) -> int:
        """Return the number of different ids."""
        return len(self.words)

    @property
    def vocabulary(self) -> frozenset[str]:
        """Return the words that have their own id."""
        return frozenset(self.words[len(SPECIALS) :])

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of <start>, the words and <end> for each text, with at most ``limit``
        ids."""
        start, end, unknown = range(1, 4)
        rows = []
        for text in texts:
            tokens = tokenize(text)[: self.limit - 2]
            rows.append([start, *(self._ids.get(token, unknown) for token in tokens), end])
        return rows

    def strings(self, ids: Sequence[Sequence[int]]) -> list[list[str]]:
        """Return the word for each id; unknown words are <unk>."""
        return [[self.words[number] for number in row] for row in ids]

    def dump(self) -> str:
        """Return JSON for ``read_tokens``."""
        content = {"kind": "words", "words": self.words, "limit": self.limit}
        return json.dumps(content, ensure_ascii=False)


class WordPieces:
    """BERT word-pieces: [CLS] + pieces + [SEP], at most ``limit`` ids."""

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


Tokens: TypeAlias = Vocabulary | WordPieces
"""Tokenizer. Special ids come first and last, and 0 is padding."""


def read_tokens(path: Path, text: Mapping[str, Any]) -> Tokens:
    """Restore a tokenizer from a file written by ``dump``, for the tower ``text`` (see
    ``text_towers.build``)."""
    with open_whole(path) as file:
        dumped = file.read().decode()
    tokens = parse_json(dumped)
    if tokens.get("kind") == "words":
        if not is_words(tokens["words"]):
            raise ValueError(f"{path} contains no vocabulary")
        return Vocabulary(tokens["words"], int(tokens["limit"]))
    # Check the entries first, because the library raises only plain Exception.
    if not {"model", "pre_tokenizer", "normalizer"} <= set(tokens):
        raise ValueError(f"{path} contains no tokenizer")
    return WordPieces(Tokenizer.from_str(dumped), text.get("max_position_embeddings", LIMIT))


def whole_words(tokenizer: Tokenizer) -> frozenset[str]:
    """Return the words that are single tokens, in lower case and without the tokenizer's marks for
    word starts and ends."""
    tokens = tokenizer.get_vocab()
    mark = ""
    # The first mark ends a word; the other marks begin a word.
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
    # NLTK takes several seconds to import, so the import is delayed until the first text.
    with needing("a tower that reads whole words", "words", EncoderError):
        from nltk.tokenize.destructive import NLTKWordTokenizer
    return NLTKWordTokenizer()
