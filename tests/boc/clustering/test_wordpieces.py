"""Word-pieces to words, and which words count."""

from __future__ import annotations

import sys

import pytest
from boc.clustering.wordpieces import carries_content, english_words, join_pieces, stop_words
from hypothesis import given
from hypothesis import strategies as st

from boc.errors import BocError

WORDS = st.lists(st.lists(st.text("abcXYZ", min_size=1, max_size=3), min_size=1, max_size=4), max_size=6)


@given(words=WORDS)
def test_pieces_of_a_word_all_get_the_whole_word(words: list[list[str]]) -> None:
    pieces = [piece if i == 0 else f"##{piece}" for word in words for i, piece in enumerate(word)]
    assert join_pieces(pieces) == ["".join(word).lower() for word in words for _ in word]


def test_pieces_that_go_on_nothing_are_words_of_their_own() -> None:
    assert join_pieces(["##s", "##", "#", "[UNK]", "##ed"]) == ["##s", "##", "#", "[unk]ed", "[unk]ed"]
    assert join_pieces([]) == []


def test_a_stop_word_counts_only_as_a_whole() -> None:
    assert {"a", "the", "is", "with"} <= stop_words()
    assert carries_content(["The", "dog", "is", "in", "##side", "a", "##corn"]) == [False, True, False, *[True] * 4]
    assert carries_content([]) == []


def test_english_words_are_known_in_all_their_forms() -> None:
    pytest.importorskip("spellchecker")
    given_words = ["dogs", "jumps", "colored", "snowboarder", "xqzv", "teh", "a", "[cls]", "", "1234"]
    assert english_words(given_words) == {"dogs", "jumps", "colored", "snowboarder"}


def test_without_the_word_list_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spellchecker", None)
    with pytest.raises(BocError, match=r"pip install 'boc\[codebook\]'"):
        english_words(["dog"])
