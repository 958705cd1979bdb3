"""Metadata of items: read tables, parse search filters, and sort hits by a field.

A table is a CSV file whose header declares the types, for example
``id,year:integer,tag:keyword,taken:date,title:text``. A field without a type is a keyword. A cell
can contain several values, separated by ``|``; an empty cell contains no value. Tables from
spreadsheet programs may have other separators, capitalized names, and other formats for dates and
numbers.
"""

from __future__ import annotations

import calendar
import hashlib
import json
import math
import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args

from boc.errors import BocError, SourceError, leave_out
from boc.foreign import parse_json
from boc.inputs.spreadsheets import CellError, column_reader, open_table
from boc.inputs.text_lines import check_text
from boc.paths import nfc
from boc.types import FOR_PROGRAMS, ID, FieldType, Filter, Hit, Item

Value: TypeAlias = str | int | float | bool

TYPES: tuple[FieldType, ...] = get_args(FieldType)
LONGEST_KEYWORD = 32_766  # maximum length of a Lucene term, in bytes
LAST = "\U0010ffff"  # the last character, which ends the range of texts with a common prefix
EXAMPLE = "id,year:integer,tag:keyword"

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_DATE = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(:\d\d)?(?:\.\d+)?)?(Z|[+-]\d\d:\d\d)?",
    re.ASCII,
)
_PERIOD = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d)(Z|[+-]\d\d:\d\d)?)?)?", re.ASCII)
_FILTER = re.compile(r"\s*([^\s=!<>]+)\s*(!=|<=|>=|==?|<|>)(.*)", re.DOTALL)
OPERATORS = "=<>!"
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_RULES: dict[FieldType, str] = {
    "keyword": f"text of at most {LONGEST_KEYWORD} bytes",
    "integer": "a 64-bit integer, such as 2021",
    "float": "a finite number, such as 0.5",
    "boolean": "true or false",
    "date": "an ISO 8601 date, such as 2021-05-01 or 2021-05-01T12:30:00+02:00",
    "text": "text",
}


@dataclass(frozen=True)
class Metadata:
    """Metadata values by id: the id of an item, or the id of the picture to which the item
    belongs."""

    types: dict[str, FieldType]
    rows: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, path: Path) -> Metadata:
        """Read the table at ``path``. Cells that cannot be used, lines without an id, and lines
        with too many cells are skipped, with a warning.

        If no value remains, raises a SourceError that names the file, the line, the value and the
        rule.
        """
        rows: dict[str, dict[str, Any]] = {}
        faults: list[str] = []
        table = open_table(
            path,
            faults,
            lambda header: header[:1] == ["id"],
        )
        types = _types(path, table.header)
        lines = list(table.rows)
        readers = {
            name: column_reader(
                kind,
                (cells[place] for _, cells in lines if place < len(cells)),
                table.separator,
            )
            for place, (name, kind) in enumerate(types.items(), 1)
        }
        for where, cells in lines:
            fields: dict[str, Any] = {}
            key = cells[0]
            while len(cells) > len(types) + 1 and not cells[-1]:
                cells.pop()
            if fault := _unusable(cells, types):
                faults.append(f"{where}: {fault}")
                continue
            if len(cells) <= len(types):
                faults.append(f"{where}: {len(cells)} cells for {len(types) + 1} columns")
            for (name, kind), cell in zip(types.items(), cells[1:], strict=False):
                try:
                    values = map(readers[name], map(str.strip, cell.split("|")))
                    parse_cell(name, "|".join(values), kind, fields)
                except CellError as error:
                    faults.append(f"{where}: {error}")
                except ValueError:
                    faults.append(
                        f"{where}: {name} is of type {kind}, but {cell!r:.100} is not; "
                        f"use {_RULES[kind]}",
                    )
            if key in rows:
                faults.append(f"{where}: the id {key!r} is repeated; write one line per id")
            rows.setdefault(key, fields)
        faults.sort(key=lambda fault: int(re.findall("[0-9]+", fault)[0]))
        if not rows or (faults and not any(rows.values())):
            reason = faults[0] if faults else "no rows below the header; write one line per item"
            raise SourceError(f"{path}, {reason}")
        leave_out(str(path), faults)
        return cls(types, rows)

    @classmethod
    def of_option(cls, table: Metadata | Path | str | None) -> Metadata | None:
        """Return ``table``; if it is a path, read the table from the path. Return None for None."""
        return cls.read(Path(table)) if isinstance(table, (Path, str)) else table

    def of(self, item: Item) -> Mapping[str, Any]:
        """Return the values for ``item`` itself or, if there are none, for the picture to which it
        belongs."""
        for id in (item.id, item.group):
            row = self.rows.get(id)
            if row is None and not id.isascii():
                row = self._by_form.get(nfc(id))
            if row is not None:
                return row
        return {}

    @cached_property
    def _by_form(self) -> dict[str, Mapping[str, Any]]:
        return {nfc(key): row for key, row in self.rows.items()}

    def strangers(self, items: Iterable[Item]) -> list[str]:
        """Return the sorted ids in the table that match neither an item nor the picture of an
        item."""
        left = {nfc(key): key for key in self.rows}
        for item in items:
            left.pop(nfc(item.id), None)
            left.pop(nfc(item.group), None)
        return sorted(left.values())

    @property
    def digest(self) -> str:
        """SHA-256 digest of the types and the rows, independent of the order of the rows."""
        digest = hashlib.sha256(json.dumps(self.types, sort_keys=True).encode())
        for key in sorted(self.rows):
            digest.update(json.dumps([key, self.rows[key]], sort_keys=True).encode())
        return digest.hexdigest()


