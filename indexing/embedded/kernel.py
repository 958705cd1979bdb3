"""The best rows of queries in one native call: posting lists of some parts, then products with
stored vectors.

``_search.c`` lets other threads run meanwhile. Callers do the same in numpy where it was not built.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boc.plan import Plan
from boc.types import QueryCode, TermMatrix
from boc.vectors import are_plain

try:
    from . import _search
except ImportError:  # installed without a C compiler
    _search = None  # type: ignore[assignment]

BLOCK = 65536  # rows of a block of posting lists
SHARE = 1 << 19  # postings for which another thread pays
CODES = 64  # that are cached: of each modality of queries and budget
BATCH = 256  # queries per call; Ctrl-C works between calls
ROOM = 1 << 20  # results per call at most, if it answers several queries

Arrays: TypeAlias = tuple[NDArray[Any] | None, ...]
"""A part: starts, rows, frequencies, peaks of its posting lists; mask, bytes and offsets of ids,
vectors or None."""


class TopRows(NamedTuple):
    """The best rows of n queries, best first, of equal scores that of the smaller id: buffers of
    ``width`` places per query, of which query i fills ``counts[i]`` (int64): numbers of parts
    (int32), rows (int64) and scores (float64)."""

    width: int
    parts: Any
    rows: Any
    scores: Any
    counts: Any

    def lengths(self) -> list[int]:
        """Return how many rows each query has."""
        lengths: list[int] = np.frombuffer(self.counts, np.int64).tolist()
        return lengths

    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64]]:
        """Return parts, rows and scores (n, k), to be read up to ``lengths``."""
        shape = len(self.lengths()), self.width
        return (
            np.frombuffer(self.parts, np.int32).reshape(shape),
            np.frombuffer(self.rows, np.int64).reshape(shape),
            np.frombuffer(self.scores).reshape(shape),
        )

    def query(
        self,
        i: int,
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64]]:
        """Return parts, rows and scores (m,) of query i."""
        count = self.lengths()[i]
        parts, rows, scores = self.arrays()
        return parts[i, :count], rows[i, :count], scores[i, :count]


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
            *ranked, read, compared = _search.best(
                self._parts,
                plan,
                k,
                vectors,
                self._code(queries),
            )
            return None if read < 0 else (TopRows(k, *ranked), read, compared)
        if queries.data.dtype != np.int32 or (
            vectors is not None and not are_plain(vectors, vectors.shape[1])
        ):
            return None
        n = queries.shape[0]
        offsets = queries.indptr.astype(np.int64)
        terms = queries.indices.astype(np.int32, copy=False)

        def answer(first: int) -> tuple[Any, ...]:
            rows = None if vectors is None else vectors[first : first + step]
            lists = offsets[first : first + step + 1], terms, queries.data
            return _search.best(self._parts, plan, k, rows, lists)

        workers = 1
        if n > 1:
            lengths = (s[(terms + 1) * b] - s[terms * b] for s, b in self._starts)
            postings = sum(int(each.sum(dtype=np.int64)) for each in lengths)
            workers = max(1, min(postings // SHARE, os.cpu_count() or 1))
        step = max(1, min(-(-n // workers), BATCH, ROOM // k))
        firsts = range(0, n, step)
        if workers == 1:
            answers = list(map(answer, firsts))
        else:
            with ThreadPoolExecutor(workers) as pool:
                answers = list(pool.map(answer, firsts))
        buffers = [b"".join(answer[i] for answer in answers) for i in range(4)]
        counts = [answer[4:] for answer in answers]
        if any(read < 0 for read, _ in counts):
            return None
        read = sum(each for each, _ in counts)
        return TopRows(k, *buffers), read, sum(compared for _, compared in counts)
