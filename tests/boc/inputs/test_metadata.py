"""Metadata tables and filters: read strictly, refused by name, and the predicate against a slow
one."""

import math
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from boc.errors import BocError, LeftOut, SourceError
from boc.inputs.metadata import Metadata, check_filter, holds, parse_filter, undeclared_field
from boc.types import FieldType, Filter, Item
from tests.oracles import picture, sentence

TYPES: dict[str, FieldType] = {
    "year": "integer",
    "tag": "keyword",
    "taken": "date",
    "sharpness": "float",
    "indoors": "boolean",
    "title": "text",
}
HEADER = "id,year:integer,tag,taken:date,sharpness:float,indoors: boolean ,title:text"


def read(folder: Path, text: str) -> Metadata:
    path = folder / "table.csv"
    path.write_bytes(text.encode("utf-8"))
    return Metadata.read(path)


def test_a_table_is_read_by_its_header(tmp_path: Path):
    lines = [
        "\ufeff" + HEADER,
        'a.png,2019,dog|two dogs,2021-05-01,0.5,true,"Ein Bild, groß"',
        "a.png#1,-3,,2021-05-01T23:30:15.9+02:00|2020-02-29 12:30Z,1e3|-2,FALSE|true,a | b",
        "",
        "猫.png, 7 ,,,,,",
        "bare,,,,,,",
    ]
    table = read(tmp_path, "\r\n".join(lines))
    assert table.types == TYPES
    assert table.rows == {
        "a.png": {
            "year": 2019,
            "tag": ["dog", "two dogs"],
            "taken": "2021-05-01T00:00:00",
            "sharpness": 0.5,
            "indoors": True,
            "title": "Ein Bild, groß",
        },
        "a.png#1": {
            "year": -3,
            "taken": ["2021-05-01T21:30:15", "2020-02-29T12:30:00"],
            "sharpness": [1000.0, -2.0],
            "indoors": [False, True],
            "title": ["a", "b"],
        },
        "猫.png": {"year": 7},
        "bare": {},
    }
    assert isinstance(
        table.rows["a.png"]["year"],
        int,
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["line 1", "must be id"]),
        (
            "key,year\na,1",
            ["line 1", "must be id", "key"],
        ),
        (
            "id\na",
            ["line 1", "no column except id"],
        ),
        (
            "id,Ye%ar\na,1",
            ["line 1", "'ye%ar'", "lower-case"],
        ),
        (
            "id,year:number\na,1",
            ["line 1", "'number'", "'year'", "integer"],
        ),
        (
            "id,year,year:integer\na,1,1",
            ["line 1", "'year'", "twice"],
        ),
        ("id,year\n", ["no rows"]),
        ("id,year\n,1", ["line 2", "id is empty"]),
        (
            "id,year\na",
            ["line 2", "1 cells for 2 columns"],
        ),
        (
            "id,year\na,1,2",
            ["line 2", "3 cells for 2 columns", "quotes"],
        ),
        (
            "id,year:integer\nb,2.5",
            ["line 2", "year", "'2.5'", "64-bit integer"],
        ),
        ("id,year:integer\na,9223372036854775808", ["64-bit"]),
        ("id,year:integer\na,1_000", ["64-bit integer"]),
        (
            "id,year:float\na,nan",
            ["'nan'", "finite"],
        ),
        (
            "id,year:float\na,1|x",
            ["'1|x'", "finite"],
        ),
        (
            "id,year:boolean\na,yes",
            ["'yes'", "true or false"],
        ),
        (
            "id,year:date\na,1.5.21",
            ["'1.5.21'", "century", "2021-05-01"],
        ),
        (
            "id,year:date\na,2021-02-29",
            ["2021-02-29", "ISO 8601"],
        ),
        ("id,year:date\na,0001-01-01T00:00+02:00", ["ISO 8601"]),
        (f"id,year\na,{'é' * 16384}", ["at most 32766 bytes"]),
        ('id,year\na,"1', ["not a CSV"]),
    ],
)
def test_bad_metadata_table(tmp_path: Path, text: str, words: list[str]):
    with pytest.raises(SourceError) as caught:
        read(tmp_path, text)
    for word in ["table.csv", *words]:
        assert word in str(caught.value)


