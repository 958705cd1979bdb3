"""Words out of word-pieces, stop-words, and the words of the English dictionary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from boc.errors import BocError


@cache
def stop_words() -> frozenset[str]:
    """English stop-words, in lower case: scikit-learn's list of 318.

    The paper (BoC, section IV) names no list. This one also holds some words that pictures do show, such as "fire",
    "front" and "two".
    """
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return frozenset(ENGLISH_STOP_WORDS)


def english_words(words: Iterable[str]) -> set[str]:
    """Those of ``words`` (lower case) that an English dictionary has, inflected forms included; single letters are
    none.

    BocError without the package pyspellchecker, whose list of 160,000 words decides.
    """
    try:
        from spellchecker import SpellChecker
    except ModuleNotFoundError as error:
        raise BocError("an English word list is needed; install it with: pip install 'boc[codebook]'") from error
    known: set[str] = SpellChecker(language="en").known(word for word in words if len(word) > 1)
    return known


def join_pieces(pieces: Sequence[str]) -> list[str]:
    """The whole word, in lower case, that each word-piece is part of: a piece "##..." goes on the one before it.

    >>> join_pieces(["a", "snow", "##board", "##er", "jumps"])
    ['a', 'snowboarder', 'snowboarder', 'snowboarder', 'jumps']
    """
    words: list[str] = []
    lengths: list[int] = []
    for piece in pieces:
        if continues(piece) and words:
            words[-1] += piece[2:].lower()
            lengths[-1] += 1
        else:
            words.append(piece.lower())
            lengths.append(1)
    return [word for word, length in zip(words, lengths, strict=True) for _ in range(length)]


def continues(piece: str) -> bool:
    """Whether a word-piece goes on the word of the one before it."""
    return piece.startswith("##") and len(piece) > 2


def carries_content(pieces: Sequence[str]) -> list[bool]:
    """For each word-piece of a sentence whether its word is no stop-word."""
    stops = stop_words()
    return [word not in stops for word in join_pieces(pieces)]
