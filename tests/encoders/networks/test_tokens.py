"""Whole words as tokens."""

import csv
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from boc.errors import EncoderError
from encoders.networks.tokens import SPECIALS, Vocabulary, read_tokens, tokenize
from encoders.runtime.model_config import reading_damaged

pytest.importorskip("nltk")

TEXT = {"kind": "embedding"}
CAPTIONS = ["A dog runs.", "the Dog, it runs!", "a cat's dog", "A dog. A cat.", "runs and runs"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", []),
        ("A man's dog, isn't it?", ["a", "man", "'s", "dog", ",", "is", "n't", "it", "?"]),
        (
            'He says "I cannot." Twice.',
            ["he", "says", "``", "i", "can", "not", ".", "''", "twice", "."],
        ),
        ("A dog runs. A cat sits. ", ["a", "dog", "runs", ".", "a", "cat", "sits", "."]),
        (
            "At 5 p.m. mr. Smith of the U.S. team eats.",
            ["at", "5", "p.m.", "mr.", "smith", "of", "the", "u.s.", "team", "eats", "."],
        ),
        (
            "Two-legged (red) 3.5 m high...",
            ["two-legged", "(", "red", ")", "3.5", "m", "high", "..."],
        ),
    ],
)
def test_tokens_are_those_of_the_treebank(
    text: str,
    tokens: list[str],
):
    assert tokenize(text) == tokens


@pytest.mark.slow
def test_tokens_of_real_captions_lose_no_letter(photos: Path):
    with (photos / "captions.csv").open(encoding="utf-8", newline="") as lines:
        captions = [row["caption"] for row in csv.DictReader(lines)][::20]
    plain = [caption for caption in captions if not set(caption) & set("\"`'")]
    assert len(plain) > 1000
    for caption in plain:
        assert "".join(tokenize(caption)) == "".join(caption.lower().split())
    words = Vocabulary.learn(captions)
    known = sum(id != 3 for row in words.ids(captions) for id in row)
    assert 500 < words.size < 2000
    assert known > 0.9 * sum(map(len, words.ids(captions)))


def test_frequent_words_are_learned_in_one_order():
    words = Vocabulary.learn(CAPTIONS, min_count=2)
    assert words.words == [
        *SPECIALS,
        "a",
        "dog",
        "runs",
        ".",
        "cat",
    ]
    for seed in range(5):
        assert Vocabulary.learn(random.Random(seed).sample(CAPTIONS, 5), 2).words == words.words


@pytest.mark.slow
@given(st.lists(st.text(alphabet="ab c.'\n", max_size=20), max_size=8), st.integers(1, 4))
def test_every_word_counted_often_enough_has_an_id(
    captions: list[str],
    min_count: int,
):
    counts = Counter(token for caption in captions for token in tokenize(caption))
    words = Vocabulary.learn(captions, min_count)
    assert set(words.words) == {
        *SPECIALS,
        *(token for token in counts if counts[token] >= min_count),
    }
    for caption, ids, strings in zip(
        captions,
        words.ids(captions),
        words.strings(words.ids(captions)),
        strict=True,
    ):
        tokens = tokenize(caption)
        assert (ids[0], ids[-1]) == (1, 2)
        assert len(ids) == len(strings) == len(tokens) + 2
        assert strings[1:-1] == [t if counts[t] >= min_count else "<unk>" for t in tokens]
        assert [words.words[id] for id in ids] == strings


def test_long_texts_are_cut_and_end(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text(Vocabulary([*SPECIALS, "a"], limit=4).dump())
    words = read_tokens(tmp_path / "tokenizer.json", TEXT)
    assert words.ids(["a a", "a a a a", ""]) == [[1, 4, 4, 2], [1, 4, 4, 2], [1, 2]]


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["a"],
        [*SPECIALS[::-1]],
        [
            *SPECIALS,
            "dog",
            "cat",
            "dog",
        ],
    ],
)
def test_wrong_words_are_refused(wrong: list[str]):
    words = "'dog' occurs twice" if "dog" in wrong else "must begin with <pad> <start>"
    with pytest.raises(EncoderError, match=words):
        Vocabulary(wrong)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"kind": "words"}', '{"kind": "words", "words": [1], "limit": 9}'],
)
def test_damaged_vocabularies_are_refused(
    tmp_path: Path,
    text: str,
):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(EncoderError, match="damaged model"), reading_damaged(tmp_path):
        read_tokens(tmp_path / "tokenizer.json", TEXT)