def test_unreadable_table(tmp_path: Path):
    (tmp_path / "latin.csv").write_bytes("id,tag\na,é".encode("latin-1"))
    for name, words in {
        "latin.csv": "line 2: not UTF-8",
        "nothing.csv": "cannot be read",
        ".": "CSV",
    }.items():
        with pytest.raises(SourceError, match=words):
            Metadata.read(tmp_path / name)


def test_bad_lines_cost_themselves(tmp_path: Path):
    path = tmp_path / "table.csv"
    path.write_bytes(b'id,year:integer\na,1\nb,x\nc\nd,4\n"e,5\nf,6\na,7\ng,\xe9\nh,8\n')
    with pytest.warns(LeftOut) as told:
        rows = Metadata.read(path).rows
    assert rows == {
        "a": {"year": 1},
        "b": {},
        "c": {},
        "d": {"year": 4},
        "f": {"year": 6},
        "g": {},
        "h": {"year": 8},
    }
    assert isinstance(told[0].message, LeftOut)
    assert [reason.split(":")[0] for reason in told[0].message.reasons] == [
        f"line {n}" for n in (3, 4, 6, 8, 9)
    ]


@given(
    st.datetimes(
        datetime(1, 1, 3),
        datetime(9999, 12, 29),
    ).map(
        lambda moment: moment.replace(microsecond=0),
    ),
    st.integers(-23 * 60, 23 * 60),
)
def test_dates_in_utc(moment: datetime, minutes: int):
    local = moment.replace(tzinfo=timezone.utc).astimezone(timezone(timedelta(minutes=minutes)))
    value = parse_filter(
        f"taken={local.isoformat()}",
        TYPES,
    ).value
    assert value == moment.isoformat()
    assert isinstance(value, str)
    assert len(value) == 19
    later = parse_filter(
        f"taken={(local + timedelta(seconds=1)).isoformat()}",
        TYPES,
    ).value
    assert holds(
        Filter("taken", "<", later),
        {"taken": value},
    )


@given(
    moment=st.datetimes(datetime(1, 1, 1)).map(lambda moment: moment.replace(microsecond=0)),
    of=st.datetimes(datetime(1, 1, 1)),
    near=st.booleans(),
    length=st.sampled_from([4, 7, 10]),
    op=st.sampled_from(["=", "!=", "<", "<=", ">", ">="]),
)
def test_periods_in_filters(
    moment: datetime,
    of: datetime,
    near: bool,
    length: int,
    op: str,
):
    """Comparing with a period is comparing with the begin of a date."""
    value = moment.isoformat()
    period = (moment if near else of).isoformat()[:length]
    mine = value[:length]
    expected = {
        "=": mine == period,
        "!=": mine != period,
        "<": mine < period,
        "<=": mine <= period,
        ">": mine > period,
        ">=": mine >= period,
    }[op]
    assert (
        holds(
            parse_filter(f"taken{op}{period}", TYPES),
            {"taken": value},
        )
        == expected
    )


def test_metadata_of_captions(tmp_path: Path):
    table = read(tmp_path, "id,year:integer,tag\na,1,x\na#1,2,\n")
    assert table.of(picture("a")) == {"year": 1, "tag": "x"}
    assert table.of(sentence("a#0", group="a")) == {"year": 1, "tag": "x"}
    assert table.of(sentence("a#1", group="a")) == {"year": 2}
    assert table.of(sentence("b", group="b")) == table.of(Item("c", "text", "")) == {}
    assert table.strangers([sentence("x", group="a")]) == ["a#1"]
    assert table.strangers([]) == ["a", "a#1"]


