"""Words and metadata values of a segment: one SQLite file, made by ``_wording`` and only read from then on.

Rows are numbered from 0, as the segment has them::

    words    word, documents, gaps, frequencies   posting list of a word: its rows, each as the difference to the one
                                                  before, and how often each has it, or nothing if all have it once
    lengths  words                                (n,) how many words each row has
    fields   field, name, rows                    metadata: the rows of all values of a field, ordered by value
    edges    field, value, stop                   where among them those of a value end; strings are UTF-8

Arrays are little-endian unsigned integers of the fewest bytes that hold the largest.
"""

from __future__ import annotations

import math
import sqlite3
import weakref
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boc.errors import ManifestError
from boc.types import Filter

from .bm25 import Occurrences

Ints: TypeAlias = NDArray[np.int64]


class Words:
    """The file of a segment of ``n`` rows. Several threads can use it, and it may be unlinked once it is open.

    ManifestError for a file that is damaged, here or when more of it is read.
    """

    def __init__(self, path: Path, n: int) -> None:
        self.path = path
        self.n = n
        self._lock = Lock()
        try:
            uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
            self._file = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise self._damaged(error) from error
        weakref.finalize(self, self._file.close)
        self._width = _smallest(n - 1).itemsize
        self._fields: dict[str, tuple[int, int]] = {
            name: (field, size // self._width)
            for name, field, size in self._read("SELECT name, field, length(rows) FROM fields")
        }

    def passing(self, condition: Filter) -> NDArray[np.bool_]:
        """(n,): the rows that ``boc.inputs.metadata.holds`` is true of. The field is of any type but text."""
        mask = np.zeros(self.n, np.bool_)
        if condition.field in self._fields and condition.value == condition.value:
            start, stop = self._span(condition)
            asked = start * self._width + 1, (stop - start) * self._width, self._fields[condition.field][0]
            found = self._read("SELECT substr(rows, ?, ?) FROM fields WHERE field = ?", asked)
            mask[self._checked(_unpacked(found[0][0] or b"", self._width))] = True
        return ~mask if condition.op == "!=" else mask

    def occurrences(self, word: str) -> Occurrences:
        """The rows that have ``word``, as ``tokens`` gives it, and how often each has it."""
        found = self._read("SELECT documents, gaps, frequencies FROM words WHERE word = ?", (word,))
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.uint8)
        n, gaps, frequencies = found[0]
        rows = self._checked(np.cumsum(_unpacked(gaps, len(gaps) // n), dtype=np.int64))
        return rows, _unpacked(frequencies, len(frequencies) // n) if frequencies else np.ones(n, np.uint8)

    def vocabulary(self) -> dict[str, int]:
        """How many rows have each word."""
        return dict(self._read("SELECT word, documents FROM words"))

    def lists(self, first: str, last: str) -> tuple[list[str], Ints, Ints, Ints]:
        """The posting lists of the words from ``first`` to ``last``, sorted by word, one list behind the other.

        The words, how many rows each has, these rows, ascending, and how often each has it.
        """
        sql = "SELECT word, documents, gaps, frequencies FROM words WHERE word BETWEEN ? AND ? ORDER BY word"
        found = self._read(sql, (first, last))
        documents = np.array([n for _, n, _, _ in found], np.int64)
        if documents.min(initial=1) < 1 or documents.max(initial=1) > self.n:
            raise self._damaged(f"a word that no row has, or more than the {self.n} that there are")
        try:
            gaps = [_unpacked(data, len(data) // n) for _, n, data, _ in found]
            once = np.ones(self.n, np.uint8)
            counts = [_unpacked(data, len(data) // n) if data else once[:n] for _, n, _, data in found]
            frequencies = np.concatenate([np.zeros(0, np.int64), *counts], dtype=np.int64)
            rows = np.cumsum(np.concatenate([[0], *gaps], dtype=np.int64))
            starts = np.cumsum(documents) - documents
            rows = self._checked(rows[1:] - np.repeat(rows[starts], documents))
            if len(frequencies) != len(rows):
                raise ValueError(f"{len(frequencies)} frequencies of {len(rows)} rows")
        except (ValueError, TypeError) as error:
            raise self._damaged(error) from error
        return [word for word, _, _, _ in found], documents, rows, frequencies

    def values(self, field: str) -> tuple[list[Any], Ints, Ints]:
        """The values of a field, ascending, the rows of all of them in this order, and where those of each end."""
        if field not in self._fields:
            return [], np.zeros(0, np.int64), np.zeros(0, np.int64)
        number = self._fields[field][0]
        edges = self._read("SELECT value, stop FROM edges WHERE field = ? ORDER BY value", (number,))
        data = self._read("SELECT rows FROM fields WHERE field = ?", (number,))[0][0]
        rows = self._checked(_unpacked(data or b"", self._width)).astype(np.int64)
        return [value for value, _ in edges], rows, np.array([stop for _, stop in edges], np.int64)

    @cached_property
    def lengths(self) -> NDArray[Any]:
        """(n,) unsigned integers: how many words each row has."""
        data: bytes = self._read("SELECT words FROM lengths")[0][0]
        return _unpacked(data, len(data) // self.n)

    def _span(self, condition: Filter) -> tuple[int, int]:
        """From where to where the rows of a field have a value as asked, or, for "!=", the one not asked for."""
        field, end = self._fields[condition.field]
        value, between = _storable(condition.value)
        upto = self._stop(field, "<=", value)
        below = upto if between else self._stop(field, "<", value)
        spans = {"<": (0, below), "<=": (0, upto), ">": (upto, end), ">=": (below, end)}
        return spans.get(condition.op, (below, upto))

    def _stop(self, field: int, op: str, value: bytes | float) -> int:
        sql = f"SELECT stop FROM edges WHERE field = ? AND value {op} ? ORDER BY value DESC LIMIT 1"
        found = self._read(sql, (field, value))
        return int(found[0][0]) if found else 0

    def _read(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        try:
            with self._lock:
                return self._file.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise self._damaged(error) from error

    def _checked(self, rows: NDArray[Any]) -> NDArray[Any]:
        if rows.max(initial=0) >= self.n:
            raise self._damaged(f"a row beyond the {self.n} that there are")
        return rows

    def _damaged(self, why: object) -> ManifestError:
        return ManifestError(f"{self.path}: damaged ({why}); make the index anew with boc index --replace")


def encoded(value: Any) -> Any:
    """Strings as bytes: of the order of their code points, and whatever they hold."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _storable(value: str | float) -> tuple[bytes | float, bool]:
    """``value`` as it would be stored, or, with True, a float below it with no storable number between the two."""
    if not isinstance(value, int) or -(2**63) <= value < 2**63:
        return encoded(value), False
    try:
        near = float(value)
    except OverflowError:
        near = math.inf if value > 0 else -math.inf
    if near == value:
        return near, False
    return (math.nextafter(near, -math.inf) if near > value else near), True


def _smallest(largest: int) -> np.dtype[Any]:
    return np.min_scalar_type(largest).newbyteorder("<")


def packed(values: NDArray[Any], largest: int) -> bytes:
    """Whole numbers up to ``largest``, in the fewest bytes that hold it."""
    return values.astype(_smallest(largest)).tobytes()


def _unpacked(data: bytes, width: int) -> NDArray[Any]:
    return np.frombuffer(data, f"<u{width}")
