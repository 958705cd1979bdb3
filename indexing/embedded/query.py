"""Queries answered from their vectors in one call: terms, posting lists, re-ranking.

``_query.c`` does what encoding, ``EmbeddedIndex.search_ids`` and ``Rescore("dot", ...)`` do one after the other, with
the same results, and lets other threads run meanwhile. Where it was not built they do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.types import QueryCode

from .live_segments import Part
from .shortlist import Shortlist

try:
    from . import _query
except ImportError:  # installed without a C compiler
    _query = None  # type: ignore[assignment]


def planned(
    code: QueryCode, parts: Sequence[Part], masks: Sequence[NDArray[np.uint8] | None], shortlist: Shortlist | None
) -> Plan | None:
    """The plan for queries of ``code`` over ``parts``, whose masks select the rows to search; None where the
    module was not built, or the arrays are not as it needs them. ValueError for parts that do not fit each other."""
    segments = [part.segment for part in parts]
    arrays = [code.mean, *code.centroids, *(segment.vectors for segment in segments)]
    if _query is None or not all(array.flags.c_contiguous for array in arrays):
        return None
    return Plan(code, parts, masks, shortlist)


class Plan:
    """What all queries of a code over the parts of an index share. ``z`` and ``cells`` are those of the code."""

    def __init__(
        self,
        code: QueryCode,
        parts: Sequence[Part],
        masks: Sequence[NDArray[np.uint8] | None],
        shortlist: Shortlist | None,
    ) -> None:
        self._shortlist = shortlist
        self._budget = code.z, code.cells
        self._ids = [part.segment.texts["ids"] for part in parts]
        signs = None if shortlist is None else shortlist.code.signs
        taken = tuple(_arrays(part, mask, coded=signs is not None) for part, mask in zip(parts, masks, strict=True))
        self._plan = _query.plan((code.mean, *code.centroids, signs), code.temperature, code.top, taken)

    def __call__(
        self, queries: NDArray[np.float32], depth: int, ids: NDArray[np.object_], scores: NDArray[np.float32]
    ) -> bool:
        """See ``boc.plugins.Answerer``."""
        n, k = scores.shape
        parts, rows, counts = np.empty((n, k), np.int32), np.empty((n, k), np.int64), np.empty(n, np.int64)
        size = depth if self._shortlist is None else self._shortlist.size(depth, k)
        if not _query.answer(self._plan, queries, parts, rows, scores, counts, *self._budget, depth, size):
            return False
        if n == 1 or counts.min() < k:
            for i, count in enumerate(counts.tolist()):
                ids[i, :count] = self._taken(parts[i, :count], rows[i, :count])
        else:
            ids[:] = np.array(self._taken(parts.ravel(), rows.ravel()), object).reshape(n, k)
        return True

    def _taken(self, parts: NDArray[np.int32], rows: NDArray[np.int64]) -> list[str]:
        """The ids of rows of parts."""
        if len(self._ids) == 1:
            return self._ids[0].take(rows)
        found = [""] * len(rows)
        for number, ids in enumerate(self._ids):
            mine = np.flatnonzero(parts == number)
            for place, key in zip(mine.tolist(), ids.take(rows[mine]), strict=True):
                found[place] = key
        return found


def _arrays(part: Part, mask: NDArray[np.uint8] | None, *, coded: bool) -> tuple[Any, ...]:
    segment = part.segment
    lists, ids, compact = segment.postings, segment.texts["ids"], segment.compact if coded else None
    codes = (None, None) if compact is None else (compact.codes, compact.scales)
    return (
        *(lists.starts, lists.rows, lists.frequencies, lists._peaks, segment.vectors, ids.data, ids.offsets),
        *(mask, *codes),
    )