def parse_filter(text: str, types: Mapping[str, FieldType]) -> Filter:
    """Parse a filter, which consists of a field of ``types``, an operator (= != < <= > >=), and a
    value of the field's type.

    A year, a month (2021-05) or a day stands for the whole period: "<=" includes the period, ">"
    starts after it, and "=" matches all times in it. Several values are separated by bars, and an
    item must have at least one of them. A bar after a backslash is part of the value. A folder
    includes everything below it; "==" matches only the folder itself. The field ``id`` is the id of
    an item. Raises BocError, which names the known fields or the rule.

    >>> parse_filter("taken<=2021-05", {"taken": "date"})
    Filter(field='taken', op='<=', value='2021-05-31T23:59:59', last=None, others=())
    """
    match = _FILTER.fullmatch(nfc(text))
    value = match[3].strip() if match else ""
    if match is None or not value:
        raise BocError(
            f"{text!r} is not a filter; write FIELD=VALUE, or use != < <= > >= as in year>=2020",
        )
    name = match[1]
    op = cast(Any, "=" if match[2] == "==" else match[2])
    # ``tag<>a`` would otherwise be parsed as ``tag < ">a"``.
    if value[0] in OPERATORS and match[2] != "==":
        raise BocError(
            f"{text!r} has no valid operator; use one of = != < <= > >=, and == before a value "
            f"that begins with {value[0]}",
        )
    kind = _filterable(name, types)
    parts = [value]
    if op in ("=", "!="):
        some = re.split(r"\s*(?<!\\)\|\s*", value)
        parts = [part.replace(r"\|", "|") for part in some if part]
    filters = []
    for part in parts:
        try:
            each = Filter(name, op, part if kind == "date" else parse_value(part, kind))
        except ValueError:
            raise no_value(name, kind, part) from None
        filters.append(each)
        if name == "folder" and match[2] in ("=", "!="):
            filters.append(replace(each, value=f"{part}/", last=f"{part}/{LAST}"))
    if not filters:
        raise no_value(name, kind, value)
    return check_filter(replace(filters[0], others=tuple(filters[1:])), types)


def check_filter(condition: Filter, types: Mapping[str, FieldType]) -> Filter:
    """Return ``condition`` if it is valid, with a date converted to a point in time. Raises
    BocError, which names the known fields or the rule."""
    name = condition.field
    op = condition.op
    value = condition.value
    kind = _filterable(name, types)
    if condition.others:
        kinds = {(each.field, each.op) for each in condition.alternatives}
        if len(kinds) > 1 or op not in ("=", "!="):
            raise BocError(f"{name}: {op!r} cannot have alternatives; use = or != on one field")
        checked = [check_filter(part, types) for part in condition.alternatives]
        return replace(checked[0], others=tuple(checked[1:]))
    is_id = name not in types
    if is_id:
        condition = replace(condition, field=ID)
    if op not in ("=", "!=") and (is_id or kind == "boolean" or op not in list(_COMPARE)):
        raise BocError(f"{name} of type {kind} cannot be compared with {op!r}; use = or !=")
    ranged = kind in ("date", "keyword") and op in ("=", "!=") and not is_id
    if condition.last is not None and not ranged:
        raise BocError(f"{name}: {op!r} with type {kind} cannot have a last value; omit it")
    if kind == "date" and condition.last is None:
        try:
            first, last = _period(cast(str, value))
        except (ValueError, TypeError):
            raise no_value(name, kind, value) from None
        condition = replace(condition, value=last if op in ("<=", ">") else first)
        return replace(condition, last=last) if op in ("=", "!=") and first != last else condition
    for each in [value] if condition.last is None else [value, condition.last]:
        if not _is(each, kind):
            raise no_value(name, kind, each)
    if kind == "float" and value == 0:  # Lucene distinguishes 0.0 from -0.0
        return replace(condition, value=0.0)
    return condition


