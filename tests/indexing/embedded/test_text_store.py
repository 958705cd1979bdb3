"""Words and metadata of segments: filters against the plain predicate, BM25 against a slow loop and
against FTS5."""

import math
import sqlite3
import unicodedata
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from boc.errors import BackendError, ManifestError
from boc.inputs.metadata import holds
from boc.paths import words_of
from boc.types import FieldType, Filter, Item
from indexing.embedded import text_store_writer
from indexing.embedded.bm25 import WordRanking, space_words, tokens
from indexing.embedded.text_store import TextStore
from indexing.embedded.text_store_writer import ItemWords, merge
from tests.oracles import picture, sentence

TYPES: dict[str, FieldType] = {
    "year": "integer",
    "tag": "keyword",
    "taken": "date",
    "sharpness": "float",
    "indoors": "boolean",
    "title": "text",
}
WHOLE = st.integers(-3, 3) | st.sampled_from(
    [s * 2**b + d for b in (53, 62) for s in (-1, 1) for d in (-1, 0, 1)],
)
WHOLE |= st.sampled_from([-(2**63), 2**63 - 1])
FLOATS = st.sampled_from(
    [
        0.0,
        -0.0,
        0.1,
        0.30000000000000004,
        5e-324,
        -5e-324,
        1e300,
        -1e300,
        2.0**53,
        2.0**63,
    ],
)
STRINGS = st.sampled_from(
    [
        "",
        "a",
        "A",
        "ab",
        "a'b",
        '"',
        "été",
        "e\u0301",
        "日本",
        "\uffff",
        "😀",
        "a\0",
        "a%",
        "--",
    ],
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "year": WHOLE,
    "tag": STRINGS | st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    "taken": st.dates().map(lambda day: f"{day.isoformat()}T00:00:00"),
    "sharpness": FLOATS | st.floats(allow_nan=False) | WHOLE,
    "indoors": st.booleans(),
}
HUGE = st.sampled_from(
    [s * v for s in (-1, 1) for v in (2**63, 2**64, int(1e300))],
)
ASKED = VALUES | {
    "year": WHOLE | HUGE,
    "tag": VALUES["tag"] | st.sampled_from(["\ud800", "a\udcff"]),
    "sharpness": VALUES["sharpness"] | HUGE | st.just(math.nan),
}
WORDS = [
    "a",
    "a",
    "dog",
    "dog's",
    "Dog",
    "cat",
    "3.5",
    "été",
    "犬",
    "NEAR",
    "AND",
    "x_y",
]
SPOKEN = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)


def write(path: Path, items: Sequence[Item], types: dict[str, FieldType]) -> bool:
    return merge(
        path,
        [ItemWords(items, types)],
        [np.arange(len(items))],
        len(items),
        types,
    )


def make(folder: Path, items: Sequence[Item], types: dict[str, FieldType] = TYPES) -> TextStore:
    path = folder / "words.sqlite"
    path.unlink(missing_ok=True)
    assert write(path, items, types)
    return TextStore(path, len(items))


def captions(texts: Sequence[str]) -> list[Item]:
    return [sentence(f"{i:04d}", text) for i, text in enumerate(texts)]


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Item], Filter]:
    """Items with values of one field, none, one or several each, and a condition on it, often on
    one of them."""
    name = draw(st.sampled_from(sorted(VALUES)))
    value = VALUES[name]
    rows = draw(st.lists(st.none() | value | st.lists(value, max_size=3), min_size=1, max_size=12))
    items = [
        replace(picture(str(i)), fields={} if row is None else {name: row})
        for i, row in enumerate(rows)
    ]
    there = [
        each
        for row in rows
        if row is not None
        for each in (row if isinstance(row, list) else [row])
    ]
    bound = draw(ASKED[name] | st.sampled_from(there) if there else ASKED[name])
    condition = Filter(name, draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">="])), bound)
    if condition.op in ("=", "!=") and draw(st.booleans()):
        condition = replace(condition, others=(replace(condition, value=draw(ASKED[name])),))
    return items, condition


