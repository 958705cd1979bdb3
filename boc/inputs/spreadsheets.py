"""Read tables saved by spreadsheet programs, which use various encodings, separators, and formats
for numbers and dates.

A value is read only if it is unambiguous. A date such as 01/05/2021, which can have two meanings,
is not read.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from boc.inputs.text_lines import BOM, file_bytes
from boc.types import FieldType

_DATE = re.compile(
    r"(\d{1,4})([./-])(\d{1,2})\2(\d{1,4})"
    r"(?:[T ,]+(\d{1,2}):(\d\d)(?::(\d\d))?(?: ?([ap])\.?m\.?)?)?",
    re.ASCII | re.IGNORECASE,
)
_SPACES = re.compile(r"(?<=\d)[ '\u2019\u00a0\u202f](?=\d{3}(?!\d))")

_NUMBERS = {
    (mark, other): re.compile(
        rf"[+-]?(\d+|[1-9]\d?\d?([{other}]\d{{3}})+)([{mark}]\d+([Ee][+-]?\d+)?)?",
        re.ASCII,
    )
    for mark, other in ((".", ","), (",", "."))
}


class CellError(ValueError):
    """A cell is invalid or ambiguous; the text explains how to write it."""


@dataclass
class Table:
    """Open table with a lower-case ``header``. ``rows`` yields the place where a row ends, such as
    "line 3", and the cells of the row."""

    header: list[str]
    rows: Iterator[tuple[str, list[str]]]
    separator: str


def open_table(path: Path, faults: list[str], fits: Callable[[list[str]], bool]) -> Table:
    """Open a CSV file in UTF-8 or UTF-16. An initial line ``sep=`` declares the separator. Without
    this line, a comma, a semicolon and a tab are tried in turn until the header ``fits``. Empty
    rows are skipped, and lines that cannot be read are added to ``faults``. Raises SourceError if
    the file cannot be read.
    """
    data = file_bytes(path, "name a CSV file")
    # UTF-16 begins with a byte order mark, or with a letter, which includes a NUL byte.
    if {0, 0xFE, 0xFF}.intersection(data[:2]):
        text = data.decode("utf-16-be" if data[0] in (0, 0xFE) else "utf-16-le", errors="replace")
        # A cell that contains an invalid character cannot be used, as in UTF-8.
        data = text.replace("\ufffd", "\udcff").encode(errors="surrogateescape")
    data = data.removeprefix(BOM)
    lines = [line.decode(errors="surrogateescape") for line in data.splitlines(keepends=True)]
    begin = 0
    separators = [",", ";", "\t"]
    if lines and (said := re.fullmatch(r'"?sep=([^\w\s"]|\t)"?\s*', lines[0], re.IGNORECASE)):
        separators = [said[1]]
        begin = 1
    for separator in (*separators, separators[0]):
        faults.clear()
        rows = _rows(lines, begin, separator, faults)
        header = [name.strip().lower() for name in next(rows, ("", []))[1]]
        if fits(header):
            break
    while header and not header[-1]:
        header.pop()
    return Table(header, rows, separator)


def _rows(
    lines: list[str],
    begin: int,
    separator: str,
    faults: list[str],
) -> Iterator[tuple[str, list[str]]]:
    while begin < len(lines):
        rest = map(lines.__getitem__, range(begin, len(lines)))
        reader = csv.reader(rest, strict=True, delimiter=separator)
        done = 0
        try:
            for cells in reader:
                done = reader.line_num
                if any(cells):
                    yield f"line {begin + done}", cells
            return
        except csv.Error as error:
            begin += done + 1
            fault = f"not a CSV file ({error}); check the quotes"
            if "field limit" in str(error):
                most = csv.field_size_limit()
                fault = (
                    f"a cell has more than {most:,} characters; shorten it, or add a missing "
                    "closing quote"
                )
            faults.append(f"line {begin}: {fault}")


def column_reader(kind: FieldType, cells: Iterable[str], separator: str) -> Callable[[str], str]:
    """Return a function that reads a value of a column. The format of dates and numbers is inferred
    from all ``cells`` of the column."""
    values = (value.strip() for cell in cells for value in cell.split("|"))
    if kind == "date":
        return partial(plain_date, order=order_of(values))
    if kind in ("integer", "float"):
        return partial(plain_number, mark=mark_of(set(values), separator))
    return str


def order_of(cells: Iterable[str]) -> str:
    """Return which part comes first in the dates of a column, "day" or "month", if this can be
    inferred: a number above 12 must be a day."""
    firsts = set()
    for match in map(_DATE.fullmatch, cells):
        if match and len(match[4]) == 4:
            if int(match[1]) > 12:
                firsts.add("day")
            if int(match[3]) > 12:
                firsts.add("month")
    return firsts.pop() if len(firsts) == 1 else ""


def mark_of(cells: set[str], separator: str) -> str:
    """Return the decimal mark of a column if its numbers reveal it. Otherwise, the mark is a comma
    if semicolons separate the cells, and a point if not, unless the other mark occurs as well."""
    marks = {"".join(_readings(cell)) for cell in cells} & {".", ","}
    usual = ",." if separator == ";" else ".,"
    if usual[1] not in "".join(cells):
        marks.add(usual[0])
    return "".join(marks)


def plain_number(text: str, mark: str) -> str:
    """Return a number in the format of programming languages, or the text itself if it is not a
    number. Raises CellError if the mark may be a thousands separator."""
    readings = _readings(text)
    values = sorted(set(readings.values()))
    if len(values) > 1 and mark not in readings:
        part, whole = values
        raise CellError(f"{text!r} may mean {part} or {whole}; write {part}0 or {whole}")
    return readings.get(mark, [*values, text][0])


def _readings(text: str) -> dict[str, str]:
    """Return the possible values of a number for each decimal mark; the other mark is then the
    thousands separator."""
    text = _SPACES.sub("", text)
    return {
        mark: text.replace(other, "").replace(mark, ".")
        for (mark, other), form in _NUMBERS.items()
        if form.fullmatch(text)
    }


def plain_date(text: str, order: str) -> str:
    """Return a date in ISO 8601, or the text itself if it is not a date format of spreadsheets.
    Raises CellError if the month, century or calendar is ambiguous."""
    match = _DATE.fullmatch(text)
    if re.fullmatch(r"\d{5}(?:[.,]\d+)?", text):
        raise CellError(f"{text!r} may be a date stored as a number; write 2021-05-01")
    if match is None:
        return text
    first, sign, second, third, hour, minute, seconds, half = match.groups()
    parts = [first, second, third]
    if len(first) < 4:
        if len(third) < 4:
            raise CellError(
                f"the century of {text!r} is ambiguous; use a four-digit year, such as 2021-05-01",
            )
        parts.reverse()
        leading = "day" if sign == "." else order or order_of([text])
        if leading == "month":
            parts = [third, first, second]
        elif not leading and int(first) != int(second):
            raise CellError(f"the month of {text!r} is ambiguous; write 2021-05-01")
    moment = "-".join(f"{part:0>2}" for part in parts)
    if hour is None:
        return moment
    hours = int(hour)
    if half:
        hours = hours % 12 + 12 * (half.lower() == "p")
    return f"{moment}T{hours:02}:{minute}:{seconds or '00'}"
