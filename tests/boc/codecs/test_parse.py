"""Codes as values: what is written is what is read, and what is refused says why."""

import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import boc.codecs
from boc.clustering.codebook import Codebook
from boc.codecs import (
    ARGUMENTS,
    CODES,
    Code,
    Dictionary,
    RandomRotation,
    SoftAssignment,
    SurrogateCodec,
    code_of,
    parse_code,
)
from boc.codecs.dictionary import MOST_PER_DOCUMENT, MOST_TERMS
from boc.codecs.parse import OneOf, Rule, Whole
from boc.errors import BocError
from boc.names import CONCEPT_CODES, GLOBAL_CODES, LEARNED_CODES, WORD_CODES
from boc.types import Embeddings, Identity

BOOK = Codebook(
    np.eye(
        5,
        8,
        dtype=np.float32,
    ),
    Identity(
        "t:x",
        "0" * 64,
        8,
    ),
    (),
    {},
    9,
)
TEXTS = st.text(
    st.characters(exclude_categories=["Cs"]),
    min_size=1,
    max_size=12,
)


def values(rule: Rule) -> st.SearchStrategy[Any]:
    """All that an argument may be, numbers up to a million."""
    if isinstance(rule, Whole):
        return st.integers(rule.least, rule.most or 10**6)
    return st.sampled_from([*rule.values.values()]) if isinstance(rule, OneOf) else TEXTS


@st.composite
def codes(draw: st.DrawFn) -> Code:
    """Every code with any of its arguments."""
    name = draw(st.sampled_from(sorted(CODES)))
    rules = CODES[name].rules
    chosen = {
        argument: draw(values(rules[argument]))
        for argument in draw(st.sets(st.sampled_from(sorted(rules))))
    }
    return Code(name, **chosen)


@given(code=codes())
def test_text_round_trip(code: Code):
    assert parse_code(str(code)) == code
    assert parse_code(repr(code)) == code
    assert hash(parse_code(str(code))) == hash(code)
    assert parse_code(f" {code} ") == code


@given(text=st.one_of(TEXTS, st.text(st.sampled_from("softbi:/(),= '\"z8"), max_size=20)))
def test_any_text_parses_or_names_next_step(text: str):
    try:
        code = parse_code(text)
    except BocError as error:
        message = str(error)
    else:
        message = "write NAME" if parse_code(str(code)) == code else "it is read as another code"
    assert any(step in message for step in ("boc.codecs.CODES", "write NAME"))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            "dictionary:2/64",
            Code(
                "dictionary",
                z=2,
                query_z=64,
            ),
        ),
        ("dictionary/64", Code("dictionary", query_z=64)),
        (
            "bits:32(bits=2)",
            Code(
                "bits",
                z=32,
                bits=2,
            ),
        ),
        ("scalar(plain=false)", Code("scalar")),
        ("hard(codebook='my book, (2).npz')", Code("hard", codebook="my book, (2).npz")),
        ('hard(codebook="it\'s ""mine"".npz")', Code("hard", codebook='it\'s "mine".npz')),
        (r"hard(codebook=C:\books\b.npz)", Code("hard", codebook=r"C:\books\b.npz")),
        (
            "  dictionary ( terms = 9 , z=1 )  ",
            Code(
                "dictionary",
                z=1,
                terms=9,
            ),
        ),
        ("permutation()", Code("permutation")),
    ],
)
def test_parse_forms(text: str, code: Code):
    assert parse_code(text) == code


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (
            Code(
                "dictionary",
                z=2,
                query_z=64,
            ),
            "dictionary:2/64",
        ),
        (Code("bits", bits=4), "bits"),
        (
            Code(
                "dictionary",
                z=2,
                terms=16,
            ),
            "dictionary(z=2, terms=16)",
        ),
        (Code("scalar", plain=True), "scalar(plain=true)"),
        (Code("hard", codebook="a b"), "hard(codebook='a b')"),
    ],
)
def test_str_is_shortest_form(code: Code, text: str):
    assert str(code) == repr(code) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "dictionry",
            [
                "'dictionry'",
                "did you mean dictionary?",
                "known: scalar, bits",
                "boc.codecs.CODES lists",
            ],
        ),
        (
            "soft(agregate=max)",
            ["'agregate'", "did you mean aggregate?", "soft accepts z, query_z"],
        ),
        ("dictionary(bits=3)", ["'bits'", "only for bits", "dictionary accepts z"]),
        ("Scalar", ["'Scalar'", "did you mean scalar?"]),
        ("scalar:0", ["z must be a whole number of at least 1, got 0"]),
        ("dictionary:17", ["z must be a whole number from 1 to 16, got 17"]),
        ("scalar:9999999999999999999", ["z must be a whole number", "9999999999999999999"]),
        ("bits(bits=16)", ["bits must be a whole number from 1 to 15, got 16"]),
        ("scalar(plain=yes)", ["plain must be true or false, got 'yes'"]),
        ("soft(aggregate=mean)", ["aggregate must be sum or max, got 'mean'"]),
        ("hard(codebook='')", ["codebook must be the path of a file, got ''"]),
        ("", ["has invalid syntax", "write NAME:Z/QUERY_Z", "dictionary:2/64"]),
        *[
            (text, [repr(text), "has invalid syntax"])
            for text in (
                "bits:32:4",
                "soft(z=8",
                "soft(z=8 aggregate=max)",
                "soft(z)",
                "soft(z=)",
                "soft(codebook='x)",
                "soft(z=8)(z=9)",
                "soft(z=8,)",
                "soft(,)",
            )
        ],
        ("soft:8(z=9)", ["z occurs twice"]),
    ],
)
def test_parse_errors(text: str, words: list[str]):
    with pytest.raises(BocError) as caught:
        parse_code(text)
    for word in words:
        assert word in str(caught.value)


