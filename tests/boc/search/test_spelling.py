"""Words that neither an index nor its encoder has, and those that may be meant."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from boc.search.searcher import Searcher
from boc.search.spelling import Spelling
from boc.types import Identity, Item
from tests.helpers import boc, run

pytest.importorskip("tokenizers", reason="encoders need the extra search")

VOCABULARY = ("dog", "dogs", "horse", "kite", "submarine", "snow", "cafe", "blue", "sailing")


def spelling(*sentences: str, vocabulary: Any = VOCABULARY) -> Spelling:
    items = [Item(f"{i}", "text", content) for i, content in enumerate(sentences)]
    encoder = (
        SimpleNamespace()
        if vocabulary is None
        else SimpleNamespace(vocabulary=frozenset(vocabulary))
    )
    index = SimpleNamespace(
        items=lambda: iter(items),
        manifest=SimpleNamespace(
            items={"text": len(items)},
            identity=Identity("tern:model", "digest", 1),
        ),
    )
    return Spelling(SimpleNamespace(encoder=encoder, index=index))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("a dog in the Snow -kite", []),
        (
            "dogs don't sail, a dog's t-shirt",
            [("sail", None), ("shirt", None)],
        ),
        ("a submarien", [("submarien", "submarine")]),
        (
            "a dgo and a hrose",
            [("dgo", "dog"), ("hrose", "horse")],
        ),
        ("the café, the CAFE\u0301, the Straße", []),
        ("xylophon", [("xylophon", None)]),
        ("kites and horses, the cafes", []),
        ("犬が走る at 12h30 on route66 🐕", []),
        (
            "a bleu sky",
            [("bleu", "blue"), ("sky", None)],
        ),
        ("a kite year: trip:alps", [("alps", None)]),
        ("", []),
    ],
)
def test_unknown_words(text: str, unknown: list[tuple[str, str | None]]):
    assert (
        spelling(
            vocabulary=[*VOCABULARY, "the", "and", "strasse"],
        ).unknown(text)
        == unknown
    )


def test_words_of_the_index_are_known_and_suggested():
    known = spelling("A zeppelin over the hills", "two kits")
    assert known.unknown("zeppelin") == []
    assert known.unknown("a zepelin, a kitte") == [
        ("zepelin", "zeppelin"),
        ("kitte", "kite"),
    ]


def test_an_encoder_that_tells_no_words_knows_all():
    assert spelling(vocabulary=None).unknown("qwertz") == []
    assert spelling(vocabulary=()).unknown("qwertz") == []


@given(
    st.sampled_from([word for word in VOCABULARY if len(word) > 4]),
    st.data(),
)
def test_one_wrong_letter_is_put_right(word: str, data: st.DataObject):
    at = data.draw(st.integers(0, len(word) - 2))
    swapped = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    wrong = data.draw(
        st.sampled_from(
            [
                swapped,
                word[:at] + word[at + 1 :],
                f"{word[:at]}x{word[at:]}",
            ],
        ),
    )
    if wrong not in VOCABULARY:
        assert spelling().unknown(wrong) == [(wrong, word)]


def test_vocabularies_of_tokenizers():
    from tokenizers import Tokenizer, models

    from encoders.networks.tokens import SPECIALS, Vocabulary, WordPieces, whole_words

    def tokenizer(*tokens):
        return Tokenizer(
            models.WordLevel(
                {token: i for i, token in enumerate(tokens)},
                "[UNK]",
            ),
        )

    plain = ("[CLS]", "[UNK]", "dog", "##ing", "Kite", "t")
    assert (
        whole_words(tokenizer(*plain))
        == WordPieces(tokenizer(*plain), 9).vocabulary
        == {"dog", "kite", "t"}
    )
    assert whole_words(
        tokenizer(
            "<start>",
            "dog</w>",
            "do",
            "kite</w>",
            "!</w>",
        ),
    ) == {
        "dog",
        "kite",
    }
    assert whole_words(
        tokenizer(
            "<s>",
            "\u2581dog",
            "g",
            "\u2581kite",
            "\u2581",
        ),
    ) == {
        "dog",
        "kite",
    }
    assert Vocabulary([*SPECIALS, "dog", "'s"]).vocabulary == {"dog", "'s"}


def test_encoders_tell_their_words(library: Path):
    known = Spelling(
        Searcher.open(
            "photos",
            f"file:{library / 'index'}",
            device="cpu",
        ),
    )
    assert {"red", "box", "left"} <= set(known.words)
    assert known.unknown("a rde box at the left") == [("rde", "red")]


def test_the_command_line_names_them(library: Path):
    at = ("--at", f"file:{library / 'index'}", "-k", 1)
    told = boc('search photos "a rde zeppelin"', *at)
    assert told.exit_code == 0
    assert told.stdout.count("\n") == 1
    assert told.stderr.splitlines() == [
        "the encoder barely knows 'rde' (0 captions), 'zeppelin' (0 captions); showing the "
        "nearest items",
        "'rde' is not a word that this index or its encoder knows; did you mean red?",
    ]
    assert run('search photos "a red box"', *at).stderr == ""
    picture = str(library / "images" / "005.png")
    told = run("search photos", picture, *at).stderr
    assert (
        f"{picture} was interpreted as words; to search by the picture, use --image {picture}\n"
        in told
    )
    told = run('search photos "a box year:2021"', *at).stderr
    assert "year:2021 was interpreted as words; for a condition, use --filter FIELD=VALUE\n" in told
    told = run('search photos "a rde box" --hybrid words', *at).stderr
    assert "no word" not in told
