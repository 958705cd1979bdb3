"""What is said of a sentence: words that the encoder hardly knows, what it denies, and why there is
nothing."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from boc.errors import EncoderError
from boc.labels import content_words
from boc.remarks import COUNTS, knows_none, rare_words, read_counts, write_counts
from boc.search.queries import Query, read_negations
from boc.search.searcher import Searcher
from boc.types import Embeddings
from tests.helpers import run

SENTENCES = st.lists(
    st.sampled_from(("dog", "dogs", "the", "kite", "red", "snow-covered", "giraffe")),
    min_size=1,
    max_size=6,
).map(" ".join)


@given(
    captions=st.lists(SENTENCES, min_size=1, max_size=40),
    text=SENTENCES,
)
def test_a_word_of_ten_captions_is_never_called_rare(captions: list[str], text: str):
    counts = Counter(word for caption in captions for word in set(content_words(caption)))
    rare = rare_words(counts, text)
    for word in content_words(text):
        if counts[word] >= 10:
            assert word not in [each.word for each in rare]
    for word, number in rare:
        assert number < 10
        assert number >= counts[word]
    # An encoder that knows a form of one word knows something of the sentence.
    if len(rare) < len(set(content_words(text))):
        assert not knows_none(counts, (), text)
    assert rare_words({}, text) == []


def test_counts_are_of_captions_and_come_back(tmp_path: Path):
    write_counts(tmp_path, ["a dog and a dog", "the Dog's café"])
    spec = f"tern:{tmp_path}?x=1"
    assert read_counts(spec) == {"dog": 1, "dog's": 1, "café": 1}
    assert read_counts(f"clip:{tmp_path / 'none'}") == {}
    (tmp_path / COUNTS).write_text('{"dog": -3}')
    with pytest.raises(EncoderError, match=r"words\.json: cannot be read"):
        read_counts(spec)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("a dog", True),
        ("zebra Dog!", True),
        ("two DOGS", True),
        ("dog's", True),
        ("snow-covered", True),
        ("犬が走る", False),
        ("qwertz 😀", False),
    ],
)
def test_an_encoder_knows_a_word_of_its_captions_or_vocabulary(text: str, known: bool):
    assert knows_none({"dog": 3, "snow-covered": 3}, {"a"}, text) is not known
    assert not knows_none({}, (), text)


@pytest.mark.parametrize(
    ("sentence", "rest", "minus"),
    [
        ("a kite, no house", "a kite", ["house"]),
        ("a man without a red hat on a beach", "a man on a beach", ["red hat"]),
        ("two dogs and no people", "two dogs", ["people"]),
        ("a dog not on a leash", "a dog", ["leash"]),
        ("no parking", "no parking", []),
        ('a sign "no parking"', 'a sign "no parking"', []),
        ("a knot, nothing", "a knot, nothing", []),
    ],
)
def test_what_a_sentence_denies_is_unwanted(sentence: str, rest: str, minus: list[str]):
    assert read_negations(sentence) == (rest, minus)
    query = Query.of(sentence)
    assert [part.value for part in query.parts if part.weight < 0] == minus
    assert query.note.startswith("interpreted as: ") is bool(minus)
    assert query.parts == Query.of(rest, minus=minus).parts


def test_notes_are_the_same_in_python_and_on_the_command_line(library: Path):
    at = f"file:{library / 'index'}"
    searcher = Searcher.open("photos", at, device="cpu")
    hits = searcher.search("a red box, no giraffe", k=3)
    assert hits.notes == [
        "interpreted as: a red box -giraffe",
        "the encoder barely knows 'giraffe' (0 captions); showing the nearest items",
    ]
    together = searcher.search_texts(["a red box, no giraffe", "a red box"], k=3)
    for found, alone in zip(together, (hits, searcher.search("a red box", k=3)), strict=True):
        scores = {hit.id: hit.score for hit in alone}
        assert {hit.id: hit.score for hit in found} == pytest.approx(scores)
        assert found.notes == alone.notes
    assert searcher.search("a red box at the left").notes == []
    told = run(f'search photos "a red box, no giraffe" --at {at} -k 3')
    assert told.stderr.splitlines() == hits.notes
    answer = json.loads(run(f"search photos 猫 --at {at} --json").stdout)
    assert answer["hits"] == []
    (note,) = answer["notes"]
    assert note == "the encoder does not know any word of '猫'; searched names and labels instead"


def test_words_of_documents_of_others_are_not_searched(
    searcher: Searcher,
    monkeypatch,
):
    monkeypatch.setattr(searcher.index, "searches_words", False)
    monkeypatch.setattr(searcher.index, "match", None)
    hits = searcher.search("猫")
    assert (hits, hits.notes) == (
        [],
        ["the encoder does not know any word of '猫'; there are no matches"],
    )


def test_scores_that_are_all_zero_are_no_hits(searcher: Searcher):
    nothing = Embeddings("text", 0 * searcher.embeddings("003.png").vectors)
    [hits] = searcher.search_vectors(nothing, k=3)
    assert (hits, hits.notes) == (
        [],
        ["all scores are 0: no item in the index is similar to the query"],
    )