def test_code_checks_values():
    for arguments in ({"z": True}, {"z": 0}, {"plain": 1}):
        with pytest.raises(BocError, match=r"code scalar: .* must be"):
            Code("scalar", **arguments)
    with pytest.raises(BocError, match="unknown argument 'codebook'"):
        replace(Code("hard", codebook="b"), name="scalar")


def test_arguments_are_fields():
    taken = {argument for kind in CODES.values() for argument in kind.rules}
    assert taken == set(ARGUMENTS) == {field.name for field in fields(Code)} - {"name"}


def test_reference_page_lists_arguments():
    page = Path(__file__).resolve().parents[3] / "docs" / "reference" / "codes.md"
    text = page.read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `(\w+)` \| ([a-z, ]+) \|",
        text,
        re.MULTILINE,
    )
    listed = {
        (argument, code)
        for argument, of in rows
        for code in of.split(", ")
        if argument in ARGUMENTS and code in CODES
    }
    assert listed == {(argument, code) for code, kind in CODES.items() for argument in kind.rules}
    for line in re.findall(
        r'^boc index photos photos.h5 --code "?([^"#\n]+)',
        text,
        re.MULTILINE,
    ):
        parse_code(line)


def test_limits_match_steps():
    assert set(CODES) == {
        *GLOBAL_CODES,
        *WORD_CODES,
        *LEARNED_CODES,
        *CONCEPT_CODES,
    }
    assert {name for name in CODES if Code(name).reads_concepts} == {*LEARNED_CODES, *CONCEPT_CODES}
    dictionary = CODES["dictionary"].rules
    soft = CODES["soft"].rules
    assert dictionary["z"] == Whole(1, MOST_PER_DOCUMENT)
    assert dictionary["terms"] == CODES["late"].rules["terms"] == Whole(1, MOST_TERMS)
    for argument, words in SoftAssignment.choices.items():
        rule = soft[argument]
        assert isinstance(rule, OneOf)
        assert set(rule.values) <= set(words)
    sample = Embeddings("image", np.random.default_rng(0).standard_normal((20, 8), np.float32))
    for bits in (1, 15):
        Code("bits", bits=bits).codec(8).fit(sample)


