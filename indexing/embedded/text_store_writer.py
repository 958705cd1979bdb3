"""Write the text and metadata index of a segment by merging indexes of items in memory and of other
segments.

The format is described in ``text_store``. Both sources produce the same bytes if equal values are
written in the same way.
"""

import sqlite3
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, count, islice, repeat
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from boc.errors import BackendError
from boc.inputs.metadata import values_of
from boc.types import FieldType, Item
from boc.vectors import Ints

from .bm25 import space_words
from .npy_files import spans
from .text_store import Lists, TextStore, encode_value, pack

_ValueRows: TypeAlias = "defaultdict[Any, array[int]]"

ITEMS = 1024  # number of items tokenized at a time
OCCURRENCES = 1 << 20  # number of word occurrences sorted at a time
ROW = 32  # number of low bits of a key, which store a row; the high bits store a word or value
LOW = (1 << ROW) - 1

_SETTINGS = (
    "page_size = 4096",
    "auto_vacuum = NONE",
    "journal_mode = OFF",
    "synchronous = OFF",
    "user_version = 1",
)
_TABLES = (
    "words (word TEXT PRIMARY KEY, documents INTEGER, gaps BLOB, frequencies BLOB) WITHOUT ROWID",
    "lengths (words BLOB)",
    "fields (field INTEGER PRIMARY KEY, name TEXT, rows BLOB)",
    "edges (field INTEGER, value, stop INTEGER, PRIMARY KEY (field, value)) WITHOUT ROWID",
)


class ItemWords:
    """Text and metadata index of items in memory, with the same interface as ``TextStore``.

    The full text consists of sentences and text fields. ``types`` contains the types of all fields.
    Each item is read once.
    """

    def __init__(self, items: Iterable[Item], types: Mapping[str, FieldType]) -> None:
        full = [name for name, kind in types.items() if kind == "text"]
        fields: dict[str, _ValueRows] = {
            name: defaultdict(lambda: array("I")) for name in _filter_fields(types)
        }
        known: defaultdict[str, int] = defaultdict(count().__next__)
        numbers = array("I")
        lengths = array("I")
        rows_and_items = enumerate(items)
        while some := list(islice(rows_and_items, ITEMS)):
            for line in space_words([" ".join(_texts(item, full)) for _, item in some]).split("\n"):
                words = line.split()
                lengths.append(len(words))
                numbers.extend(map(known.__getitem__, words))
            for name, rows in fields.items():
                for row, item in some:
                    for value in values_of(item.fields, name):
                        if value == value:  # Skip NaN, which is not equal to itself.
                            rows[encode_value(value)].append(row)
        self.lengths: Ints = np.array(lengths, np.int64)
        self._fields = fields
        self._words = sorted(known)
        rank = np.empty(len(known), np.int64)
        rank[[known[word] for word in self._words]] = np.arange(len(known))
        rows_of_words = np.repeat(np.arange(len(lengths)), self.lengths)
        self._keys, self._frequencies = np.unique(
            rank[np.array(numbers)] << ROW | rows_of_words,
            return_counts=True,
        )

    def vocabulary(self) -> dict[str, int]:
        """Return the document frequency of each word."""
        counts = np.bincount(self._keys >> ROW, minlength=len(self._words))
        return dict(zip(self._words, counts.tolist(), strict=True))

    def lists(self, first: str, last: str) -> Lists:
        """Return the posting lists of the words from ``first`` to ``last``."""
        low = bisect_left(self._words, first)
        high = bisect_right(self._words, last)
        span = slice(*np.searchsorted(self._keys, [low << ROW, high << ROW]))
        keys = self._keys[span]
        return Lists(
            self._words[low:high],
            np.bincount(keys >> ROW, minlength=high)[low:],
            keys & LOW,
            self._frequencies[span],
        )

    def values(self, name: str) -> Lists:
        """Return the lists for the values of a filterable field."""
        rows = self._fields[name]
        values = sorted(rows)
        joined = np.fromiter(chain.from_iterable(map(rows.__getitem__, values)), np.int64)
        counts = np.array([len(rows[value]) for value in values], np.int64)
        return Lists(values, counts, joined, np.ones_like(joined))


