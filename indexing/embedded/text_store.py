"""Read the text and metadata index of a segment from the SQLite file written by
``text_store_writer``.

Rows are numbered within the segment, starting at 0. The tables have these columns::

    words     word, documents, gaps, frequencies: the posting list of a word, with differences of
              rows, and the frequency in each row; no frequencies if all are 1
    lengths   words: the number of words of each row, (n,)
    fields    field, name, rows: the rows of all values of a metadata field, ordered by value
    edges     field, value, stop: the end of the rows of a value; strings are UTF-8

``user_version`` is 1. In files written by boc 0.3.0, it is 0, and words are not folded.

Arrays are stored as little-endian unsigned integers of the smallest type that fits the maximum
value.
"""

import sqlite3
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property, wraps
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from boc.errors import ManifestError
from boc.types import Filter
from boc.vectors import Array, Ints

from .npy_files import DAMAGED

Occurrences: TypeAlias = tuple[Ints, Array]
"""Rows that contain a word, in ascending order, and the frequency of the word in each row, both as
unsigned integers."""
T = TypeVar("T")

UNREAD = ("unable to open database file", "disk I/O error")
"""SQLite messages for SQLITE_CANTOPEN and SQLITE_IOERR, which mean that the system could not open
or read a file."""


class Lists(NamedTuple):
    """Concatenated lists for several keys (words, or values of a field) in ascending order. The
    fields are the number of rows for each key, the rows, and the frequency of the key in each
    row."""

    keys: Sequence[Any]
    counts: Ints
    rows: Ints
    frequencies: Ints


def _telling_damage(read: Callable[..., T]) -> Callable[..., T]:
    """Decorate a method to raise ManifestError for data of an unexpected type or size, because
    SQLite does not check types and sizes."""

    @wraps(read)
    def method(store: "TextStore", *arguments: Any) -> T:
        try:
            return read(store, *arguments)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise store._damage_error(error) from error

    return method