@given(code=codes())
def test_code_of_codec(code: Code):
    config = code.codec(10**6, BOOK).config()
    stored = code_of(config)
    assert stored is not None
    assert stored.codec(10**6, BOOK).config() == config
    for argument, value in code.arguments.items():
        if argument != "codebook":
            assert getattr(stored, argument) == value
    assert stored.codebook is None


def test_code_of_other_steps():
    assert code_of(SurrogateCodec([Dictionary(bits=3)]).config()) is None
    assert code_of(SurrogateCodec([SoftAssignment(4, z=3)]).config()) is None
    assert (
        code_of(
            SurrogateCodec([RandomRotation(seed=1), *Code("scalar").codec(8).steps[2:]]).config(),
        )
        is None
    )
    assert code_of({"steps": []}) is None
    soft = SurrogateCodec([SoftAssignment(4, z=3)]).config()
    for odd in (-1, 0, 1e300, 10**30, "4", None, [1]):
        (step,) = soft["steps"]
        assert code_of({"steps": [{**step, "params": {**step["params"], "clusters": odd}}]}) is None


def test_code_of_older_configuration():
    """Parameters that were added since, and one that went."""
    code = Code(
        "permutation",
        z=4,
        query_z=4,
    )
    config = code.codec(8).config()
    config["steps"][-1]["params"] = {}
    assert code_of(config) == code
    soft = Code(
        "soft",
        z=4,
        query_z=4,
    )
    config = soft.codec(8, BOOK).config()
    config["steps"][0]["params"]["sigma"] = None
    assert code_of(config) == soft


def test_default_budgets():
    assert code_of(Code("scalar").codec(8).config()) == Code(
        "scalar",
        z=16,
        query_z=16,
    )
    assert code_of(Code("bits").codec(384).config()) == Code(
        "bits",
        z=64,
        query_z=128,
    )
    assert code_of(Code("bits", z=200).codec(384).config()) == Code(
        "bits",
        z=200,
        query_z=200,
    )
    with pytest.raises(BocError, match=r"z must be between 1 and 16 \(2 x 8 components\), got 17"):
        Code("scalar", z=17).codec(8)


def test_parse_without_numpy():
    script = (
        "import sys; from boc.codecs import parse_code; parse_code('bits:3'); print('numpy' "
        "in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"
    for name in boc.codecs.__all__:
        assert getattr(boc.codecs, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Magic'"):
        _ = boc.codecs.Magic  # type: ignore[attr-defined]


@pytest.fixture
def books(tmp_path: Path) -> dict[str, Path]:
    """A codebook file of each kind."""
    made = {
        "concepts": BOOK,
        "words": replace(BOOK, origin=np.zeros(8, np.float32)),
        "learned": replace(BOOK, thresholds=np.zeros((2, 2, 5), np.float32)),
    }
    for kind, book in made.items():
        book.save(tmp_path / f"{kind} book.npz")
    return {kind: tmp_path / f"{kind} book.npz" for kind in made}


@pytest.mark.parametrize("name", [name for name, kind in CODES.items() if "codebook" in kind.rules])
def test_load_codebook_of_own_kind_only(books: dict[str, Path], name: str):
    own = {"words": "words", "learned": "learned"}.get(name, "concepts")
    option = "" if own == "concepts" else f" --kind {own}"
    with pytest.raises(
        BocError,
        match=f"needs a codebook; build one with boc build-codebook FEATURES -o FILE{option} ",
    ):
        Code(name).codec(8)
    for kind, path in books.items():
        code = parse_code(f"{name}(codebook='{path}')")
        if kind == own:
            book = Codebook.load(path)
            assert code.codec(8).config() == code.codec(8, book).config()
            continue
        contents = {"words": "the vectors of words", "learned": "learned terms"}.get(
            kind,
            "concepts",
        )
        with pytest.raises(
            BocError,
            match=f"the codebook contains {contents}; build one with boc build-.*FILE{option}$",
        ):
            code.load_codebook()
    with pytest.raises(BocError, match="file does not exist"):
        Code(name, codebook="none.npz").load_codebook()