def no_value(name: str, kind: FieldType, value: object) -> BocError:
    """Return the error for a value whose type does not match its field."""
    rule = _RULES[kind] + (", or a month such as 2021-05, or a year" if kind == "date" else "")
    return BocError(f"{name} is of type {kind}, but {value!r} is not; use {rule}")


def holds(condition: Filter, fields: Mapping[str, Any]) -> bool:
    """Return whether an item with these ``fields`` meets ``condition``."""
    values = values_of(fields, condition.field)
    if condition.op == "!=" or condition.others:
        equal = [replace(each, op="=") for each in condition.alternatives]
        return any(holds(each, fields) for each in equal) == (condition.op == "=")
    if condition.last is not None:
        return any(condition.value <= value <= condition.last for value in values)
    return any(_COMPARE[condition.op](value, condition.value) for value in values)


def check_sort(sort: str, types: Mapping[str, FieldType]) -> str:
    """Return ``sort`` if it is a field of ``types``, with or without a leading minus. Raises
    BocError, which names the known fields or the rule."""
    name = sort.removeprefix("-")
    if name not in types:
        raise BocError(
            f"hits cannot be sorted by {name!r}, which is not a metadata field of the index "
            f"({_known(types)})",
        )
    if types[name] == "text":
        raise BocError(
            f"hits cannot be sorted by {name}, which is of type text; choose a field of another "
            "type",
        )
    return sort


def by_field(hits: Sequence[Hit], sort: str) -> list[Hit]:
    """Sort hits by the field ``sort`` in ascending order or, if a minus precedes the field, in
    descending order.

    If a hit has several values, the value that comes first in this order is used. Hits with equal
    values keep their order, and hits without a value come last.
    """
    name = sort.removeprefix("-")
    falling = sort.startswith("-")
    pairs = [(values_of(hit.item.fields, name), hit) for hit in hits]
    pick = max if falling else min
    keyed = sorted(
        ((pick(values), hit) for values, hit in pairs if values),
        key=lambda pair: pair[0],
        reverse=falling,
    )
    return [*(hit for _, hit in keyed), *(hit for values, hit in pairs if not values)]


def values_of(fields: Mapping[str, Any], name: str) -> Sequence[Any]:
    """Return the values of a field as a sequence, however many values the item has."""
    value = fields.get(name, [])
    return value if isinstance(value, (list, tuple)) else [value]


def are_types(text: str) -> bool:
    """Return whether ``text`` is a JSON object that maps fields to their types."""
    try:
        types = parse_json(text)
    except ValueError:
        return False
    return isinstance(types, dict) and all(
        _NAME.fullmatch(name) and kind in TYPES for name, kind in types.items()
    )


def well_typed(fields: Any, types: Mapping[str, FieldType]) -> bool:
    """Return whether all ``fields`` are declared in ``types`` and contain a value, or a non-empty
    list of values, of the declared type."""
    return isinstance(fields, dict) and all(
        name in types
        and value != []
        and all(_is(one, types[name]) for one in values_of(fields, name))
        for name, value in fields.items()
    )


def _is(value: Any, kind: FieldType) -> bool:
    """Return whether ``value`` is a possible result of ``parse_value`` for this type."""
    if isinstance(value, str):
        try:
            return kind in ("keyword", "date", "text") and parse_value(value, kind) == value
        except ValueError:
            return False
    if isinstance(value, bool) or kind == "boolean":
        return isinstance(value, bool) and kind == "boolean"
    if kind == "integer":
        return isinstance(value, int) and -(2**63) <= value < 2**63
    return kind == "float" and isinstance(value, (int, float)) and abs(value) <= sys.float_info.max


def undeclared_field(items: Sequence[Item], types: Mapping[str, FieldType]) -> str | None:
    """Return the name of a field that an item has but ``types`` does not declare, or None."""
    return min(set().union(*[item.fields for item in items]) - types.keys(), default=None)


def _filterable(name: str, types: Mapping[str, FieldType]) -> FieldType:
    if name in ("id", ID) and name not in types:
        return "keyword"
    if not isinstance(name, str) or name not in types:
        raise BocError(f"the index has no metadata field {name!r} ({_known(types)})")
    if types[name] == "text":
        raise BocError(
            f"{name} is of type text, which filters do not support",
            "search its words with <--hybrid>",
        )
    return types[name]


