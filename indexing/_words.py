"""Words and metadata values of a segment: one SQLite file, written once and only read from then on.

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
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from itertools import accumulate, chain, count, islice, pairwise
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boc.errors import BackendError, ManifestError
from boc.types import FieldType, Filter, Item

from ._bm25 import Occurrences, tokens_of

_Rows: TypeAlias = "defaultdict[Any, array[int]]"

ITEMS = 1024  # whose words are found at a time
OCCURRENCES = 1 << 20  # of words, sorted at a time

_SETTINGS = ("page_size = 4096", "auto_vacuum = NONE", "journal_mode = OFF", "synchronous = OFF")
_TABLES = (
    "words (word TEXT PRIMARY KEY, documents INTEGER, gaps BLOB, frequencies BLOB) WITHOUT ROWID",
    "lengths (words BLOB)",
    "fields (field INTEGER PRIMARY KEY, name TEXT, rows BLOB)",
    "edges (field INTEGER, value, stop INTEGER, PRIMARY KEY (field, value)) WITHOUT ROWID",
)


def write(path: Path, items: Sequence[Item], types: Mapping[str, FieldType]) -> bool:
    """Make the file of ``items``, whose fields are of ``types``; False, and no file, if there is nothing to write.

    Full text is sentences and the fields of type text. The same items give the same bytes, not yet synced; each is
    looked at once. BackendError if the file cannot be written, or for an integer beyond 64 bits.
    """
    full = [name for name, kind in types.items() if kind == "text"]
    fields = {name: _rows() for name in sorted(types) if name not in full}
    numbers: defaultdict[str, int] = defaultdict(count().__next__)  # of the words, as they come
    words, lengths = array("I"), array("I")
    rows_and_items = enumerate(items)
    while some := list(islice(rows_and_items, ITEMS)):
        found = tokens_of([" ".join(_texts(item, full)) for _, item in some])
        lengths.extend(map(len, found))
        words.extend(map(numbers.__getitem__, chain.from_iterable(found)))
        for name, rows in fields.items():
            for row, item in some:
                for value in _values(item, name):
                    if value == value:  # NaN equals nothing
                        rows[_encoded(value)].append(row)
    if not words and not any(fields.values()):
        return False
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as file:
            for setting in _SETTINGS:
                file.execute(f"PRAGMA {setting}")
            file.execute("BEGIN")
            for table in _TABLES:
                file.execute(f"CREATE TABLE {table}")
            file.executemany("INSERT INTO words VALUES (?, ?, ?, ?)", _posting_lists(numbers, words, lengths))
            file.execute("INSERT INTO lengths VALUES (?)", (_packed(np.array(lengths), max(lengths)),))
            for number, (name, rows) in enumerate(fields.items()):
                values = sorted(rows)
                ordered = np.fromiter(chain.from_iterable(rows[value] for value in values), np.int64)
                stops = accumulate(len(rows[value]) for value in values)
                file.execute("INSERT INTO fields VALUES (?, ?, ?)", (number, name, _packed(ordered, len(items) - 1)))
                edges = ((number, value, stop) for value, stop in zip(values, stops, strict=True))
                file.executemany("INSERT INTO edges VALUES (?, ?, ?)", edges)
            file.execute("COMMIT")
    except OverflowError as error:
        raise BackendError("a metadata value is beyond 64 bits; give it as a float or a keyword") from error
    except sqlite3.Error as error:
        raise BackendError(f"{path}: cannot be written ({error}); choose another place with --at") from error
    return True


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
        """(n,): the rows that ``boc.metadata.holds`` is true of. The field is of any type but text."""
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


def _rows() -> _Rows:
    """What takes the rows of each word or value."""
    return defaultdict(lambda: array("I"))


def _texts(item: Item, full: Sequence[str]) -> Iterator[str]:
    if item.modality == "text":
        yield item.content
    for name in full:
        yield from _values(item, name)


def _values(item: Item, name: str) -> Sequence[Any]:
    found = item.fields.get(name, [])
    return found if isinstance(found, (list, tuple)) else [found]


def _posting_lists(
    numbers: Mapping[str, int], words: array[int], lengths: array[int]
) -> Iterator[tuple[str, int, bytes, bytes]]:
    """Of each word, sorted: how many rows have it, the gaps between them, and how often each has it.

    ``words`` are the numbers of the words of all rows, ``lengths`` of each, one row behind the other.
    """
    ordered, ends = sorted(numbers), np.cumsum(lengths)
    rank = np.empty(len(ordered), np.uint32)
    rank[[numbers[word] for word in ordered]] = np.arange(len(ordered))
    ranks = rank[words]
    before = np.concatenate([[0], np.cumsum(np.bincount(ranks, minlength=len(ordered)))])
    first = 0
    while first < len(ordered):
        last = max(first + 1, int(np.searchsorted(before, before[first] + OCCURRENCES, "right")) - 1)
        places = np.flatnonzero((ranks >= first) & (ranks < last))
        rows = np.searchsorted(ends, places, "right")
        yield from zip(ordered[first:last], *_lists(ranks[places].astype(np.int64) - first, rows), strict=True)
        first = last


def _lists(words: NDArray[np.int64], rows: NDArray[np.int64]) -> tuple[list[int], list[bytes], list[bytes]]:
    """Of words 0, 1, ..., each of which occurs, what is stored; ``words`` and ``rows`` (n,) of each occurrence."""
    width = int(rows.max()) + 1
    pairs, frequencies = np.unique(words * width + rows, return_counts=True)
    rows, starts = pairs % width, np.searchsorted(pairs, np.arange(int(words.max()) + 1) * width)
    gaps = np.diff(rows, prepend=0)
    gaps[starts] = rows[starts]
    widest, most = np.maximum.reduceat(gaps, starts).tolist(), np.maximum.reduceat(frequencies, starts).tolist()
    spans = list(pairwise([*starts.tolist(), len(pairs)]))
    packed_gaps = [_packed(gaps[i:j], gap) for (i, j), gap in zip(spans, widest, strict=True)]
    packed = [b"" if f == 1 else _packed(frequencies[i:j], f) for (i, j), f in zip(spans, most, strict=True)]
    return [j - i for i, j in spans], packed_gaps, packed


def _encoded(value: Any) -> Any:
    """Strings as bytes: of the order of their code points, and whatever they hold."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _storable(value: str | float) -> tuple[bytes | float, bool]:
    """``value`` as it would be stored, or, with True, a float below it with no storable number between the two."""
    if not isinstance(value, int) or -(2**63) <= value < 2**63:
        return _encoded(value), False
    try:
        near = float(value)
    except OverflowError:
        near = math.inf if value > 0 else -math.inf
    if near == value:
        return near, False
    return (math.nextafter(near, -math.inf) if near > value else near), True


def _smallest(largest: int) -> np.dtype[Any]:
    return np.min_scalar_type(largest).newbyteorder("<")


def _packed(values: NDArray[Any], largest: int) -> bytes:
    return values.astype(_smallest(largest)).tobytes()


def _unpacked(data: bytes, width: int) -> NDArray[Any]:
    return np.frombuffer(data, f"<u{width}")
