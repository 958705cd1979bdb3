"""Tables as spreadsheets save them: their encodings and separators, and how they write numbers and
dates.

A form is read where it can mean one thing only; where it may mean two, as 01/05/2021, it is not.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from boc.errors import SourceError, check_system
from boc.inputs.text_lines import BOM

Order: TypeAlias = Literal["day", "month"] | None
"""Which part of the dates of a column comes first, if some of them tell."""

_DATE = re.compile(
    r"(\d{1,4})([./-])(\d{1,2})\2(\d{1,4})"
    r"(?:[T ,]+(\d{1,2}):(\d\d)(?::(\d\d))?(?: ?([ap])\.?m\.?)?)?",
    re.ASCII | re.IGNORECASE,
)
_SPACES = re.compile(r"(?<=\d)[ \u00a0\u202f](?=\d{3}(?!\d))")
_GROUPS = re.compile(r"([+-]?\d{1,3}(?:\.\d{3})+),(\d+)", re.ASCII)
_AMERICAN = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+\.\d+", re.ASCII)
_COMMA = re.compile(r"([+-]?\d+),(\d+)", re.ASCII)


class CellError(ValueError):
    """What is wrong with a cell, and what to write."""


@dataclass
class Table:
    """An open table: its ``header``, and its ``rows``, each after the place where it ends, such as
    "line 3"."""

    header: list[str]
    rows: Iterator[tuple[str, list[str]]]
    separator: str


def open_table(path: Path, faults: list[str], fits: Callable[[list[str]], bool]) -> Table:
    """Open a CSV in UTF-8, or in UTF-16 with its mark, whose cells are parted as its line ``sep=``
    says, else by a comma, a semicolon or a tab: the first with which the header ``fits``.

    Rows that are empty are left out, lines that cannot be read are added to ``faults``. SourceError
    if the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        check_system(path, error, SourceError)
        raise SourceError(f"{path}: not a readable CSV file ({error})") from error
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = data.decode("utf-16", errors="replace").encode(errors="replace")
    data = data.removeprefix(BOM)
    lines = [line.decode(errors="surrogateescape") for line in data.splitlines(keepends=True)]
    begin = 0
    separators = [",", ";", "\t"]
    if lines and (said := re.fullmatch(r'"?sep=(.)"?\s*', lines[0], re.IGNORECASE)):
        separators = [said[1]]
        begin = 1
    separator = separators[0]
    for each in separators:
        head = next(csv.reader(lines[begin : begin + 1], delimiter=each), [])
        if fits(head):
            separator = each
            break
    rows = _rows(lines, begin, separator, faults)
    return Table(next(rows, ("", []))[1], rows, separator)


def _rows(
    lines: list[str],
    begin: int,
    separator: str,
    faults: list[str],
) -> Iterator[tuple[str, list[str]]]:
    while begin < len(lines):
        reader = csv.reader(lines[begin:], strict=True, delimiter=separator)
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
                    f"a cell has more than {most:,} characters; shorten it, or close the quotes "
                    "where it should end"
                )
            faults.append(f"line {begin}: {fault}")


def order_of(cells: Iterable[str]) -> Order:
    """Return which part of the dates of a column comes first: one above 12 is a day."""
    matches = [match for cell in cells if (match := _DATE.fullmatch(cell.strip()))]
    pairs = [(int(match[1]), int(match[3])) for match in matches if len(match[1]) < 3]
    is_day = any(first > 12 for first, _ in pairs)
    if is_day == any(second > 12 for _, second in pairs):
        return None
    return "day" if is_day else "month"


def plain_number(text: str, separator: str) -> str:
    """Return a number as programs write it. A comma parts its fraction unless it may part its
    thousands: where commas part cells, and three digits follow."""
    text = _SPACES.sub("", text)
    if match := _GROUPS.fullmatch(text):
        return f"{match[1].replace('.', '')}.{match[2]}"
    if _AMERICAN.fullmatch(text):
        return text.replace(",", "")
    match = _COMMA.fullmatch(text)
    if match and (separator != "," or len(match[2]) != 3):
        return f"{match[1]}.{match[2]}"
    return text


def plain_date(text: str, order: Order) -> str:
    """Return a date as ISO 8601, or the text if spreadsheets write no such date. CellError where
    either number may be the month."""
    match = _DATE.fullmatch(text)
    if match is None:
        return text
    first, sign, second, third, hour, minute, seconds, half = match.groups()
    parts = [first, second, third]
    if len(first) < 4:
        if len(third) < 4:
            return text
        parts.reverse()
        leading = order
        if leading is None and max(int(first), int(second)) > 12:
            leading = "day" if int(first) > 12 else "month"
        if sign != "." and leading == "month":
            parts = [third, first, second]
        elif sign != "." and leading is None and int(first) != int(second):
            raise CellError(f"the month of {text!r} may be either number; write 2021-05-01")
    moment = "-".join(f"{part:0>2}" for part in parts)
    if hour is None:
        return moment
    hours = int(hour)
    if half:
        hours = hours % 12 + 12 * (half.lower() == "p")
    return f"{moment}T{hours:02}:{minute}:{seconds or '00'}"
