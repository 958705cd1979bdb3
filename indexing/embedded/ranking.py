"""Rank the rows in all parts of an index for queries, according to a plan (``boc/plan.py``).

Where possible, the native function in ``kernel.py`` finds the best rows. The Python code in this
module handles all other cases, with the same results: alignments, scores that include words, scores
of 2**32 or more, and all queries if the kernel was not built.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boc.plan import Plan, Statistics
from boc.rerank.alignment import alignment_scores
from boc.rerank.compact import CompactCode
from boc.rerank.dot import dot
from boc.types import Rescore, SearchRequest, Stages
from boc.vectors import Array, Ints

from .kernel import Arrays, Kernel, TopRows
from .live_segments import LiveSegment, read
from .npy_files import rows_of
from .postings import RowScores
from .segment import Segment


class RankedRows(NamedTuple):
    """Best rows for a query, best first, as part numbers, rows within these parts, and scores."""

    parts: NDArray[np.int32]
    rows: Ints
    scores: Array


class Ranking:
    """Rank the rows of ``parts`` that are selected by ``masks``; see ``live_segments.masks_of``."""

    def __init__(
        self,
        parts: Sequence[LiveSegment],
        masks: Sequence[NDArray[np.uint8] | None],
        dim: int,
        compact: CompactCode | None,
    ) -> None:
        self.parts = parts
        self.masks = masks
        self._dim = dim
        pairs = zip(parts, masks, strict=True)
        arrays = [(_arrays(part.segment, mask), len(part.segment)) for part, mask in pairs]
        self._kernel = Kernel(arrays, dim, None if compact is None else compact.signs)

    @cached_property
    def statistics(self) -> Statistics:
        """Return the statistics on which a plan is based."""
        segments = [part.segment for part in self.parts]
        postings = sum(len(each.postings.rows) for each in segments)
        n_terms = max((each.postings.n_terms for each in segments), default=1)
        passing = sum(map(len, self.passing_rows()))
        return Statistics(passing, sum(map(len, segments)), postings / max(1, n_terms), self._dim)

    def passing_rows(self) -> list[Ints]:
        """Return the selected rows of each part in ascending order."""
        pairs = zip(self.parts, self.masks, strict=True)
        return [rows_of(mask, len(part.segment)) for part, mask in pairs]

    def __call__(
        self,
        request: SearchRequest,
        plan: Plan,
        stages: Stages | None,
        near: TopRows | None = None,
    ) -> TopRows:
        """Return the best rows for each query. Alignments choose only from the rows ``near``."""
        rescore = request.rescore
        best = None
        if rescore is None or rescore.metric == "dot":
            vectors = None if rescore is None else rescore.queries.vectors
            best = self._kernel.best(
                request.code or request.queries,
                request.most,
                plan,
                vectors,
            )
        if best is None:
            return self._step_by_step(request, plan, stages or Stages(), near)
        ranked, candidates, compared = best
        if stages is not None:
            stages.plan = plan.way_of(compared, len(request))
            if rescore is not None:
                stages.candidates += candidates
        return ranked

    def _step_by_step(
        self,
        request: SearchRequest,
        plan: Plan,
        stages: Stages,
        near: TopRows | None,
    ) -> TopRows:
        width = max(1, min(request.most, sum(len(part.segment) for part in self.parts)))
        shape = len(request), width
        parts = np.zeros(shape, np.int32)
        rows = np.zeros(shape, np.int64)
        scores = np.zeros(shape)
        counts = np.zeros(len(request), np.int64)
        compared = 0
        for i, best in enumerate(self._candidates(request, near)):
            if request.rescore is not None:
                # Rows of each part, in ascending order.
                chosen = [
                    np.sort(best.rows[best.parts == number]) for number in range(len(self.parts))
                ]
                if near is None:
                    found = len(best.rows)
                    few = plan.are_few(found, np.diff(request.queries.indptr)[i])
                    few = few and found < min(plan.depth, self.statistics.passing)
                    # Too few candidates share a term with the query, although other rows pass the
                    # filters.
                    if few or plan.way == "all":
                        compared += 1
                        chosen = self.passing_rows()
                    stages.candidates += sum(map(len, chosen))
                best = self._rescore(chosen, request, request.rescore, i)
            counts[i] = len(best.rows)
            parts[i, : counts[i]], rows[i, : counts[i]], scores[i, : counts[i]] = best
        if near is None:
            stages.plan = plan.way_of(compared, len(request))
        return TopRows(width, parts, rows, scores, counts)

    def _candidates(self, request: SearchRequest, near: TopRows | None) -> Iterator[RankedRows]:
        """Yield the rows ``near`` each query if given, otherwise the best ``request.k`` rows
        according to the posting lists."""
        if near is None:
            plan = Plan("terms", request.k, request.k)
            best = self._kernel.best(request.queries, request.k, plan)
            if best is None:
                for i in range(len(request)):
                    yield best_of(self.parts, self._score_rows(request, i), request.k)
                return
            near = best[0]
        for i in range(len(request)):
            yield RankedRows(*near.query(i))

    def _score_rows(self, request: SearchRequest, i: int) -> list[RowScores]:
        """Return the rows of each part with scores above 0 for query i, and these scores."""
        queries = request.queries
        span = slice(queries.indptr[i], queries.indptr[i + 1])
        scored = []
        for part, mask in zip(self.parts, self.masks, strict=True):
            sums = part.segment.postings.scores(queries.indices[span], queries.data[span])
            if mask is not None:
                sums *= mask
            rows = np.flatnonzero(sums)
            scored.append((rows, sums[rows]))
        return scored

    def _rescore(
        self,
        chosen: list[Ints],
        request: SearchRequest,
        rescore: Rescore,
        i: int,
    ) -> RankedRows:
        """Return the best of the ``chosen`` rows of all parts, ranked by the vector or concept set
        of query i."""
        scored = []
        for part, rows in zip(self.parts, chosen, strict=True):
            if rescore.metric == "dot":
                scores = dot(rescore.queries.vectors[i], part.segment.vectors, rows)
            else:
                assert request.modality is not None
                assert part.segment.concepts is not None
                scores = alignment_scores(
                    rescore,
                    i,
                    part.segment.concepts,
                    request.modality,
                    rows,
                )
            scored.append((rows, scores))
        return best_of(self.parts, scored, rescore.k)


def _arrays(segment: Segment, mask: NDArray[np.uint8] | None) -> Arrays:
    ids = segment.texts["ids"]
    compact = segment.compact
    codes = (None, None) if compact is None else (compact.codes, compact.scales)
    return (*segment.postings.arrays, mask, ids.data, ids.offsets, segment.vectors, *codes)


def best_of(parts: Sequence[LiveSegment], matches: Sequence[RowScores], k: int) -> RankedRows:
    """Return the k best rows from the ``matches`` in all parts, sorted by descending score, then by
    id.

    The rows in a part are already sorted by id. Ids are read only to sort rows from several parts.
    """
    lengths = [len(rows) for rows, _ in matches]
    numbers = np.repeat(np.arange(len(matches), dtype=np.int32), lengths)
    rows = np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in matches)])
    scores = np.concatenate([np.empty(0), *(scores for _, scores in matches)])
    if k < len(rows):
        kept = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
        numbers = numbers[kept]
        rows = rows[kept]
        scores = scores[kept]
    if len(parts) == 1:
        order = np.argsort(-scores, kind="stable")[:k]
    else:
        ids = read(
            parts,
            numbers,
            rows,
            Segment.ids,
        )
        best = sorted(range(len(ids)), key=lambda at: (-scores[at], ids[at]))[:k]
        order = np.array(best, np.int64)
    return RankedRows(numbers[order], rows[order], scores[order])