def merge(
    path: Path,
    parts: Sequence[TextStore | ItemWords | None],
    moved: Sequence[Ints],
    n: int,
    types: Mapping[str, FieldType],
) -> bool:
    """Merge ``parts`` into a file for ``n`` rows. Return False, without writing a file, if the
    parts have no words or values.

    For each part, ``moved`` contains the new row numbers of its rows, or -1 for rows to leave out.
    A part without words or values is None. The same items always produce the same bytes. The file
    is not synced to disk. Raises BackendError if the file cannot be written, or if an integer has
    more than 64 bits.
    """
    sources = [
        (part, places) for part, places in zip(parts, moved, strict=True) if part is not None
    ]
    lengths = np.zeros(n, np.int64)
    for part, places in sources:
        kept = places >= 0
        lengths[places[kept]] = part.lengths[kept]
    fields = {
        name: _join([(part.values(name), places) for part, places in sources])
        for name in _filter_fields(types)
    }
    if not lengths.any() and not any(field.keys for field in fields.values()):
        return False
    vocabulary: Counter[str] = Counter()
    for part, _ in sources:
        vocabulary.update(part.vocabulary())
    words = sorted(vocabulary)
    documents = np.array([vocabulary[word] for word in words], np.int64)
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as file:
            for setting in _SETTINGS:
                file.execute(f"PRAGMA {setting}")
            file.execute("BEGIN")
            for table in _TABLES:
                file.execute(f"CREATE TABLE {table}")
            for first, last in spans(documents, OCCURRENCES):
                lists = [
                    (part.lists(words[first], words[last - 1]), places) for part, places in sources
                ]
                file.executemany("INSERT INTO words VALUES (?, ?, ?, ?)", _rows_of(_join(lists)))
            file.execute("INSERT INTO lengths VALUES (?)", (pack(lengths, int(lengths.max())),))
            for number, (name, field) in enumerate(fields.items()):
                data = pack(field.rows, n - 1)
                file.execute("INSERT INTO fields VALUES (?, ?, ?)", (number, name, data))
                stops = np.cumsum(field.counts).tolist()
                edges = zip(repeat(number), field.keys, stops, strict=False)
                file.executemany("INSERT INTO edges VALUES (?, ?, ?)", edges)
            file.execute("COMMIT")
    except OverflowError as error:
        raise BackendError(
            "a metadata value is beyond 64 bits; give it as a float or a keyword",
        ) from error
    except sqlite3.Error as error:
        raise BackendError(
            f"{path}: cannot be written ({error})",
            "choose another place with <--at>",
        ) from error
    return True


def _filter_fields(types: Mapping[str, FieldType]) -> list[str]:
    return sorted(name for name, kind in types.items() if kind != "text")


def _texts(item: Item, full: Sequence[str]) -> Iterator[str]:
    if item.modality == "text":
        yield item.content
    for name in full:
        yield from values_of(item.fields, name)


def _join(parts: Sequence[tuple[Lists, Ints]]) -> Lists:
    """Merge the lists of several parts, each given with the new numbers of its rows. Keys without
    rows are dropped."""
    ordered = sorted(set(chain.from_iterable(lists.keys for lists, _ in parts)))
    rank = {key: i for i, key in enumerate(ordered)}
    keys = [np.zeros(0, np.int64)]
    frequencies = [np.zeros(0, np.int64)]
    for lists, moved in parts:
        places = moved[lists.rows]
        ranks = np.array([rank[key] for key in lists.keys], np.int64) << ROW
        keys.append((np.repeat(ranks, lists.counts) | places)[places >= 0])
        frequencies.append(lists.frequencies[places >= 0])
    joined = np.concatenate(keys)
    order = np.argsort(joined, kind="stable")  # a stable sort is fast for ascending runs
    counts = np.bincount(joined >> ROW, minlength=len(ordered))
    there = np.flatnonzero(counts)
    return Lists(
        [ordered[i] for i in there.tolist()],
        counts[there],
        joined[order] & LOW,
        np.concatenate(frequencies)[order],
    )


def _rows_of(lists: Lists) -> Iterator[tuple[str, int, bytes, bytes]]:
    """Yield the table rows for all words that occur at least once."""
    starts = np.cumsum(lists.counts) - lists.counts
    gaps = np.diff(lists.rows, prepend=0)
    gaps[starts] = lists.rows[starts]
    several = np.maximum.reduceat(lists.frequencies, starts) > 1
    cut = zip(_cut(lists.frequencies, starts), several, strict=True)
    frequencies = (data if some else b"" for data, some in cut)
    return zip(lists.keys, lists.counts.tolist(), _cut(gaps, starts), frequencies, strict=True)


def _cut(values: Ints, starts: Ints) -> Iterator[bytes]:
    """Yield each list in ``values`` as bytes, using the smallest type that fits the maximum of the
    list. ``starts`` contains the start of each list."""
    widths = 1 << np.searchsorted([1 << 8, 1 << 16], np.maximum.reduceat(values, starts), "right")
    data = {width: values.astype(f"<u{width}").tobytes() for width in (1, 2, 4)}
    ends = np.append(starts[1:], len(values))
    for width, begin, end in zip(widths.tolist(), starts.tolist(), ends.tolist(), strict=False):
        yield data[width][begin * width : end * width]
