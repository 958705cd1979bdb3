"""Writes the text and metadata index of a segment, by merging those of items in memory and of
other segments.

The format is described in ``text_store``. Both give the same bytes, if equal values are written in
the same way.
"""

import sqlite3
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, count, islice, repeat
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boc.errors import BackendError
from boc.types import FieldType, Item

from .bm25 import space_words
from .npy_files import spans
from .text_store import Ints, TextStore, encode_value, pack

_ValueRows: TypeAlias = "defaultdict[Any, array[int]]"

ITEMS = 1024  # items tokenized at a time
OCCURRENCES = 1 << 20  # occurrences of words sorted at a time
ROW = 32  # low bits of a key, which hold a row; the high bits hold a word or value
_SIZES = [1 << 8, 1 << 16, 1 << 32]  # from these values on, numbers take 2, 4 and 8 bytes

_SETTINGS = ("page_size = 4096", "auto_vacuum = NONE", "journal_mode = OFF", "synchronous = OFF")
_TABLES = (
    "words (word TEXT PRIMARY KEY, documents INTEGER, gaps BLOB, frequencies BLOB) WITHOUT ROWID",
    "lengths (words BLOB)",
    "fields (field INTEGER PRIMARY KEY, name TEXT, rows BLOB)",
    "edges (field INTEGER, value, stop INTEGER, PRIMARY KEY (field, value)) WITHOUT ROWID",
)


class _WordPostings(NamedTuple):
    """Posting lists of some words, concatenated: the number of rows of each, these rows
    (ascending), frequencies."""

    words: Sequence[str]
    documents: Ints
    rows: Ints
    frequencies: Ints


class _Values(NamedTuple):
    """The values of a field, ascending, the rows of all values in this order, and the end of the
    rows of each value."""

    values: Sequence[Any]
    rows: Ints
    stops: Ints


class ItemWords:
    """The text and metadata index of some items in memory, with the interface of the one in a file.

    Full text is sentences and the fields of type text; ``types`` are the types of all fields. Each
    item is read once.
    """

    def __init__(self, items: Iterable[Item], types: Mapping[str, FieldType]) -> None:
        full = [name for name, kind in types.items() if kind == "text"]
        fields: dict[str, _ValueRows] = {
            name: defaultdict(lambda: array("I")) for name in _filter_fields(types)
        }
        lines = []
        rows_and_items = enumerate(items)
        while some := list(islice(rows_and_items, ITEMS)):
            lines.append(
                space_words([" ".join(_texts(item, full)) for _, item in some]).encode(
                    "utf-8",
                    "surrogatepass",
                ),
            )
            for name, rows in fields.items():
                for row, item in some:
                    for value in _values(item, name):
                        if value == value:  # skips NaN, which equals nothing
                            rows[encode_value(value)].append(row)
        words, numbers, self.lengths = _number_words(lines)
        self._fields = fields
        order = sorted(range(len(words)), key=words.__getitem__)
        self._words = [words[i] for i in order]
        rank = np.empty(len(words), np.uint32)
        rank[order] = np.arange(len(words))
        self._ranks = rank[numbers]  # ranks of the words of all rows, row by row
        self._ends = np.cumsum(self.lengths)

    def vocabulary(self) -> dict[str, int]:
        """Return the frequency of each word."""
        frequencies = np.bincount(self._ranks, minlength=len(self._words))
        return dict(zip(self._words, frequencies.tolist(), strict=True))

    def lists(self, first: str, last: str) -> _WordPostings:
        """Return the posting lists of the words from ``first`` to ``last``."""
        low = bisect_left(self._words, first)
        high = bisect_right(self._words, last)
        places = np.flatnonzero((self._ranks >= low) & (self._ranks < high))
        keys = self._ranks[places].astype(np.int64) << ROW | np.searchsorted(
            self._ends,
            places,
            "right",
        )
        pairs, frequencies = np.unique(keys, return_counts=True)
        documents = np.bincount(pairs >> ROW, minlength=high)[low:]
        return _WordPostings(
            self._words[low:high],
            documents,
            pairs & (1 << ROW) - 1,
            frequencies,
        )

    def values(self, name: str) -> _Values:
        """Return the values of a field that can be filtered by."""
        rows = self._fields[name]
        values = sorted(rows)
        stops = np.cumsum([len(rows[value]) for value in values], dtype=np.int64)
        return _Values(
            values,
            np.fromiter(chain.from_iterable(map(rows.__getitem__, values)), np.int64),
            stops,
        )


def merge(
    path: Path,
    parts: Sequence[TextStore | ItemWords | None],
    moved: Sequence[Ints],
    n: int,
    types: Mapping[str, FieldType],
) -> bool:
    """Write the file of ``n`` rows by merging ``parts``; return False, without a file, if there is
    nothing to write.

    ``moved`` is, for each part, the new row of each of its rows, or -1 for those left out. None is
    a part without words or values. Same items, same bytes, not yet synced. BackendError if the file
    cannot be written, or for an integer beyond 64 bits.
    """
    sources = [
        (part, places) for part, places in zip(parts, moved, strict=True) if part is not None
    ]
    lengths = np.zeros(n, np.int64)
    for part, places in sources:
        kept = places >= 0
        lengths[places[kept]] = part.lengths[kept]
    fields = {name: _merged_values(sources, name) for name in _filter_fields(types)}
    if not lengths.any() and not any(len(field.rows) for field in fields.values()):
        return False
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as file:
            for setting in _SETTINGS:
                file.execute(f"PRAGMA {setting}")
            file.execute("BEGIN")
            for table in _TABLES:
                file.execute(f"CREATE TABLE {table}")
            for some in _merge_lists(sources):
                file.executemany("INSERT INTO words VALUES (?, ?, ?, ?)", _rows_of(some))
            file.execute("INSERT INTO lengths VALUES (?)", (pack(lengths, int(lengths.max())),))
            for number, (name, (values, rows, stops)) in enumerate(fields.items()):
                data = pack(rows, n - 1)
                file.execute("INSERT INTO fields VALUES (?, ?, ?)", (number, name, data))
                edges = zip(
                    repeat(number),
                    values,
                    stops.tolist(),
                    strict=False,
                )
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