@pytest.mark.slow
@given(table=tables())
def test_passing_rows_are_those_for_which_the_predicate_holds(
    tmp_path_factory,
    table: tuple[list[Item], Filter],
):
    items, condition = table
    folder = tmp_path_factory.getbasetemp()
    words = make(folder, [*items, sentence("last", "so that there is a file")])
    expected = [holds(condition, item.fields) for item in items]
    passing = words.passing(condition)
    assert passing.dtype == np.bool_
    assert passing.tolist() == [*expected, condition.op == "!="]


def slow_bm25(rows: Sequence[Sequence[str]], words: Sequence[str]) -> list[float]:
    """The formula, row by row."""
    lengths = [len(row) for row in rows if row]
    scores = [0.0] * len(rows)
    for word in words:
        n = sum(word in row for row in rows)
        for i, row in enumerate(rows):
            f = row.count(word)
            norm = 1.2 * (0.25 + 0.75 * len(row) * len(lengths) / sum(lengths)) if row else 0
            scores[i] += math.log(1 + (len(lengths) - n + 0.5) / (n + 0.5)) * (
                2.2 * f / (f + norm) if f else 0
            )
    return scores


@pytest.mark.slow
@given(
    texts=st.lists(SPOKEN, min_size=1, max_size=12),
    titles=st.lists(st.none() | SPOKEN | st.lists(SPOKEN, max_size=2), min_size=12, max_size=12),
    query=SPOKEN,
)
def test_scores_are_those_of_the_slow_loop(
    tmp_path_factory,
    texts: list[str],
    titles: list[Any],
    query: str,
):
    items = captions(texts)
    items = [
        replace(
            item,
            modality="image" if i % 3 == 2 else "text",
            fields={} if title is None else {"title": title},
        )
        for i, (item, title) in enumerate(zip(items, titles, strict=False))
    ]
    full = []
    for item in items:
        title = item.fields.get("title", [])
        parts = [item.content] if item.modality == "text" else []
        full.append(tokens(" ".join([*parts, *([title] if isinstance(title, str) else title)])))
    items.append(sentence("last", "z"))
    full.append(["z"])
    words = make(tmp_path_factory.getbasetemp(), items)
    expected = slow_bm25(full, tokens(query))
    assert words.lengths.tolist() == [len(row) for row in full]
    assert WordRanking([words], [None]).scores(query)[0] == pytest.approx(expected, rel=1e-12)
    rows, scores = WordRanking([words], [None]).match(query)[0]
    assert (rows.dtype, scores.dtype) == (np.int64, np.float64)
    assert rows.tolist() == [i for i, row in enumerate(full) if set(row) & set(tokens(query))]
    assert (scores > 0).all()


@pytest.mark.slow
@given(
    texts=st.lists(st.tuples(SPOKEN, st.integers(0, 3), st.booleans()), min_size=1, max_size=16),
    sentence=SPOKEN,
)
def test_scores_do_not_depend_on_segments_nor_on_dead_rows(
    tmp_path_factory,
    texts: list[tuple[str, int, bool]],
    sentence: str,
):
    base = tmp_path_factory.getbasetemp()
    alive = [text for text, _, lives in texts if lives]
    scores = (
        WordRanking([make(base, captions([*alive, "z"]))], [None]).scores(sentence)[0].tolist()[:-1]
    )
    expected = iter(scores)
    whole = [next(expected) if lives else 0.0 for _, _, lives in texts]
    segments = []
    live = []
    places = []
    for part in range(4):
        inside = [i for i, (_, where, _) in enumerate(texts) if where == part]
        segments.append(make(base, captions([*(texts[i][0] for i in inside), "z"])))
        live.append(np.array([*(texts[i][2] for i in inside), part == 0], np.uint8))
        places.append(inside)
    scores_by_segment = WordRanking(segments, live).scores(sentence)
    for inside, sums in zip(places, scores_by_segment, strict=True):
        assert sums.tolist()[:-1] == [whole[i] for i in inside]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" -- ?! \0\n\t \u2028 ", []),
        ("A Dog, a DOG.", ["a", "dog", "a", "dog"]),
        (
            "the dog's o'clock don\u2019t 'quoted' rock'n'roll'",
            [
                *("the", "dog", "s", "o", "clock", "don", "t", "quoted"),
                *("rock", "n", "roll"),
            ],
        ),
        (
            "1,000 at 3.5: 12:30 and 7, 8; U.S.A. e.g.",
            [
                *("1", "000", "at", "3", "5", "12", "30", "and", "7", "8"),
                *("u", "s", "a", "e", "g"),
            ],
        ),
        ("two-legged x_y mid\u00addle", ["two", "legged", "x", "y", "middle"]),
        ("ÉTÉ e\u0301te\u0301 straße Œuvre", ["ete", "ete", "strasse", "oeuvre"]),
        ("שָׁלוֹם \u2764\ufe0f", ["שָׁלוֹם"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        (
            "日本の犬 テレビ 개가",
            [
                "日",
                "本",
                "の",
                "犬",
                "テレビ",
                "개가",
            ],
        ),
        ("\ud800dog\udcff", ["dog"]),
        ("a\0b", ["a", "b"]),
    ],
)
def test_words_are_folded_runs_of_letters_and_digits(text: str, words: list[str]):
    assert tokens(text) == words