def test_metadata_digest(tmp_path: Path):
    texts = [
        "id,y:integer\na,1\nb,2",
        "id,y:integer\nb,2\na,1",
        "id,y\na,1\nb,2",
        "id,y:integer\na,1\nb,3",
        "id,y:integer\na,1",
    ]
    digests = [read(tmp_path, text).digest for text in texts]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "year": st.integers(-2, 2),
    "tag": st.sampled_from(["a", "b", "B", "ab"]),
    "sharpness": st.sampled_from([-1.5, 0.0, 0.1]),
    "indoors": st.booleans(),
}


def slow(condition: Filter, fields: dict[str, Any]) -> bool:
    """The predicate by cases."""
    if condition.field not in fields:
        return condition.op == "!="
    held = fields[condition.field]
    answers = []
    for value in held if isinstance(held, list) else [held]:
        order = (value > condition.value) - (value < condition.value)
        answers.append(
            {
                "=": order == 0,
                "!=": order != 0,
                "<": order < 0,
                "<=": order <= 0,
                ">": order > 0,
                ">=": order >= 0,
            }[condition.op],
        )
    return all(answers) if condition.op == "!=" else any(answers)


@given(st.data())
def test_the_predicate_equals_the_slow_one(data: st.DataObject):
    name = data.draw(st.sampled_from(sorted(VALUES)))
    value = VALUES[name]
    held = data.draw(st.none() | value | st.lists(value, min_size=1, max_size=3))
    fields = {} if held is None else {name: held}
    condition = Filter(
        name,
        data.draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">="])),
        data.draw(value),
    )
    assert holds(condition, fields) == slow(condition, fields)
    if condition.op in ("=", "!="):
        other = replace(condition, value=data.draw(value))
        both = replace(condition, others=(other,))
        parts = [slow(condition, fields), slow(other, fields)]
        assert holds(both, fields) == (any(parts) if condition.op == "=" else all(parts))
    opposite = Filter(name, "!=", condition.value)
    assert holds(opposite, fields) != holds(
        Filter(name, "=", condition.value),
        fields,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("year>=2020", Filter("year", ">=", 2020)),
        ("year==3", Filter("year", "=", 3)),
        ("tag=dog", Filter("tag", "=", "dog")),
        ("tag=a=b<c", Filter("tag", "=", "a=b<c")),
        (
            "taken<2021-05-01",
            Filter("taken", "<", "2021-05-01T00:00:00"),
        ),
        (
            "taken>=2021-05",
            Filter("taken", ">=", "2021-05-01T00:00:00"),
        ),
        (
            "taken>2021",
            Filter("taken", ">", "2021-12-31T23:59:59"),
        ),
        (
            "taken=2020-02",
            Filter(
                "taken",
                "=",
                "2020-02-01T00:00:00",
                "2020-02-29T23:59:59",
            ),
        ),
        (
            "taken!=9999",
            Filter(
                "taken",
                "!=",
                "9999-01-01T00:00:00",
                "9999-12-31T23:59:59",
            ),
        ),
        (
            "taken=2021-05-01+02:00",
            Filter(
                "taken",
                "=",
                "2021-04-30T22:00:00",
                "2021-05-01T21:59:59",
            ),
        ),
        (
            "taken=2021-05-01T12:30",
            Filter("taken", "=", "2021-05-01T12:30:00"),
        ),
        (
            "indoors=True",
            Filter("indoors", "=", True),
        ),
    ],
)
def test_parse_filter(text: str, expected: Filter):
    condition = parse_filter(text, TYPES)
    assert condition == expected
    assert type(condition.value) is type(expected.value)
    assert check_filter(condition, TYPES) == condition


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["is not a filter", "FIELD=VALUE"]),
        ("year", ["'year' is not a filter"]),
        (
            "yaer=3",
            ["no metadata field 'yaer'", "indoors, sharpness, tag, taken, title, year"],
        ),
        (
            "year=3.5",
            ["'3.5'", "64-bit integer", "year", "integer"],
        ),
        (
            "taken>May",
            ["'May'", "ISO 8601", "a month such as 2021-05, or a year"],
        ),
        (
            "taken>2021-13",
            ["'2021-13'", "ISO 8601"],
        ),
        (
            "taken>2021-02-29",
            ["'2021-02-29'", "ISO 8601"],
        ),
        (
            "indoors<true",
            ["indoors of type boolean", "'<'"],
        ),
        (
            "title=a",
            ["title is of type text", "hybrid="],
        ),
    ],
)
def test_bad_filter(text: str, words: list[str]):
    with pytest.raises(BocError) as caught:
        parse_filter(text, TYPES)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (
            Filter("year", "=", "2020"),
            "of type integer, but '2020' is not",
        ),
        (
            Filter("year", "=", True),
            "of type integer, but True is not",
        ),
        (
            Filter("tag", "=", 1),
            "of type keyword, but 1 is not",
        ),
        (
            Filter("year", "~", 1),
            "cannot be compared with '~'",
        ),  # type: ignore[arg-type]
        (Filter("title", "=", "a"), "of type text"),
        (Filter("x", "=", 1), "built without metadata"),
        (
            Filter(
                "taken",
                "<",
                "2021-05-01T00:00:00",
                "2021-05-01T23:59:59",
            ),
            "cannot have a last value",
        ),
        (
            Filter("tag", "<", "a", "b"),
            "'<' with type keyword cannot have a last value",
        ),
        (
            Filter("sharpness", "<", math.inf),
            "a finite number",
        ),
        (
            Filter("sharpness", "<", math.nan),
            "a finite number",
        ),
        (
            Filter("tag", "=", "a\0b"),
            "at most 32766 bytes",
        ),
        (Filter("taken", ">", "zzz"), "ISO 8601"),
        (Filter("taken", "=", ""), "ISO 8601"),
        (
            Filter("tag", [], "a"),
            "cannot be compared with",
        ),  # type: ignore[arg-type]
        (Filter([], "=", "a"), "no metadata field"),  # type: ignore[arg-type]
    ],
)
def test_filters_made_in_python_are_checked_too(condition: Filter, words: str):
    with pytest.raises(BocError, match=words):
        check_filter(
            condition,
            {} if condition.field == "x" else TYPES,
        )


