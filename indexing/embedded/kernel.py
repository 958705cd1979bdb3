"""Find the best rows for queries in one native call, which reads the posting lists of all parts and
then computes products with stored vectors.

``_search.c`` releases the GIL. If the native module is not compiled, callers perform the same steps
with NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boc.plan import Plan
from boc.types import QueryCode, TermMatrix
from boc.vectors import Array, Doubles, Floats, Ints, are_plain

try:
    from . import _search
except ImportError:  # the package was installed without a C compiler
    _search = None  # type: ignore[assignment]

BLOCK = 65536  # number of rows per block of posting lists
CODES = 64  # number of cached query codes, one per query modality and budget

Arrays: TypeAlias = tuple[Array | None, ...]
"""Arrays of a part: starts, rows, frequencies and peaks of the posting lists; mask; bytes and
offsets of the ids; vectors or None."""


class TopRows(NamedTuple):
    """Best rows of n queries, sorted by descending score, then by id. The buffers have ``width``
    places per query, of which ``counts[i]`` (int64) are filled for query i. They contain part
    numbers (int32), rows (int64) and scores (float64)."""

    width: int
    parts: Any
    rows: Any
    scores: Any
    counts: Any

    def lengths(self) -> list[int]:
        """Return the number of rows for each query."""
        lengths: list[int] = np.frombuffer(self.counts, np.int64).tolist()
        return lengths

    def arrays(self) -> tuple[NDArray[np.int32], Ints, Doubles]:
        """Return parts, rows and scores (n, k); row i is valid up to ``lengths()[i]``."""
        shape = len(self.lengths()), self.width
        return (
            np.frombuffer(self.parts, np.int32).reshape(shape),
            np.frombuffer(self.rows, np.int64).reshape(shape),
            np.frombuffer(self.scores).reshape(shape),
        )

    def query(
        self,
        i: int,
    ) -> tuple[NDArray[np.int32], Ints, Doubles]:
        """Return parts, rows and scores (m,) of query i."""
        count = np.frombuffer(self.counts, np.int64)[i]
        first = 8 * i * self.width
        return (
            np.frombuffer(self.parts, np.int32, count, first // 2),
            np.frombuffer(self.rows, np.int64, count, first),
            np.frombuffer(self.scores, np.float64, count, first),
        )


class Kernel:
    """Search several parts, each of which consists of arrays and a number of rows.

    ``dim`` is the dimension of the vectors, or 0 if there are no vectors. Raises ValueError if the
    arrays do not match each other.
    """

    def __init__(
        self,
        parts: Sequence[tuple[Arrays, int]],
        dim: int = 0,
        signs: Array | None = None,
    ) -> None:
        self._parts = (
            None
            if _search is None
            else _search.parts(
                tuple(parts),
                dim,
                signs,
                BLOCK,
            )
        )
        self._rows = sum(rows for _, rows in parts)
        self._code = lru_cache(CODES)(
            lambda code: _search.code(
                code.mean,
                *code.centroids,
                code.z,
                code.cells,
                code.temperature,
                code.top,
                code.kept,
            ),
        )

    def best(
        self,
        queries: TermMatrix | QueryCode,
        k: int,
        plan: Plan,
        vectors: Floats | None = None,
    ) -> tuple[TopRows, int, int] | None:
        """Return the k best rows for each query, the total number of candidates, and the number of
        queries that were compared with all rows that pass.

        If ``vectors`` (n, d) of the queries are given, rows are ranked by dot products. ``queries``
        can then be the code that computes the terms of these vectors, which must be plain
        (``boc.vectors.are_plain``). Returns None if the native module is not compiled, if a score
        could reach 2**32, or if arrays have unsupported types.
        """
        if _search is None or self._parts is None:
            return None
        k = max(1, min(k, plan.depth, self._rows))
        terms: object
        if isinstance(queries, QueryCode):
            terms = self._code(queries)
        elif queries.data.dtype != np.int32 or (
            vectors is not None and not are_plain(vectors, vectors.shape[1])
        ):
            return None
        else:
            columns = queries.indices.astype(np.int32, copy=False)
            terms = queries.indptr.astype(np.int64), columns, queries.data
        *ranked, read, compared = _search.best(
            self._parts,
            plan,
            k,
            vectors,
            terms,
        )
        return None if read < 0 else (TopRows(k, *ranked), read, compared)
