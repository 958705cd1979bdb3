"""Store n UTF-8 strings in a column, concatenated in an array of bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from boc.vectors import Ints

try:
    from . import _search
except ImportError:  # the package was installed without a C compiler
    _search = None  # type: ignore[assignment]


class Strings:
    """Column of strings, where string i is ``data[offsets[i]:offsets[i + 1]]``. If the strings are
    sorted, they can be looked up by value.

    ``data`` is uint8 and ``offsets`` is int64 (n + 1,). Both can be memory-mapped.
    """

    def __init__(self, data: NDArray[np.uint8], offsets: Ints) -> None:
        self.data = data
        self.offsets = offsets
        # Use memory views, because slicing an array is ten times as slow.
        self._bytes = data.data
        self._ends = offsets.data

    @classmethod
    def of(cls, values: Iterable[str]) -> Strings:
        encoded = [value.encode() for value in values]
        offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> str:
        return str(self._bytes[self._ends[i] : self._ends[i + 1]], "utf-8")

    def take(self, rows: Ints) -> list[str]:
        """Return the strings for the given rows, in the same order."""
        if _search is None:
            return [self[row] for row in rows.tolist()]
        return _search.strings(np.ascontiguousarray(rows, np.int64), self.data, self.offsets)

    def find(self, value: str) -> int | None:
        """Return the row of ``value`` among sorted strings, or None if there is no such row."""
        if _search is not None:
            return _search.find(value, self.data, self.offsets)
        row = bisect_left(self, value)
        return row if row < len(self) and self[row] == value else None