def test_dates_of_filters_made_in_python_are_moments_too():
    for op in ("=", "!=", "<", "<=", ">", ">="):
        assert check_filter(
            Filter("taken", op, "2021-05"),
            TYPES,
        ) == parse_filter(
            f"taken{op}2021-05",
            TYPES,
        )


def test_fields_beyond_the_declared_are_named():
    items = [
        picture("a"),
        Item("b", "image", "", fields={"year": 1}),
    ]
    assert (
        undeclared_field(
            items,
            {"year": "integer"},
        )
        is None
    )
    assert undeclared_field(items, {"tag": "keyword"}) == "year"


def test_a_bar_parts_values_and_a_folder_holds_its_folders():
    types = {"folder": "keyword", "year": "integer", "taken": "date"}
    folders = ["2024", "2024/Rome", "2023", "20245", "2024-old/x", "20|24"]
    for text, expected in (
        ("folder=2024", {"2024", "2024/Rome"}),
        ("folder==2024", {"2024"}),
        ("folder=2023|2024-old", {"2023", "2024-old/x"}),
        ("folder!=2023|2024", {"20245", "2024-old/x", "20|24"}),
        (r"folder=20\|24 | 20245", {"20|24", "20245"}),
    ):
        condition = parse_filter(text, types)
        assert check_filter(condition, types) == condition
        assert {each for each in folders if holds(condition, {"folder": each})} == expected
    years = parse_filter("year=2|3", types)
    assert [holds(years, {"year": year}) for year in (1, 2, 3, [1, 3])] == [False, True, True, True]
    months = parse_filter("taken=2021-01|2021-03", types)
    days = [f"2021-0{month}-15T00:00:00" for month in (1, 2, 3)]
    assert [holds(months, {"taken": day}) for day in days] == [True, False, True]
    for text, message in (("year=2|x", "'x' is not"), ("year=|", "year is of type integer")):
        with pytest.raises(BocError, match=message):
            parse_filter(text, types)
