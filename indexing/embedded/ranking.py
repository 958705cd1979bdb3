"""The best rows of queries over all parts of an index.

The native call of ``kernel.py`` finds them where it applies. Everything else is done here step by
step, with the same results: alignments, scores that count words, scores of 2**32 and more, and all
queries where it was not built.

A request whose budgets nobody gave by hand is planned. Where few rows pass its conditions, all are
compared with the query, which is as quick as reading posting lists, and exact. Where more pass and
fewer candidates than ``_enough`` share a term with the query, all are compared too, by compact
codes first: what passes a filter may lie far from the query, and then shares few terms with it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boc.rerank.alignment import alignment_scores
from boc.rerank.dot import dot
from boc.types import Modality, Rescore, SearchRequest, Stages

from .kernel import Arrays, Kernel, TopRows
from .live_segments import LiveSegment, read
from .postings import RowScores
from .segment import Segment, take_sets
from .shortlist import Shortlist

SCANNED = 2_500_000
"""Components of all vectors that pass, up to which they are compared: it costs as posting lists of
recall .98."""

Matching: TypeAlias = Callable[[str], list[RowScores]]
"""The rows of each part that share a word with a text."""


class RankedRows(NamedTuple):
    """The best rows of one query, best first: numbers of parts, rows of these, and scores."""

    parts: NDArray[np.int32]
    rows: NDArray[np.int64]
    scores: NDArray[Any]


class Ranking:
    """Ranks the rows of ``parts`` that ``masks`` select, see ``live_segments.masks_of``."""

    def __init__(
        self,
        parts: Sequence[LiveSegment],
        masks: Sequence[NDArray[np.uint8] | None],
        dim: int,
        shortlist: Shortlist | None,
        scanned: int = SCANNED,
    ) -> None:
        self.parts = parts
        self.masks = masks
        self._shortlist = shortlist
        self._few = max(
            1,
            scanned // max(1, dim),
        )  # rows that pass, up to which a planned request compares all
        pairs = list(zip(parts, masks, strict=True))
        arrays = [(self._arrays(part, mask), len(part.segment)) for part, mask in pairs]
        self._kernel = Kernel(arrays, dim, None if shortlist is None else shortlist.code.signs)

    def _arrays(self, part: LiveSegment, mask: NDArray[np.uint8] | None) -> Arrays:
        segment = part.segment
        ids = part.segment.texts["ids"]
        compact = None if self._shortlist is None else segment.compact
        codes = (None, None) if compact is None else (compact.codes, compact.scales)
        return (*segment.postings.arrays, mask, ids.data, ids.offsets, segment.vectors, *codes)

    def __call__(
        self,
        request: SearchRequest,
        matching: Matching,
        stages: Stages | None,
    ) -> TopRows:
        """Return the best rows of all queries. ``matching`` is called if the request counts
        words."""
        begun = perf_counter()
        rescore = request.rescore
        best = None
        if request.words is None and (rescore is None or rescore.metric == "dot"):
            vectors = None if rescore is None else rescore.queries.vectors
            queries = request.code or request.queries
            usual = self._usual if request.filters else 0.0
            plan = (
                (self._few, request.most, usual) if request.planned and rescore is not None else ()
            )
            best = self._kernel.best(
                queries,
                request.most,
                request.k,
                vectors,
                self._size(request),
                *plan,
            )
        if best is None:
            return self._step_by_step(request, matching, Stages() if stages is None else stages)
        ranked, candidates = best
        if stages is not None:
            stages.took("postings_ms", begun)
            if rescore is not None:
                stages.candidates += candidates
                stages.rerank_ms = None
        return ranked

    def _size(self, request: SearchRequest) -> int | None:
        """Return the number of candidates whose vectors are read; None for all."""
        short = self._shortlist
        asked = request.rescore
        return (
            None
            if short is None or asked is None or request.modality is None
            else short.size(request.k, asked.k)
        )

    @cached_property
    def _usual(self) -> float:
        """The mean number of rows that pass in a posting list, if what passes is spread over all
        lists."""
        segments = [part.segment for part in self.parts]
        n_terms = max((each.postings.n_terms for each in segments), default=1)
        postings = sum(len(each.postings.rows) for each in segments)
        rows = sum(map(len, segments))
        return postings / max(1, n_terms) * self.passing / max(1, rows)

    @cached_property
    def passing(self) -> int:
        """The number of rows that pass."""
        pairs = zip(self.parts, self.masks, strict=True)
        return sum(
            len(part.segment) if mask is None else int(np.count_nonzero(mask))
            for part, mask in pairs
        )

    def _enough(self, request: SearchRequest, i: int) -> int:
        """Return the number of candidates of query i below which a planned request compares all
        rows that pass: its hits; under filters half of what is usual for its terms, since the
        nearest of all may lie elsewhere."""
        if not request.filters:
            return request.most
        terms = int(request.queries.indptr[i + 1] - request.queries.indptr[i])
        return max(request.most, min(request.k, int(self._usual * terms / 2)))

    def _step_by_step(self, request: SearchRequest, matching: Matching, stages: Stages) -> TopRows:
        width = max(1, min(request.most, sum(len(part.segment) for part in self.parts)))
        ranked = TopRows.empty(len(request), width)
        begun = perf_counter()
        for i, best in enumerate(self._candidates(request, matching)):
            begun = stages.took("postings_ms", begun)
            if request.rescore is not None:
                best, size = self._plan(best, request, request.rescore, i)
                stages.candidates += len(best.rows)
                best = self._rescore(best, request, request.rescore, i, size)
                begun = stages.took("rerank_ms", begun)
            count = ranked.counts[i] = len(best.rows)
            ranked.parts[i, :count], ranked.rows[i, :count], ranked.scores[i, :count] = best
        return ranked

    def _candidates(self, request: SearchRequest, matching: Matching) -> Iterator[RankedRows]:
        """Yield the best ``request.k`` rows of each query by posting lists, and by words if they
        count."""
        best = (
            self._kernel.best(request.queries, request.k, request.k)
            if request.words is None
            else None
        )
        if best is not None:
            ranked, _ = best
            for i, count in enumerate(ranked.counts.tolist()):
                yield RankedRows(
                    ranked.parts[i, :count],
                    ranked.rows[i, :count],
                    ranked.scores[i, :count],
                )
            return
        for i in range(len(request)):
            yield best_of(self.parts, self._score_rows(request, matching, i), request.k)

    def _score_rows(self, request: SearchRequest, matching: Matching, i: int) -> list[RowScores]:
        """Return the rows of each part with a score above 0 for query i, and their scores."""
        queries = request.queries
        words = request.words
        span = slice(queries.indptr[i], queries.indptr[i + 1])
        by_words = None if words is None else matching(words.texts[i])
        scored = []
        for number, (part, mask) in enumerate(zip(self.parts, self.masks, strict=True)):
            joint = part.segment.postings.scores(queries.indices[span], queries.data[span])
            if words is not None and by_words is not None:
                rows, scores = by_words[number]
                shared = joint[rows] > 0
                joint[rows[shared]] += words.weight * scores[shared]
            rows = np.flatnonzero(joint if mask is None else joint * mask)
            scored.append((rows, joint[rows]))
        return scored

    def _plan(
        self,
        candidates: RankedRows,
        request: SearchRequest,
        rescore: Rescore,
        i: int,
    ) -> tuple[RankedRows, int | None]:
        """Return the candidates of query i, of a planned request perhaps all rows that pass, or for
        an alignment also those of the best products; and the number of them whose vectors are read,
        None for all."""
        size = self._size(request)
        count = self.passing
        few = self._few if rescore.metric == "dot" else request.k
        if not request.planned or (
            count > few and len(candidates.rows) >= min(count, self._enough(request, i))
        ):
            return candidates, size
        masked = zip(self.parts, self.masks, strict=True)
        chosen = [
            np.arange(len(part.segment)) if mask is None else np.flatnonzero(mask)
            for part, mask in masked
        ]
        numbers = np.repeat(np.arange(len(self.parts), dtype=np.int32), list(map(len, chosen)))
        passing = RankedRows(
            numbers,
            np.concatenate([np.empty(0, np.int64), *chosen]),
            np.zeros(count),
        )
        if rescore.metric == "dot" or count <= few:
            return passing, None if count <= few or size is None else request.k
        near = self._rescore(passing, request, replace(rescore, metric="dot", k=request.k), i, None)
        pairs = np.stack(
            [np.append(candidates.parts, near.parts), np.append(candidates.rows, near.rows)],
        )
        parts, rows = np.unique(pairs, axis=1)
        return RankedRows(parts.astype(np.int32), rows, np.zeros(len(rows))), None

    def _rescore(
        self,
        candidates: RankedRows,
        request: SearchRequest,
        rescore: Rescore,
        i: int,
        size: int | None,
    ) -> RankedRows:
        """Return the best candidates of query i by its vector or concept set; at most ``size``
        vectors are read."""
        chosen = [
            np.sort(candidates.rows[candidates.parts == number])
            for number in range(len(self.parts))
        ]
        pairs = list(zip(self.parts, chosen, strict=True))
        if rescore.metric != "dot":
            assert request.modality is not None
            aligned = [
                (rows, _align(rescore, i, part, rows, request.modality)) for part, rows in pairs
            ]
            return best_of(self.parts, aligned, rescore.k)
        query = rescore.queries.vectors[i]
        if self._shortlist is not None and size is not None and len(candidates.rows) > size:
            estimated = [
                (rows, self._shortlist.estimates(query, part, rows)) for part, rows in pairs
            ]
            short = best_of(self.parts, estimated, size)
            pairs = [
                (part, np.sort(short.rows[short.parts == number]))
                for number, part in enumerate(self.parts)
            ]
        return best_of(
            self.parts,
            [(rows, dot(query, part.segment.vectors, rows)) for part, rows in pairs],
            rescore.k,
        )


def _align(
    rescore: Rescore,
    i: int,
    part: LiveSegment,
    rows: NDArray[np.int64],
    modality: Modality,
) -> NDArray[np.float32]:
    assert part.segment.concepts is not None
    return alignment_scores(rescore, i, take_sets(part.segment.concepts, rows), modality)


def best_of(parts: Sequence[LiveSegment], matches: Sequence[RowScores], k: int) -> RankedRows:
    """Return the k best rows by (-score, id) of the ``matches`` in each part.

    Rows of a part are ordered by id; ids are read only to order rows of several parts.
    """
    lengths = [len(rows) for rows, _ in matches]
    numbers = np.repeat(np.arange(len(matches), dtype=np.int32), lengths)
    rows = np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in matches)])
    scores = np.concatenate([scores for _, scores in matches]) if matches else np.empty(0)
    if k < len(rows):
        kept = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
        numbers = numbers[kept]
        rows = rows[kept]
        scores = scores[kept]
    if len(parts) == 1:
        order = np.argsort(-scores, kind="stable")[:k]
    else:
        ids = read(parts, numbers, rows, Segment.ids)
        order = np.array(
            sorted(range(len(ids)), key=lambda at: (-scores[at], ids[at]))[:k],
            np.int64,
        )
    return RankedRows(numbers[order], rows[order], scores[order])
