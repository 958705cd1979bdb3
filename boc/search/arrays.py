"""Ids and scores of many queries as arrays, without the content of hits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boc.types import Embeddings, Filter, Modality, Stages
from boc.vectors import are_plain

if TYPE_CHECKING:
    from boc.plugins import Answerer
    from boc.search.options import SearchOptions
    from boc.search.searcher import Searcher

BLOCK = 256  # queries per call of the engine
PLANS = 16  # kinds of queries whose plans are cached

Found: TypeAlias = tuple[NDArray[np.object_], NDArray[np.float32]]


class ArraySearch:
    """Answers queries with arrays of ids and scores: in one call of the engine if it can, else step by step."""

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher
        self._dim = searcher.index.manifest.identity.dim
        self._planned = lru_cache(PLANS)(self._plan)
        self._pool = lru_cache(1)(ThreadPoolExecutor)  # its threads wait for the next batch

    def __call__(self, queries: Embeddings, options: SearchOptions, threads: int) -> Found:
        """Ids (n, k), None where there are fewer, and scores float32 (n, k), -inf there; see ``search_arrays``."""
        n, k = len(queries), options.k
        ids, scores = np.empty((n, k), object), np.full((n, k), -np.inf, np.float32)
        target, depth = self._searcher.target(options.find), self._searcher.depth(options)
        answerer = self._answerer(queries, options, target)

        def answer(first: int, last: int) -> None:
            vectors, rows = queries.vectors[first:last], slice(first, last)
            if answerer is None or not answerer(vectors, depth, ids[rows], scores[rows]):
                self._step_by_step(queries, options, target, range(first, last), ids, scores)

        size = max(1, min(BLOCK, math.ceil(n / threads)))
        if n <= size:
            answer(0, n)
            return ids, scores
        firsts = range(0, n, size)
        list(self._pool(threads).map(answer, firsts, (min(first + size, n) for first in firsts)))
        return ids, scores

    def _answerer(self, queries: Embeddings, options: SearchOptions, target: Modality) -> Answerer | None:
        """What answers these queries in one call; None where they need checks, or another way."""
        vectors, searcher = queries.vectors, self._searcher
        step_by_step = options.query_z is not None or searcher.metric(options) != "dot"
        if step_by_step or not are_plain(vectors, self._dim):
            return None
        return self._planned(queries.modality, target, tuple(options.filters), searcher.codec.query_budget)

    def _plan(
        self, modality: Modality, target: Modality, filters: Sequence[Filter], budget: int | None
    ) -> Answerer | None:
        """The same for queries of a modality, of a code with a ``budget`` of terms per query."""
        code = None if budget is None else self._searcher.codec.query_code(modality)
        return None if code is None else self._searcher.index.answerer(code, target, filters)

    def _step_by_step(
        self,
        queries: Embeddings,
        options: SearchOptions,
        target: Modality,
        block: range,
        ids: NDArray[np.object_],
        scores: NDArray[np.float32],
    ) -> None:
        """Write the answers to a block of queries."""
        some = queries if len(block) == len(queries) else queries.take(block)
        codes, depth, rescore = self._searcher.asked(some, options, Stages())
        found = self._searcher.index.search_ids(codes, depth, target, filters=options.filters, rescore=rescore)
        for i, (best, values) in zip(block, found, strict=True):
            ids[i, : len(best)] = best
            scores[i, : len(best)] = values