def test_letters_of_any_case_width_and_form_are_one():
    for code in range(0x110000):
        letter = chr(code)
        alphabet = unicodedata.name(letter, "").partition(" ")[0]
        # A small iota below a letter becomes a letter of its own in capitals.
        iota = "\u0345" in unicodedata.normalize("NFD", letter)
        if alphabet in ("LATIN", "GREEK", "CYRILLIC", "FULLWIDTH") and not iota:
            cases = [letter, letter.upper(), letter.lower(), letter.title(), letter.casefold()]
            forms = [
                unicodedata.normalize(form, case)
                for form in ("NFC", "NFD", "NFKC")
                for case in cases
            ]
            assert {tuple(tokens(form)) for form in forms} == {tuple(tokens(letter))}, letter


@given(st.text(max_size=20))
def test_a_name_has_the_words_of_its_file(stem: str):
    name = unicodedata.normalize("NFKC", stem)
    assert tokens(words_of(name)) == tokens(name)


@given(st.text(max_size=20))
def test_words_of_any_text_are_words_again(text: str):
    words = tokens(text)
    assert all(word and tokens(word) == [word] for word in words)
    assert tokens(" ".join(words)) == words


@st.composite
def divided_items(draw: st.DrawFn) -> tuple[list[Item], list[int]]:
    """Items with words and values, and of each the part that it is in, or -1 if it counts no
    longer."""
    # Of numbers that are equal, such as 0.0 and -0.0, either may be written.
    values = VALUES | {"sharpness": st.floats(0.5, 2, allow_nan=False), "title": SPOKEN}
    fields = st.fixed_dictionaries(
        {},
        optional={k: v | st.lists(v, max_size=3) for k, v in values.items()},
    )
    rows = draw(
        st.lists(
            st.tuples(
                SPOKEN,
                fields,
                st.booleans(),
                st.integers(-1, 3),
            ),
            max_size=16,
        ),
    )
    items = [
        replace(sentence(f"{i:02d}", text) if spoken else picture(f"{i:02d}"), fields=values)
        for i, (text, values, spoken, _) in enumerate(rows)
    ]
    return items, [part for *_, part in rows]


