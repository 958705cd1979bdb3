"""Tables as spreadsheets save them: each is read, or costs a cell with the remedy."""

import codecs
import warnings
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from boc.errors import LeftOut, SourceError
from boc.inputs.metadata import Metadata
from boc.inputs.sources import open_source
from boc.inputs.spreadsheets import CellError, plain_date, plain_number


def reasons(told: list[warnings.WarningMessage]) -> list[str]:
    messages = [each.message for each in told]
    return [reason for each in messages if isinstance(each, LeftOut) for reason in each.reasons]


CAPTIONS: dict[str, bytes] = {
    "comma": b"image,caption\na.png,a d\xc3\xb6g\n",
    "mark of UTF-8": codecs.BOM_UTF8 + b"image,caption\r\na.png,a d\xc3\xb6g\r\n",
    "semicolon": b"image;caption\na.png;a d\xc3\xb6g\n",
    "tab": b"image\tcaption\na.png\ta d\xc3\xb6g\n",
    "UTF-16, tab": "image\tcaption\r\na.png\ta d\u00f6g\r\n".encode("utf-16"),
    "UTF-16 of big ends": codecs.BOM_UTF16_BE
    + "image;caption\na.png;a d\u00f6g".encode("utf-16-be"),
    "UTF-16 without its mark": "image;caption\r\na.png;a d\u00f6g\r\n".encode("utf-16-le"),
    "the same of big ends": "image,caption\na.png,a d\u00f6g\n".encode("utf-16-be"),
    "empty lines first": b"\n;;\nimage;caption\na.png;a d\xc3\xb6g\n",
    "line of a separator": b"sep=;\r\nimage;caption\r\na.png;a d\xc3\xb6g\r\n",
    "line of a comma": b'"sep=,"\nimage,caption\na.png,a d\xc3\xb6g\n',
    "capitals": b"Image,CAPTION\na.png,a d\xc3\xb6g\n",
    "spaces": b"image, caption \na.png,a d\xc3\xb6g\n",
    "empty columns": b"image;caption;;\na.png;a d\xc3\xb6g;;\n;;;\n",
    "quotes": b'"Image";"Caption"\n"a.png";"a d\xc3\xb6g"\n',
}


@pytest.mark.parametrize("name", CAPTIONS)
def test_captions_of_a_spreadsheet(tmp_path: Path, name: str):
    (tmp_path / "a.png").touch()
    (tmp_path / "t.csv").write_bytes(CAPTIONS[name])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        items = open_source(tmp_path / "t.csv").items
    assert [item.content for item in items[1:]] == ["a d\u00f6g"]
    assert reasons(told) == []


