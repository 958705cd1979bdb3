"""Rows of measurements come back as they were written, whatever they hold and wherever the writing
stopped."""

import io
import re
from pathlib import Path

import pytest
from hypothesis import assume, given, settings, strategies as st

from bench.report.rows import MARK, Rows, Writer, read

CELLS = st.just('y, with "# done: 3"') | st.text(st.characters(codec="utf-8")).filter(
    lambda text: len(text.splitlines()) < 2 and text[-1:].strip() == text[-1:],
)
TABLES = st.integers(2, 4).flatmap(
    lambda n: st.tuples(
        st.lists(
            CELLS.filter(bool),
            min_size=n,
            max_size=n,
            unique=True,
        ),
        st.lists(st.lists(CELLS, min_size=n, max_size=n)),
    ),
)


def write_text(columns: list[str], table: list[list[str]], **settings: object) -> str:
    stdout = io.StringIO()
    with Writer(
        stdout,
        "bench/some.py",
        settings,
        columns,
        seed=3,
        extras=["click", "no-such-package"],
    ) as out:
        for row in table:
            out.write(*row)
    return stdout.getvalue()


def read_text(text: str, folder: Path) -> Rows:
    (folder / "some.csv").write_text(
        text,
        encoding="utf-8",
        newline="",
    )
    return read(folder / "some.csv")


@pytest.mark.slow
@settings(max_examples=40)
@given(TABLES, st.data())
def test_rows_round_trip_and_prefix(
    tmp_path_factory,
    drawn: tuple[list[str], list[list[str]]],
    data: st.DataObject,
):
    columns, table = drawn
    assume(not any(row[0].startswith("#") for row in (columns, *table)))
    text = write_text(columns, table)
    folder = tmp_path_factory.mktemp("rows")
    rows = read_text(text, folder)
    assert rows.columns == tuple(columns)
    assert [list(row.values()) for row in rows.table] == table
    assert rows.is_complete
    cut = read_text(
        text[
            : data.draw(
                st.integers(
                    text.index("\n") + 1,
                    len(text) - 1,
                ),
            )
        ],
        folder,
    )
    assert not cut.is_complete
    assert [list(row.values()) for row in cut.table] == table[: len(cut.table)]


def test_head(tmp_path: Path):
    head = read_text(
        write_text(
            ["a"],
            [["1"]],
            features=Path("/far/away/dev.h5"),
            rounds=3,
        ),
        tmp_path,
    ).head
    assert list(head) == ["script", "settings", "seed", "versions", "machine", "time"]
    assert (head["script"], head["seed"]) == ("some.py", 3)
    assert head["settings"] == {"features": "dev.h5", "rounds": 3}
    assert {"boc", "python", "numpy", "scipy", "faiss-cpu", "click"} == set(head["versions"])
    assert set(head["machine"]) == {"processor", "cores", "GiB", "system"}
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
        head["time"],
    )


def test_script_error_leaves_rows_incomplete(tmp_path: Path):
    stdout = io.StringIO()

    def fail():
        with Writer(stdout, "some.py", {}, ["a"]) as out:
            out.write(1)
            out.write(1 / 0)

    with pytest.raises(ZeroDivisionError):
        fail()
    rows = read_text(stdout.getvalue(), tmp_path)
    assert not rows.is_complete
    assert rows.table == [{"a": "1"}]


@pytest.mark.parametrize(
    "cells",
    [
        (1,),
        (1, 2, 3),
        ("# done: 3", 2),
        ("a", "b\nc"),
    ],
)
def test_unreadable_cells(cells: tuple[object, ...]):
    with (
        Writer(
            io.StringIO(),
            "some.py",
            {},
            ["a", "b"],
        ) as out,
        pytest.raises(
            ValueError,
            match=r"cells|one line",
        ),
    ):
        out.write(*cells)


@pytest.mark.parametrize(
    "columns",
    [["a", "a"], ["", "b"], ["#a"]],
)
def test_unreadable_columns(columns: list[str]):
    with pytest.raises(ValueError, match="column"):
        Writer(
            io.StringIO(),
            "some.py",
            {},
            columns,
        )


def test_file_without_head(tmp_path: Path):
    with pytest.raises(
        ValueError,
        match="does not begin with '# script",
    ):
        read_text(f"{MARK}a\nb,c\n", tmp_path)