@pytest.mark.slow
@given(table=divided_items(), dead=st.integers(0, 3), occurrences=st.sampled_from([1, 4, 1 << 20]))
def test_files_that_are_merged_are_as_made_of_the_items(
    tmp_path_factory,
    table: tuple[list[Item], list[int]],
    dead: int,
    occurrences: int,
):
    items, owners = table
    base = tmp_path_factory.getbasetemp()
    alive = [i for i, owner in enumerate(owners) if owner >= 0]
    parts = []
    moved = []
    for part in range(4):
        rows = [
            i for i, owner in enumerate(owners) if owner == part or (owner < 0 and part == dead)
        ]
        (base / "part.sqlite").unlink(missing_ok=True)
        there = write(base / "part.sqlite", [items[i] for i in rows], TYPES)
        parts.append(TextStore(base / "part.sqlite", len(rows)) if there else None)
        moved.append(np.array([alive.index(i) if owners[i] >= 0 else -1 for i in rows], np.int64))
    for name in ("whole.sqlite", "merged.sqlite"):
        (base / name).unlink(missing_ok=True)
    there = write(base / "whole.sqlite", [items[i] for i in alive], TYPES)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(text_store_writer, "OCCURRENCES", occurrences)
        assert (
            merge(
                base / "merged.sqlite",
                parts,
                moved,
                len(alive),
                TYPES,
            )
            == there
        )
    assert (base / "merged.sqlite").exists() == there
    if there:
        assert (base / "merged.sqlite").read_bytes() == (base / "whole.sqlite").read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        "gaps = x'0102030405'",
        "gaps = x'010203'",
        "gaps = x''",
        "gaps = x'0107'",
        "frequencies = x'010203'",
        "documents = 0",
        "documents = -1",
        "documents = 3",
        "documents = 1 << 60",
    ],
)
def test_a_damaged_file_is_named_when_it_is_merged(tmp_path: Path, change: str):
    part = make(tmp_path, captions(["a dog", "a dog a cat", "cats"]), {})
    with sqlite3.connect(part.path) as file:
        file.execute(f"UPDATE words SET {change} WHERE word = 'a'")
    with pytest.raises(ManifestError, match=r"words\.sqlite: damaged"):
        merge(
            tmp_path / "merged.sqlite",
            [TextStore(part.path, 3)],
            [np.arange(3)],
            3,
            {},
        )


COLUMNS = {
    "words": ["documents", "gaps", "frequencies"],
    "lengths": ["words"],
    "fields": ["name", "rows"],
    "edges": ["field", "value", "stop"],
}


@pytest.mark.parametrize(
    "value",
    [
        "NULL",
        "'x'",
        "X'00'",
        "X'0102030405'",
        "-1",
        "0",
        "1 << 60",
        "1.5",
    ],
)
@pytest.mark.parametrize(
    "column",
    [f"{table} {name}" for table in COLUMNS for name in COLUMNS[table]],
)
def test_a_value_of_another_kind_is_refused_or_read(
    tmp_path: Path,
    column: str,
    value: str,
):
    items = [replace(item, fields={"year": i}) for i, item in enumerate(captions(["a b", "a a"]))]
    path = make(tmp_path, items).path
    table, name = column.split()
    with sqlite3.connect(path) as file:
        file.execute(f"UPDATE OR IGNORE {table} SET {name} = {value}")
    store = None
    for read in (
        lambda store: store.passing(Filter("year", ">", 0)),
        lambda store: store.occurrences("a"),
        lambda store: store.vocabulary(),
        lambda store: store.lists("a", "b"),
        lambda store: [store.values(field) for field in store.fields()],
        lambda store: store.lengths,
    ):
        with suppress(ManifestError):
            store = store or TextStore(path, 2)
            read(store)


@pytest.mark.parametrize("items", [[picture("a"), picture("b")], [sentence("a", "...")], []])
def test_without_words_and_values_there_is_no_file(tmp_path: Path, items: list[Item]):
    assert not write(tmp_path / "words.sqlite", items, TYPES)
    assert not list(tmp_path.iterdir())


def test_values_without_words_and_words_without_values(tmp_path: Path):
    words = make(tmp_path, [picture("a"), replace(picture("b"), fields={"indoors": True})])
    assert words.passing(Filter("indoors", "=", True)).tolist() == [False, True]
    assert words.passing(Filter("year", "!=", 3)).tolist() == [True, True]
    assert words.passing(Filter("unknown", "=", 3)).tolist() == [False, False]
    assert words.lengths.tolist() == [0, 0]
    assert WordRanking([words], [None]).match("a dog")[0][0].tolist() == []
    words = make(tmp_path, captions(["a dog"]), {})
    assert words.passing(Filter("year", "=", 3)).tolist() == [False]
    assert WordRanking([words], [np.zeros(1, np.uint8)]).match("dog")[0][0].tolist() == []


