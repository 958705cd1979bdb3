"""Tables of rows: cells as they are printed, lines and headings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.report.rows import Rows

Row = Mapping[str, str]
Cell = Callable[[Row], str]


class ViewError(ValueError):
    """An unknown view of these rows, or a missing row."""


@dataclass(frozen=True)
class Table:
    """A heading, and lines with one cell per column."""

    head: list[str]
    lines: list[list[str]]

    def markdown(self) -> str:
        lines = [self.head, ["---"] * len(self.head), *self.lines]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("+-", "±")


def number(cell: str, digits: int = 1) -> str:
    """The cell with so many digits, thousands apart; what is no number, as it is."""
    try:
        return f"{float(cell):,.{digits}f}"
    except ValueError:
        return cell


def share(cell: str, digits: int = 3) -> str:
    """A share as in print: .953."""
    return f"{float(cell):.{digits}f}".replace("0.", ".", 1) if cell else ""


def joined(row: Row, columns: Sequence[str], digits: int = 1) -> str:
    return " / ".join(number(row[column], digits) for column in columns)


def ranged(row: Row, column: str, unit: str = "", digits: int = 2) -> str:
    """The median of a column, with minimum and maximum."""
    told = [number(row[name], digits) for name in (f"{column}{unit}", f"{column}_least", f"{column}_most")]
    return f"{told[0]} ({told[1]}-{told[2]})" if told[0] else ""


def everything(rows: Rows) -> Table:
    """All rows as they are."""
    return Table(list(rows.columns), [list(row.values()) for row in rows.table])


def listed(table: Iterable[Row], columns: Mapping[str, Cell]) -> Table:
    """A line per row; ``columns`` maps each heading to what makes a cell of a row."""
    return Table(list(columns), [[make(row) for make in columns.values()] for row in table])


def of(column: str, digits: int | None = None) -> Cell:
    """The cell of a column, as it is or with so many digits; empty where the rows have no such column."""
    return lambda row: row.get(column, "") if digits is None else number(row.get(column, ""), digits)


def share_of(column: str, digits: int = 3) -> Cell:
    return lambda row: share(row[column], digits)


def cell(rows: Rows, **chosen: str) -> Row:
    """The one row that has these values. ViewError if there are none or several."""
    unknown = [key for key in chosen if key not in rows.columns]
    if unknown:
        raise ViewError(f"{rows.name}: no column {unknown[0]!r}; known: {', '.join(rows.columns)}")
    found = [row for row in rows.table if all(row[key] == value for key, value in chosen.items())]
    if len(found) != 1:
        raise ViewError(f"{rows.name}: {len(found)} rows have {chosen}; name columns that leave one")
    return found[0]


def loading(row: Row) -> float:
    """Seconds of encoding and writing, which run at the same time."""
    return sum(float(row[column] or 0) for column in ("encode_s", "build_s") if column in row)


def summed(row: Row, *columns: str) -> str:
    """The sum, and of what."""
    known = [float(row[column] or 0) for column in columns]
    return f"{sum(known):,.0f}: {' + '.join(f'{value:,.0f}' for value in known)}"
