"""The best rows of queries in one native call: posting lists of some parts, then products with
stored vectors.

``_search.c`` lets other threads run meanwhile. Callers do the same in numpy where it was not built.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from boc.plan import Plan
from boc.types import QueryCode, TermMatrix
from boc.vectors import are_plain

try:
    from . import _search
except ImportError:  # installed without a C compiler
    _search = None  # type: ignore[assignment]

T = TypeVar("T")

BLOCK = 65536  # rows of a block of posting lists
SHARE = 1 << 19  # postings for which another thread pays
CODES = 16  # that are cached: of each modality of queries and budget
BATCH = 256  # queries per call; Ctrl-C works between calls
ROOM = 1 << 20  # results per call at most, if it answers several queries

Arrays: TypeAlias = tuple[NDArray[Any] | None, ...]
"""A part: starts, rows, frequencies, peaks of its posting lists; mask, bytes and offsets of ids,
vectors or None."""


class TopRows(NamedTuple):
    """The best rows of n queries: the first ``counts[i]`` of row i of ``parts`` (numbers of parts),
    ``rows`` and ``scores``, all (n, k), best first, of equal scores that of the smaller id."""

    parts: NDArray[np.int32]
    rows: NDArray[np.int64]
    scores: NDArray[np.float64]
    counts: NDArray[np.int64]

    @classmethod
    def empty(cls, n: int, k: int) -> TopRows:
        """Room for the results of n queries."""
        return cls(
            np.empty((n, k), np.int32),
            np.empty((n, k), np.int64),
            np.empty((n, k)),
            np.empty(n, np.int64),
        )

    def flat(self) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64]]:
        """Return parts, rows and scores (m,) of all queries, query by query."""
        if len(self.counts) == 1:
            count = int(self.counts[0])
            return self.parts[0, :count], self.rows[0, :count], self.scores[0, :count]
        return self.parts[self.there], self.rows[self.there], self.scores[self.there]

    @property
    def there(self) -> NDArray[np.bool_]:
        """Mark the entries that are results (n, k)."""
        marks: NDArray[np.bool_] = np.arange(self.rows.shape[1]) < self.counts[:, None]
        return marks

    def split(self, values: list[T]) -> list[list[T]]:
        """Return one list per query of ``values``, which are in the order of ``flat``."""
        if len(self.counts) == 1:
            return [values]
        ends = np.cumsum(self.counts).tolist()
        return [
            values[end - count : end] for end, count in zip(ends, self.counts.tolist(), strict=True)
        ]


class Kernel:
    """Answers queries over some parts, each given by its arrays and its number of rows.

    ``dim`` is the width of the vectors, 0 if there are none. ValueError for arrays that do not fit
    each other.
    """

    def __init__(
        self,
        parts: Sequence[tuple[Arrays, int]],
        dim: int = 0,
        signs: NDArray[Any] | None = None,
    ) -> None:
        self._parts = None if _search is None else _search.parts(tuple(parts), dim, signs, BLOCK)
        self._starts: list[Any] = [(arrays[0], max(1, -(-rows // BLOCK))) for arrays, rows in parts]
        self._rows = sum(rows for _, rows in parts)
        self._code = lru_cache(CODES)(
            lambda code: _search.code(
                code.mean,
                *code.centroids,
                code.z,
                code.cells,
                code.temperature,
                code.top,
            ),
        )

    def best(
        self,
        queries: TermMatrix | QueryCode,
        k: int,
        plan: Plan,
        vectors: NDArray[np.float32] | None = None,
    ) -> tuple[TopRows, int, int] | None:
        """Return the k best rows of each query, the number of all candidates, and of the queries
        that were compared with all rows that pass.

        With ``vectors`` (n, d) of the queries they are ranked by dot products; ``queries`` may then
        be the code that makes terms of these, which are plain (``boc.vectors.are_plain``). None if
        it was not built, if a score may be 2**32 or more, or for arrays of other types.
        """
        if _search is None or self._parts is None:
            return None
        k = max(1, min(k, plan.depth, self._rows))
        if isinstance(queries, QueryCode):
            assert vectors is not None
            ranked = TopRows.empty(len(vectors), k)
            answered = _search.best(self._parts, plan, ranked, vectors, self._code(queries))
            return None if answered[0] < 0 else (ranked, *answered)
        if queries.data.dtype != np.int32 or (
            vectors is not None and not are_plain(vectors, vectors.shape[1])
        ):
            return None
        n = queries.shape[0]
        ranked = TopRows.empty(n, k)
        offsets = queries.indptr.astype(np.int64)
        terms = queries.indices.astype(np.int32, copy=False)

        def answer(first: int) -> tuple[int, int]:
            some = slice(first, first + step)
            out = tuple(array[some] for array in ranked)
            rows = None if vectors is None else vectors[some]
            lists = offsets[first : first + step + 1], terms, queries.data
            return _search.best(self._parts, plan, out, rows, lists)

        workers = 1
        if n > 1:
            lengths = (s[(terms + 1) * b] - s[terms * b] for s, b in self._starts)
            postings = sum(int(each.sum(dtype=np.int64)) for each in lengths)
            workers = max(1, min(postings // SHARE, os.cpu_count() or 1))
        step = max(1, min(-(-n // workers), BATCH, ROOM // k))
        firsts = range(0, n, step)
        if workers == 1:
            counts = list(map(answer, firsts))
        else:
            with ThreadPoolExecutor(workers) as pool:
                counts = list(pool.map(answer, firsts))
        if any(read < 0 for read, _ in counts):
            return None
        return ranked, sum(read for read, _ in counts), sum(compared for _, compared in counts)