HEAD = "ID;Year:integer;Date Taken:date;Size:float"
TABLES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "decimal comma": (
        f"{HEAD}\na;2021;;0,5",
        {"year": 2021, "size": 0.5},
        [],
    ),
    "thousands": (
        f"{HEAD}\na;;;1.234,5",
        {"size": 1234.5},
        [],
    ),
    "thousands by spaces": (
        f"{HEAD}\na;12\u00a0345;;1 234,5",
        {"year": 12345, "size": 1234.5},
        [],
    ),
    "American": (
        'id,size:float\na,"1,234.5"',
        {"size": 1234.5},
        [],
    ),
    "comma of either kind": (
        'id,size:float,n\na,"1,234",x',
        {"n": "x"},
        ["'1,234' may mean 1.234 or 1234; write 1.2340 or 1234"],
    ),
    "Swiss": (
        f"{HEAD}\na;;;1'234.5\nb;;;1\u2019234,5",
        {"size": 1234.5},
        [],
    ),
    "power of ten": (
        f"{HEAD}\na;;;1,5E+03",
        {"size": 1500.0},
        [],
    ),
    "point of either kind": (
        f"{HEAD}\na;3;;1.234",
        {"year": 3},
        ["'1.234' may mean 1.234 or 1234; write 1.2340 or 1234"],
    ),
    "comma of a table with semicolons": (
        f"{HEAD}\na;;;1,234",
        {"size": 1.234},
        [],
    ),
    "point by its column": (
        f"{HEAD}\na;;;1.234\nb;;;0,5",
        {"size": 1234.0},
        [],
    ),
    "point by another column": (
        "id;size:float\na;1.234\nb;0.5",
        {"size": 1.234},
        [],
    ),
    "point of a table with commas": (
        "id,size:float\na,1.234",
        {"size": 1.234},
        [],
    ),
    "comma of a table with tabs": (
        "id\tsize:float\tn\na\t1,234\tx",
        {"n": "x"},
        ["'1,234' may mean 1.234 or 1234"],
    ),
    "empty columns": (
        "ID;Year:integer;;\na;7;;\n;;;",
        {"year": 7},
        [],
    ),
    "date with points": (
        f"{HEAD}\na;;1.5.2021 9:30;",
        {"date_taken": "2021-05-01T09:30:00"},
        [],
    ),
    "date of either order": (
        f"{HEAD}\na;7;01/05/2021;",
        {"year": 7},
        ["the month of '01/05/2021' is ambiguous; write 2021-05-01"],
    ),
    "order of a column": (
        f"{HEAD}\na;;01/05/2021;\nb;;25/12/2020;",
        {"date_taken": "2021-05-01T00:00:00"},
        [],
    ),
    "American time": (
        "id,d:date\na,1/25/2021 2:05 PM",
        {"d": "2021-01-25T14:05:00"},
        [],
    ),
    "number of a day": (
        "id,d:date,n\na,44317,x",
        {"n": "x"},
        ["'44317' may be a date stored as a number; write 2021-05-01"],
    ),
    "year of two digits": (
        f"{HEAD}\na;1;25.12.21 10:30;",
        {"year": 1},
        [
            "the century of '25.12.21 10:30' is ambiguous; use a four-digit year, such as "
            "2021-05-01",
        ],
    ),
    "order that a short year does not tell": (
        "id,d:date,n\na,01/05/2021,x\nb,21/05/13,",
        {"n": "x"},
        [
            "the month of '01/05/2021'",
            "the century of '21/05/13'",
        ],
    ),
    "bad cell": (
        f"{HEAD}\na;x;2021-05-01;2",
        {
            "date_taken": "2021-05-01T00:00:00",
            "size": 2.0,
        },
        ["'x' is not"],
    ),
    "short line": (
        f"{HEAD}\na;3",
        {"year": 3},
        ["2 cells for 4 columns"],
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_metadata_of_a_spreadsheet(tmp_path: Path, name: str):
    text, row, words = TABLES[name]
    (tmp_path / "t.csv").write_text(
        text,
        encoding="utf-8-sig",
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        table = Metadata.read(tmp_path / "t.csv")
    assert table.rows["a"] == row
    found = reasons(told)
    assert len(found) == len(words)
    for line, (reason, part) in enumerate(zip(found, words, strict=True), 2):
        assert part in reason
        assert reason.startswith(f"line {line}: ")


MOMENTS = st.datetimes(
    datetime(1000, 1, 1),
    datetime(9999, 1, 1),
)


@given(MOMENTS)
def test_dates_of_either_order_by_their_column(moment: datetime):
    for form, order in (
        ("%d/%m/%Y", "day"),
        ("%m/%d/%Y", "month"),
        ("%d.%m.%Y", ""),
        ("%Y/%m/%d", ""),
    ):
        text = plain_date(
            moment.strftime(f"{form} %H:%M:%S"),
            order,
        )
        assert text == moment.replace(microsecond=0).isoformat()


@given(
    st.integers(-(10**9), 10**9),
    st.sampled_from([0.25, 0.5, 0.75]),
)
def test_numbers_of_either_comma(whole: int, part: float):
    value = whole + part
    american = f"{value:,}"
    german = american.translate(str.maketrans(",.", ".,"))
    for mark in (".", ",", ""):
        assert float(plain_number(american, mark)) == value
        assert float(plain_number(german, mark)) == value
        assert plain_number(str(value), mark) == str(value)


@given(st.integers(1000, 999_999))
def test_a_mark_before_three_digits_is_read_as_the_column_tells(whole: int):
    american = f"{whole:,}"
    german = american.replace(",", ".")
    for text, mark in ((american, "."), (german, ",")):
        assert plain_number(text, mark) == str(whole)
        with pytest.raises(CellError, match=f"{whole}$"):
            plain_number(text, "")
    assert plain_number(american, ",") == plain_number(german, ".") == german


def test_half_a_character_of_utf_16_costs_its_sentence(tmp_path: Path):
    for name in "ab":
        (tmp_path / f"{name}.png").touch()
    (tmp_path / "t.csv").write_bytes("image,caption\na.png,one\nb.png,two".encode("utf-16")[:-1])
    with pytest.warns(LeftOut) as told:
        items = open_source(tmp_path / "t.csv").items
    assert [item.content for item in items[2:]] == ["one"]
    assert len(reasons(list(told))) == 1


@pytest.mark.parametrize("line", ['sep="', "sep=a", "sep= "])
def test_what_cannot_part_cells_is_no_separator(tmp_path: Path, line: str):
    (tmp_path / "t.csv").write_text(f"{line}\nid,n\na,x\n")
    with pytest.raises(SourceError, match="the first column must be id"):
        Metadata.read(tmp_path / "t.csv")


def test_bad_sentences_cost_themselves(tmp_path: Path):
    for name in "ab":
        (tmp_path / f"{name}.png").touch()
    (tmp_path / "t.csv").write_bytes(
        b"image,caption,Caption\na.png,one,two\nb.png,thr\0e,four\nb.png\n",
    )
    (tmp_path / "t.jsonl").write_text(
        '{"image": "a.png", "captions": ["one", null, "two"]}\n{"image": "b.png", "captions": 7}\n',
    )
    expected = {
        "t.csv": (["one", "two", "four"], 2),
        "t.jsonl": (["one", "two"], 2),
    }
    for name, (sentences, count) in expected.items():
        with pytest.warns(LeftOut) as told:
            items = open_source(tmp_path / name).items
        assert [item.content for item in items[2:]] == sentences
        assert len(reasons(list(told))) == count
