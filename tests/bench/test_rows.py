"""Rows of measurements come back as they were written, whatever they hold and wherever the writing stopped."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bench.report.rows import MARK, Rows, Writer, read

CELLS = st.text(st.characters(codec="utf-8")).filter(
    lambda text: len(text.splitlines()) < 2 and text[-1:].strip() == text[-1:]
)
TABLES = st.integers(2, 4).flatmap(
    lambda n: st.tuples(
        st.lists(CELLS.filter(bool), min_size=n, max_size=n, unique=True),
        st.lists(st.lists(CELLS, min_size=n, max_size=n)),
    )
)
HEAD = ["script", "settings", "seed", "versions", "machine", "time"]


def told(columns: list[str], table: list[list[str]], **settings: object) -> str:
    stdout = io.StringIO()
    with Writer(stdout, "bench/some.py", settings, columns, seed=3, extras=["click", "no-such-package"]) as out:
        for row in table:
            out.write(*row)
    return stdout.getvalue()


def read_text(text: str, folder: Path) -> Rows:
    (folder / "some.csv").write_text(text, encoding="utf-8", newline="")
    return read(folder / "some.csv")


@pytest.mark.slow
@settings(max_examples=40)
@given(TABLES)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[list[str], list[list[str]]]
) -> None:
    columns, table = drawn
    assume(not any(row[0].startswith("#") for row in (columns, *table)))
    found = read_text(told(columns, table), tmp_path_factory.mktemp("rows"))
    assert found.columns == tuple(columns)
    assert [list(row.values()) for row in found.table] == table
    assert found.is_complete


def test_the_head_tells_settings_seed_versions_and_machine(tmp_path: Path) -> None:
    found = read_text(told(["a"], [["1"]], features=Path("/far/away/dev.h5"), rounds=3), tmp_path)
    assert list(found.head) == HEAD
    assert (found.head["script"], found.head["seed"]) == ("some.py", 3)
    assert found.head["settings"] == {"features": "dev.h5", "rounds": 3}
    assert {"boc", "python", "numpy", "scipy", "faiss-cpu", "click"} == set(found.head["versions"])
    assert set(found.head["machine"]) == {"processor", "cores", "GiB", "system"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found.head["time"])


@settings(max_examples=40)
@given(st.data())
def test_rows_cut_anywhere_are_not_done_and_hold_whole_rows_only(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    table = [["x", "1.5"], ['y, with "# done: 3"', "2"], ["z", "22"]]
    whole = told(["name", "figure"], table)
    cut = data.draw(st.integers(whole.index("\n") + 1, len(whole) - 1))
    found = read_text(whole[:cut], tmp_path_factory.mktemp("rows"))
    assert not found.is_complete
    rows = [list(row.values()) for row in found.table]
    assert rows == table[: len(rows)]


def test_a_script_that_fails_does_not_end_its_rows(tmp_path: Path) -> None:
    stdout = io.StringIO()

    def fail() -> None:
        with Writer(stdout, "some.py", {}, ["a"]) as out:
            out.write(1)
            out.write(1 / 0)

    with pytest.raises(ZeroDivisionError):
        fail()
    found = read_text(stdout.getvalue(), tmp_path)
    assert not found.is_complete
    assert found.table == [{"a": "1"}]


@pytest.mark.parametrize("cells", [(1,), (1, 2, 3), ("# done: 3", 2), ("a", "b\nc")])
def test_rows_that_could_not_be_read_again_are_refused(cells: tuple[object, ...]) -> None:
    with Writer(io.StringIO(), "some.py", {}, ["a", "b"]) as out, pytest.raises(ValueError, match=r"cells|one line"):
        out.write(*cells)


@pytest.mark.parametrize("columns", [["a", "a"], ["", "b"], ["#a"]])
def test_columns_that_could_not_be_read_again_are_refused(columns: list[str]) -> None:
    with pytest.raises(ValueError, match="column"):
        Writer(io.StringIO(), "some.py", {}, columns)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no line '# script"):
        read_text(f"{MARK}a\nb,c\n", tmp_path)