def _types(path: Path, header: Sequence[str]) -> dict[str, FieldType]:
    if header[:1] != ["id"]:
        raise SourceError(
            f"{path}, line 1: the first column must be id, found {header[:1]}; write {EXAMPLE}",
        )
    types = {}
    for column in header[1:]:
        # A column name may contain spaces, which become underscores in the field name.
        name, _, kind = re.sub(r"[\s-]+", "_", column).partition(":")
        name = name.rstrip("_")
        kind = kind.lstrip("_") or "keyword"
        if not _NAME.fullmatch(name):
            raise SourceError(
                f"{path}, line 1: {name!r} is not a valid field name; use lower-case letters, "
                "digits and _, starting with a letter",
            )
        if name in types:
            raise SourceError(f"{path}, line 1: the field {name!r} occurs twice; rename one")
        if kind not in TYPES:
            raise SourceError(
                f"{path}, line 1: unknown type {kind!r} of {name!r}; known: {', '.join(TYPES)}",
            )
        types[name] = kind
    if not types:
        raise SourceError(f"{path}, line 1: no column except id; write {EXAMPLE}")
    return types


def _unusable(cells: list[str], types: Mapping[str, FieldType]) -> str | None:
    """Return the reason why a line cannot be used at all, or None if it can."""
    if len(cells) > len(types) + 1:
        return f"{len(cells)} cells for {len(types) + 1} columns; put a cell with commas in quotes"
    if not cells[0]:
        return "the id is empty; every line needs an id"
    return check_text(cells[0])


def parse_cell(name: str, cell: str, kind: FieldType, fields: dict[str, Any]) -> None:
    """Add the values in a cell, which are separated by ``|``, to ``fields``. Raises CellError for
    text that cannot be stored, and ValueError for values of another type."""
    if fault := check_text(cell):
        raise CellError(fault)
    keep_values(name, filter(None, map(str.strip, nfc(cell).split("|"))), kind, fields)


def keep_values(
    name: str,
    texts: Iterable[str],
    kind: FieldType,
    fields: dict[str, Any],
) -> None:
    """Parse ``texts``, and add the values, if any, to ``fields``. Raises ValueError for values of
    another type."""
    values = [parse_value(text, kind) for text in texts]
    if values:
        fields[name] = values if len(values) > 1 else values[0]


def parse_value(text: str, kind: FieldType) -> Value:
    """Parse ``text`` as a value of the given type. Raises ValueError for an invalid value."""
    if kind == "integer":
        if re.fullmatch(r"[+-]?[0-9]{1,19}", text) and -(2**63) <= int(text) < 2**63:
            return int(text)
    elif kind == "float":
        if "_" not in text and math.isfinite(float(text)):
            return float(text) + 0.0  # -0.0 becomes 0.0
    elif kind == "boolean":
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
    elif kind == "date":
        return _date(text)
    elif "\0" not in text and (kind == "text" or len(text.encode()) <= LONGEST_KEYWORD):
        return text
    raise ValueError


def _period(text: str) -> tuple[str, str]:
    """Return the first and the last second of a year, month or day. For a point in time, return it
    twice. Raises ValueError if ``text`` is not a date."""
    match = _PERIOD.fullmatch(text)
    if match is None:
        return _date(text), _date(text)
    year, month, day, offset = match.groups()
    first = f"{year}-{month or '01'}-{day or '01'}"
    end = _date(first) and calendar.monthrange(int(year), int(month or 12))[1]
    last = f"{year}-{month or '12'}-{day or end}"
    return _date(f"{first}T00:00:00{offset or ''}"), _date(f"{last}T23:59:59{offset or ''}")


def _date(text: str) -> str:
    """Return a date as YYYY-MM-DDThh:mm:ss in UTC, which is also the default time zone. Fractions
    of a second are dropped."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError
    day, minutes, seconds, offset = match.groups()
    zone = "+00:00" if offset in (None, "Z") else offset
    local = f"{day}T{minutes or '00:00'}{seconds or ':00'}{zone}"
    try:
        moment = datetime.fromisoformat(local).astimezone(timezone.utc)
    except OverflowError:  # the year is outside 1 to 9999
        raise ValueError from None
    return moment.replace(tzinfo=None).isoformat(timespec="seconds")


def _known(types: Mapping[str, FieldType]) -> str:
    """Return a phrase for error messages that lists the fields of an index."""
    names = ", ".join(sorted(set(types) - FOR_PROGRAMS))
    return f"it has: {names}" if names else "it was built without metadata"