class TextStore:
    """Text and metadata index of a segment with ``n`` rows. Thread-safe. The file may be unlinked
    while it is open.

    Raises ManifestError if the file is damaged, either when it is opened or when more of it is
    read.
    """

    @_telling_damage
    def __init__(self, path: Path, n: int) -> None:
        self.path = path
        self.n = n
        self._lock = Lock()
        try:
            uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
            self._file = sqlite3.connect(
                uri,
                uri=True,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            raise self._read_error(error) from error
        weakref.finalize(self, self._file.close)
        self.folded: bool = self._read("PRAGMA user_version")[0][0] > 0
        self._width = _smallest(n - 1).itemsize
        self._fields: dict[str, tuple[int, int]] = {
            name: (field, size // self._width)
            for name, field, size in self._read("SELECT name, field, length(rows) FROM fields")
        }

    @_telling_damage
    def passing(self, condition: Filter) -> NDArray[np.bool_]:
        """Return a mask (n,) that selects the rows for which ``boc.inputs.metadata.holds`` is true.
        The field can be of any type except text."""
        mask = np.zeros(self.n, np.bool_)
        for each in condition.alternatives:
            if each.field in self._fields and each.value == each.value:
                start, stop = self._span(each)
                parameters = (
                    start * self._width + 1,
                    (stop - start) * self._width,
                    self._fields[each.field][0],
                )
                entries = self._read(
                    "SELECT substr(rows, ?, ?) FROM fields WHERE field = ?",
                    parameters,
                )
                mask[self._check_rows(_unpack(entries[0][0] or b"", self._width))] = True
        return ~mask if condition.op == "!=" else mask

    @_telling_damage
    def occurrences(self, word: str) -> Occurrences:
        """Return the rows that contain ``word``, and the frequency of the word in each row.
        ``word`` is a token from ``tokens``."""
        entries = self._read(
            "SELECT documents, gaps, frequencies FROM words WHERE word = ?",
            (word,),
        )
        if not entries:
            return np.empty(0, np.int64), np.empty(0, np.uint8)
        n, gaps, frequencies = entries[0]
        rows = self._check_rows(np.cumsum(_unpack(gaps, len(gaps) // n), dtype=np.int64))
        if not frequencies:
            return rows, np.ones(n, np.uint8)
        return rows, _unpack(frequencies, len(frequencies) // n)

    @_telling_damage
    def vocabulary(self) -> dict[str, int]:
        """Return the document frequency of each word."""
        entries = self._read("SELECT word, documents FROM words")
        return {str(word): int(n) for word, n in entries}

    @_telling_damage
    def lists(self, first: str, last: str) -> Lists:
        """Return the posting lists of the words from ``first`` to ``last``."""
        sql = (
            "SELECT word, documents, gaps, frequencies FROM words WHERE word BETWEEN ? AND ? "
            "ORDER BY word"
        )
        entries = self._read(sql, (first, last))
        documents = np.array([n for _, n, _, _ in entries], np.int64)
        if documents.min(initial=1) < 1 or documents.max(initial=1) > self.n:
            raise self._damage_error(
                f"a word is in no row, or in more than all {self.n}",
            )
        gaps = [_unpack(data, len(data) // n) for _, n, data, _ in entries]
        once = np.ones(self.n, np.uint8)
        counts = [_unpack(data, len(data) // n) if data else once[:n] for _, n, _, data in entries]
        frequencies = np.concatenate([np.zeros(0, np.int64), *counts], dtype=np.int64)
        rows = np.cumsum(np.concatenate([[0], *gaps], dtype=np.int64))
        starts = np.cumsum(documents) - documents
        rows = self._check_rows(rows[1:] - np.repeat(rows[starts], documents))
        if len(frequencies) != len(rows):
            raise ValueError(f"{len(frequencies)} frequencies of {len(rows)} rows")
        return Lists([word for word, _, _, _ in entries], documents, rows, frequencies)

    @_telling_damage
    def values(self, field: str) -> Lists:
        """Return the lists for the values of a field."""
        if field not in self._fields:
            nothing = np.zeros(0, np.int64)
            return Lists([], nothing, nothing, nothing)
        edges = self._read(
            "SELECT value, stop FROM edges WHERE field = ? ORDER BY value",
            (self._fields[field][0],),
        )
        stops = np.array([0, *(stop for _, stop in edges)], np.int64)
        counts = stops[1:] - stops[:-1]
        rows = self.rows(field)
        return Lists([value for value, _ in edges], counts, rows, np.ones_like(rows))

    def fields(self) -> list[str]:
        """Return the fields, except text fields, that have a value in at least one row."""
        return [name for name, (_, count) in self._fields.items() if count]

    @_telling_damage
    def rows(self, field: str) -> Ints:
        """Return the rows that have a value of ``field``, which must be in ``fields``. Rows with
        several values are repeated."""
        data = self._read("SELECT rows FROM fields WHERE field = ?", (self._fields[field][0],))[0][
            0
        ]
        return self._check_rows(_unpack(data or b"", self._width)).astype(np.int64)

    @cached_property
    @_telling_damage
    def lengths(self) -> Array:
        """Return the number of words in each row (n,), as unsigned integers."""
        data: bytes = self._read("SELECT words FROM lengths")[0][0]
        return _unpack(data, len(data) // self.n)

    def _span(self, condition: Filter) -> tuple[int, int]:
        """Return the start and end of the range of rows whose values satisfy the condition. For
        "!=", return the range of rows whose values do not satisfy it."""
        field, end = self._fields[condition.field]
        below = self._stop(field, "<", condition.value)
        last = condition.value if condition.last is None else condition.last
        upto = self._stop(field, "<=", last)
        spans = {"<": (0, below), "<=": (0, upto), ">": (upto, end), ">=": (below, end)}
        return spans.get(condition.op, (below, upto))

    def _stop(self, field: int, op: str, value: str | float) -> int:
        if isinstance(value, int) and abs(value) >= 1 << 63:
            value = float(value)
        sql = (
            f"SELECT ifnull((SELECT stop FROM edges WHERE field = ? AND value {op} ? "
            "ORDER BY value DESC LIMIT 1), 0)"
        )
        return int(self._read(sql, (field, encode_value(value)))[0][0])

    def _read(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        try:
            with self._lock:
                return self._file.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise self._read_error(error) from error

    def _check_rows(self, rows: Array) -> Array:
        if rows.max(initial=0) >= self.n:
            raise self._damage_error(f"a row is beyond the last of {self.n}")
        return rows

    def _read_error(self, error: sqlite3.Error) -> ManifestError:
        """Convert an SQLite error, which hides the system error, to a ManifestError."""
        if str(error) in UNREAD and self.path.exists():
            return ManifestError(
                f"{self.path}: cannot be read ({error}); this process may open no more files "
                "(ulimit -n 4096), or the disk may be failing; check that, and repeat",
            )
        return self._damage_error(error)

    def _damage_error(self, why: object) -> ManifestError:
        return ManifestError(f"{self.path}: damaged ({why})", DAMAGED)


def encode_value(value: Any) -> Any:
    """Encode strings, including lone surrogates, as bytes that sort by code point."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _smallest(largest: int) -> np.dtype[Any]:
    return np.min_scalar_type(largest).newbyteorder("<")


def pack(values: Array, largest: int) -> bytes:
    """Return integers up to ``largest`` as bytes, using the smallest type that fits."""
    return values.astype(_smallest(largest)).tobytes()


def _unpack(data: bytes, width: int) -> Array:
    return np.frombuffer(data, f"<u{width}")