def _number_words(lines: Sequence[bytes]) -> tuple[list[str], NDArray[np.uint32], Ints]:
    """Return the distinct words of blocks of lines, the numbers of all words in order, and words
    per line."""
    if not lines:
        return [], np.zeros(0, np.uint32), np.zeros(0, np.int64)
    text = b"\n".join(lines)
    known: defaultdict[bytes, int] = defaultdict(
        count().__next__,
    )  # numbered in order of occurrence
    numbers = np.fromiter(map(known.__getitem__, text.split()), np.uint32)
    codes = np.frombuffer(text, np.uint8)
    gaps = (codes == ord(" ")) | (codes == ord("\n"))
    begins = np.flatnonzero(~gaps & np.append(True, gaps[:-1])[: len(gaps)])
    ends = np.append(np.flatnonzero(codes == ord("\n")), len(codes))
    lengths = np.diff(np.searchsorted(begins, ends), prepend=0).astype(np.int64, copy=False)
    return [word.decode("utf-8", "surrogatepass") for word in known], numbers, lengths


def _filter_fields(types: Mapping[str, FieldType]) -> list[str]:
    return sorted(name for name, kind in types.items() if kind != "text")


def _texts(item: Item, full: Sequence[str]) -> Iterator[str]:
    if item.modality == "text":
        yield item.content
    for name in full:
        yield from _values(item, name)


def _values(item: Item, name: str) -> Sequence[Any]:
    values = item.fields.get(name, [])
    return values if isinstance(values, (list, tuple)) else [values]


def _merge_lists(parts: Sequence[tuple[TextStore | ItemWords, Ints]]) -> Iterator[_WordPostings]:
    """Yield the merged posting lists of all words of the parts, sorted, many words at a time."""
    counts: Counter[str] = Counter()
    for part, _ in parts:
        counts.update(part.vocabulary())
    ordered = sorted(counts)
    rank = {word: i for i, word in enumerate(ordered)}
    for first, last in spans(np.array([counts[word] for word in ordered], np.int64), OCCURRENCES):
        keys = [np.zeros(0, np.int64)]
        frequencies = [np.zeros(0, np.int64)]
        for part, moved in parts:
            words, documents, rows, weights = part.lists(ordered[first], ordered[last - 1])
            places = moved[rows]
            key = (
                np.repeat(np.array([rank[word] for word in words], np.int64) << ROW, documents)
                | places
            )
            keys.append(key[places >= 0])
            frequencies.append(weights[places >= 0])
        key = np.concatenate(keys)
        order = np.argsort(key, kind="stable")  # a stable sort merges ascending runs fast
        documents = np.bincount(key >> ROW, minlength=last)[first:]
        there = np.flatnonzero(documents)
        if len(there):
            words = [ordered[first + i] for i in there.tolist()]
            yield _WordPostings(
                words,
                documents[there],
                key[order] & (1 << ROW) - 1,
                np.concatenate(frequencies)[order],
            )


def _merged_values(parts: Sequence[tuple[TextStore | ItemWords, Ints]], name: str) -> _Values:
    sources = [(part.values(name), moved) for part, moved in parts]
    ordered = sorted(set(chain.from_iterable(values for (values, _, _), _ in sources)))
    rank = {value: i for i, value in enumerate(ordered)}
    keys = [np.zeros(0, np.int64)]
    for (values, rows, stops), moved in sources:
        ranks = np.array([rank[value] for value in values], np.int64) << ROW
        places = moved[rows]
        keys.append((np.repeat(ranks, np.diff(stops, prepend=0)) | places)[places >= 0])
    key = np.sort(np.concatenate(keys), kind="stable")
    counts = np.bincount(key >> ROW, minlength=len(ordered))
    there = np.flatnonzero(counts)
    return _Values(
        [ordered[i] for i in there.tolist()],
        key & (1 << ROW) - 1,
        np.cumsum(counts[there]),
    )


def _rows_of(lists: _WordPostings) -> Iterator[tuple[str, int, bytes, bytes]]:
    """Yield the table rows of some words, each of which occurs."""
    starts = np.cumsum(lists.documents) - lists.documents
    gaps = np.diff(lists.rows, prepend=0)
    gaps[starts] = lists.rows[starts]
    several = np.maximum.reduceat(lists.frequencies, starts) > 1
    frequencies = (
        data if some else b""
        for data, some in zip(_cut(lists.frequencies, starts), several, strict=True)
    )
    return zip(
        lists.words,
        lists.documents.tolist(),
        _cut(gaps, starts),
        frequencies,
        strict=True,
    )


def _cut(values: Ints, starts: Ints) -> list[bytes]:
    """Cut each list in ``values``, which begin at ``starts``, as bytes as narrow as its largest
    value allows."""
    ends = np.append(starts[1:], len(values))
    sizes = 1 << np.searchsorted(_SIZES, np.maximum.reduceat(values, starts), "right")
    pieces = [b""] * len(starts)
    for size in np.unique(sizes).tolist():
        data = values.astype(f"<u{size}").tobytes()
        chosen = np.flatnonzero(sizes == size)
        bounds = zip((size * starts[chosen]).tolist(), (size * ends[chosen]).tolist(), strict=True)
        for i, (begin, end) in zip(chosen.tolist(), bounds, strict=True):
            pieces[i] = data[begin:end]
    return pieces