@pytest.mark.parametrize(
    "name",
    [
        "with space",
        "what?mode=rw",
        "a#b",
        "100%41",
        "größe",
        "a&b=c;d",
    ],
)
def test_folders_may_have_any_name_and_go_once_the_file_is_open(tmp_path: Path, name: str):
    folder = tmp_path / name
    folder.mkdir()
    items = [
        replace(item, fields={"year": i})
        for i, item in enumerate(captions(["a dog", "a cat"] * 5000))
    ]
    words = make(folder, items)
    words.path.unlink()
    folder.rmdir()
    assert words.passing(Filter("year", "<", 3)).sum() == 3
    assert len(WordRanking([words], [None]).match("cat")[0][0]) == 5000
    assert not list(tmp_path.iterdir())


def test_threads_share_a_file(tmp_path: Path):
    items = [
        replace(item, fields={"year": i})
        for i, item in enumerate(captions([f"a w{i % 50}" for i in range(2000)]))
    ]
    words = make(tmp_path, items)
    ranking = WordRanking([words], [None])

    def ask(i):
        return int(words.passing(Filter("year", "<", i)).sum()), ranking.match(f"w{i % 50}")[0][
            0
        ].tolist()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(400)))
    assert answers == [(i, list(range(i % 50, 2000, 50))) for i in range(400)]


def test_what_is_no_such_file_is_refused_by_its_name(tmp_path: Path):
    path = tmp_path / "words.sqlite"
    with pytest.raises(ManifestError, match=r"words\.sqlite: damaged"):
        TextStore(path, 1)
    assert not path.exists()
    path.write_bytes(b"something else" * 999)
    with pytest.raises(ManifestError, match=r"words\.sqlite: damaged"):
        TextStore(path, 1)
    make(
        tmp_path,
        [replace(item, fields={"year": 1}) for item in captions(["a dog", "a cat"] * 200)],
    )
    with pytest.raises(ManifestError, match="a row is beyond the last of 300"):
        read_all(path, 300)


def read_all(path: Path, n: int) -> None:
    words = TextStore(path, n)
    words.passing(Filter("year", ">=", 0))
    for i in range(n):
        words.occurrences(f"w{i}")
    WordRanking([words], [None]).match("a dog")


def test_what_cannot_be_written_is_told(tmp_path: Path):
    with pytest.raises(BackendError, match=r"words\.sqlite: cannot be written"):
        write(tmp_path / "none" / "words.sqlite", captions(["a dog"]), {})
    for value in (2**63, -(2**63) - 1):
        path = tmp_path / f"{value}.sqlite"
        with pytest.raises(BackendError, match="beyond 64 bits"):
            write(path, [replace(picture("a"), fields={"year": value})], TYPES)


@given(
    st.lists(
        st.text(alphabet="aA\u03a3\u00e9\u0301\u00ad\u72ac1.,' \n\r\u2028", max_size=12),
        min_size=1,
        max_size=6,
    ),
)
def test_words_of_many_texts_are_those_of_each(texts: list[str]):
    words = [line.split(" ") for line in space_words(texts).split("\n")]
    assert [list(filter(None, words)) for words in words] == [tokens(text) for text in texts]
    assert [list(filter(None, words)) for words in words] == [
        tokens(text.replace("\n", " ")) for text in texts
    ]


@pytest.mark.parametrize("said", ["unable to open database file", "disk I/O error"])
def test_what_the_system_refuses_is_not_called_damage(
    tmp_path: Path,
    monkeypatch,
    said: str,
):
    path = tmp_path / "words.sqlite"

    def refuse(*arguments, **options):
        raise sqlite3.OperationalError(said)

    monkeypatch.setattr(sqlite3, "connect", refuse)
    with pytest.raises(ManifestError, match="damaged"):
        TextStore(path, 1)
    path.touch()
    with pytest.raises(ManifestError, match="may open no more files") as error:
        TextStore(path, 1)
    assert "damaged" not in str(error.value)
