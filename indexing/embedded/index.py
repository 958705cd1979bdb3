"""Searching an index of the embedded engine, memory-mapped from its folder.

``DIR/NAME`` holds an index; see ``commits.py``. Its rows are in immutable segments. Adding, replacing and deleting make
new segments and tombstones, which one rename publishes. So a process that dies leaves the last commit intact, and a
reader keeps what it opened.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial, wraps
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.errors import BackendError, ManifestError
from boc.plugins import Answerer
from boc.rerank import dot
from boc.rerank.alignment import rescored
from boc.rerank.storage import restored
from boc.topk import topk, topk_positive
from boc.types import (
    Filter,
    Hit,
    Item,
    Modality,
    QueryCode,
    Rescore,
    Stages,
    StoredConcepts,
    TermMatrix,
    TextScore,
)

from .._validate import check_rescore, no_concepts
from . import bm25, commits
from .live_segments import Part, located, masks_of, open_current, owner
from .npy_files import DAMAGED, fetch
from .query import Plan, planned
from .segment import side_by_side, take_sets
from .shortlist import Found, Shortlist, leading

P = ParamSpec("P")
T = TypeVar("T")

PROBE = 4  # candidates whose vectors tell whether the others are in memory
COLD = 5e-5  # seconds to read PROBE vectors: ten times as long as from memory, less than one from a disk takes
TOGETHER = 32  # queries re-ranked in one call, for which one probe decides
FILTERS = 16  # sets of filters whose masks are cached
PARTS = {  # part of the size, by the first word of a file name
    "starts": "postings",
    "rows": "postings",
    "frequencies": "postings",
    "vectors": "vectors",
    "compact": "vectors",
    "concepts": "concepts",
    "concept": "concepts",
}


def _refusing(method: Callable[P, T]) -> Callable[P, T]:
    """Decorator of methods of an index: arrays that do not fit each other are reported as damage. Forged files can have
    right digests; arguments were checked before."""

    @wraps(method)
    def told(*given: P.args, **options: P.kwargs) -> T:
        try:
            return method(*given, **options)
        except (ValueError, IndexError) as error:
            index = given[0]
            assert isinstance(index, EmbeddedIndex)
            raise index._misfit(error) from error

    return told


class EmbeddedIndex:
    """An open index, memory-mapped; it keeps the commit that it opened."""

    exact_vectors = True
    unfinished = False

    def __init__(self, home: Path) -> None:
        self._home = home
        opened = open_current(home, scattered=True)
        self.manifest = opened.manifest
        self._arrays = opened.arrays
        self._parts = opened.parts
        self._commit = opened.commit
        self.shortlist = Shortlist.of(opened)
        self._masks = lru_cache(FILTERS)(partial(masks_of, self._parts, self.manifest.fields))

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def _misfit(self, error: Exception) -> ManifestError:
        return ManifestError(f"{self._home}: damaged, its files do not fit each other ({error}); {DAMAGED}")

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Codec arrays; opening has compared their digests with those of the commit."""
        return self._arrays

    @_refusing
    def search(
        self,
        queries: TermMatrix,
        k: int,
        modality: Modality | None = None,
        *,
        filters: Sequence[Filter] = (),
        rescore: Rescore | None = None,
        words: TextScore | None = None,
        stages: Stages | None = None,
    ) -> list[list[Hit]]:
        stages = Stages() if stages is None else stages
        found = self._ranked(queries, k, modality, tuple(filters), rescore, words, stages)
        begun = perf_counter()
        hits = [_hits(one, k if rescore is None else rescore.k) for one in found]
        stages.took("content_ms", begun)
        return hits

    @_refusing
    def search_ids(
        self,
        queries: TermMatrix,
        k: int,
        modality: Modality | None = None,
        *,
        filters: Sequence[Filter] = (),
        rescore: Rescore | None = None,
    ) -> list[tuple[list[str], NDArray[Any]]]:
        found = self._ranked(queries, k, modality, tuple(filters), rescore, None, Stages())
        return [_ids(leading(one, k if rescore is None else rescore.k)) for one in found]

    @_refusing
    def answerer(self, code: QueryCode, modality: Modality, filters: Sequence[Filter] = ()) -> Answerer | None:
        plan = planned(code, self._parts, self._masks(modality, tuple(filters)), self.shortlist)
        return None if plan is None else partial(self._answer, plan)

    @_refusing
    def _answer(
        self,
        plan: Plan,
        queries: NDArray[np.float32],
        depth: int,
        ids: NDArray[np.object_],
        scores: NDArray[np.float32],
    ) -> bool:
        return plan(queries, depth, ids, scores)

    def _ranked(
        self,
        queries: TermMatrix,
        k: int,
        modality: Modality | None,
        filters: tuple[Filter, ...],
        rescore: Rescore | None,
        words: TextScore | None,
        stages: Stages,
    ) -> list[list[Found]]:
        """For each query the best rows of each part, best first, and their scores: at most k, or ``rescore.k``."""
        if k < 1:
            raise BackendError(f"k must be at least 1, got {k}")
        n_terms = self.manifest.codec["n_terms"]
        if queries.shape[1] != n_terms:
            raise BackendError(f"queries have {queries.shape[1]} terms, the index has {n_terms}")
        if rescore is not None:
            check_rescore(rescore, modality, self.manifest, f"the index in {self._home}")
        begun, by_row = perf_counter(), rescore is not None
        masks = self._masks(modality, filters)
        if words is None:
            pairs = zip(self._parts, masks, strict=True)
            tops = [(part, part.segment.postings.top(queries, k, mask, by_row)) for part, mask in pairs]
            found = [[(part, *best[i]) for part, best in tops] for i in range(queries.shape[0])]
        else:
            found = [self._with_words(queries[[i]], k, masks, words, i, by_row=by_row) for i in range(queries.shape[0])]
        if len(self._parts) > 1:
            found = [leading(one, k) for one in found]
        begun = stages.took("postings_ms", begun)
        if rescore is not None:
            for one in found:
                for _, rows, _ in one:
                    stages.candidates += len(rows)
            if self.shortlist is not None and rescore.metric == "dot" and modality is not None:
                found = self.shortlist.cut(found, rescore.queries.vectors, k, rescore.k)
            found = _rescored(found, rescore, modality)
            stages.took("rerank_ms", begun)
        return found

    @_refusing
    def request(self, *query: Any, **options: Any) -> NoReturn:
        name = self._home.name
        raise BackendError(
            f"{name} is in a folder, which answers no HTTP requests; boc serve {name} does, under /api, and so does a "
            f"server that holds it: boc copy {name} --to elastic+URL"
        )

    def match(
        self, texts: Sequence[str], k: int, modality: Modality | None = None, filters: Sequence[Filter] = ()
    ) -> list[list[Hit]]:
        if k < 1:
            raise BackendError(f"k must be at least 1, got {k}")
        masks = self._masks(modality, tuple(filters))
        return [_hits([_best(*one, k) for one in self._matching(text, masks)], k) for text in texts]

    def _with_words(
        self,
        query: TermMatrix,
        k: int,
        masks: Sequence[NDArray[np.uint8] | None],
        words: TextScore,
        i: int,
        *,
        by_row: bool,
    ) -> list[Found]:
        """The k best rows of each part by the sum of the term score and the text score of sentence i."""
        found = []
        for part, rows, scores in self._matching(words.texts[i], [None] * len(self._parts)):
            joint = part.segment.postings.scores(query.indices, query.data)
            shared = joint[rows] > 0
            joint[rows[shared]] += words.weight * scores[shared]
            found.append((part, joint))
        return [
            _best(part, np.arange(len(joint)), joint if mask is None else joint * mask, k, by_row=by_row)
            for (part, joint), mask in zip(found, masks, strict=True)
        ]

    def _matching(self, text: str, masks: Sequence[NDArray[np.uint8] | None]) -> list[Found]:
        """For each part the rows that share a word with ``text``, and their scores."""
        found: list[Found] = []
        scores = iter(self._ranking.scores(text))
        for part, mask in zip(self._parts, masks, strict=True):
            total = np.zeros(0) if part.segment.words is None else next(scores)
            rows = np.flatnonzero(total if mask is None or not len(total) else total * mask)
            found.append((part, rows, total[rows]))
        return found

    @cached_property
    def _ranking(self) -> bm25.Ranking:
        searched = [(part.segment.words, part.live) for part in self._parts]
        return bm25.Ranking([words for words, _ in searched if words], [live for words, live in searched if words])

    @_refusing
    def vectors(self, ids: Sequence[str]) -> NDArray[np.floating[Any]]:
        dtype, dim = np.dtype(self.manifest.vector_floats), self.manifest.identity.dim
        out: NDArray[np.floating[Any]] = np.empty((len(ids), dim), dtype)
        for part, places, rows in located(self._parts, ids):
            out[places] = restored(part.segment.vectors[rows])
        return out

    @_refusing
    def concepts(self, ids: Sequence[str]) -> StoredConcepts:
        if self.manifest.concept_dtype is None:
            raise no_concepts(f"the index in {self._home}")
        found = located(self._parts, ids)
        stored = [part.segment.concepts for part in self._parts]
        order = np.concatenate([np.zeros(0, np.int64), *(places for _, places, _ in found)])
        sets = [take_sets(part.segment.concepts, rows) for part, _, rows in found if part.segment.concepts]
        whole = side_by_side(sets or [take_sets(each, np.zeros(0, np.int64)) for each in stored[:1] if each])
        return take_sets(whole, np.argsort(order))

    def items(self) -> Iterator[Item]:
        try:
            yield from heapq.merge(*(part.items() for part in self._parts), key=attrgetter("id"))
        except (ValueError, IndexError) as error:
            raise self._misfit(error) from error

    @_refusing
    def find(self, ids: Sequence[str]) -> list[Item]:
        return [part.segment.item(row) for part, row in (owner(self._parts, key) for key in ids)]

    @_refusing
    def sample(self, count: int, modality: Modality) -> list[str]:
        masks = self._masks(modality, ())
        pairs = list(zip(self._parts, masks, strict=True))
        sizes = [len(part.segment) if mask is None else int(np.count_nonzero(mask)) for part, mask in pairs]
        ends = np.cumsum([0, *sizes])
        drawn = np.random.default_rng(0).choice(ends[-1], min(count, ends[-1]), replace=False)
        found: list[str] = []
        for (part, mask), start, end in zip(pairs, ends[:-1], ends[1:], strict=True):
            rows = np.sort(drawn[(drawn >= start) & (drawn < end)]) - start
            if mask is not None and len(rows):
                rows = np.flatnonzero(mask)[rows]
            found += [part.segment.texts["ids"][row] for row in rows.tolist()]
        return found

    @_refusing
    def used_fields(self) -> set[str]:
        return {
            name
            for part in self._parts
            if part.segment.words is not None
            for name in part.segment.words.fields()
            if part.live is None or part.live[part.segment.words.rows(name)].any()
        }

    def sizes(self) -> dict[str, int]:
        found = dict.fromkeys(("postings", "vectors", "concepts", "other"), 0)
        for name, (size, _) in self._commit.files.items():
            found[PARTS.get(Path(name).stem.partition("_")[0], "other")] += size
        return found

    @_refusing
    def terms(self, ids: Sequence[str], among: Sequence[int] | None = None) -> TermMatrix:
        found = located(self._parts, ids)
        n_terms = self.manifest.codec["n_terms"]
        parts = [sparse.csr_array((0, n_terms), dtype=np.int32)]
        for part, _, rows in found:
            postings = part.segment.postings
            parts.append(postings.matrix_of(rows) if among is None else postings.lookup(rows, among))
        order = np.concatenate([np.zeros(0, np.int64), *(places for _, places, _ in found)])
        terms = sparse.vstack(parts, format="csr", dtype=np.int32)[np.argsort(order)]
        terms.sort_indices()
        return terms

    @_refusing
    def document_frequencies(self) -> NDArray[np.int64]:
        counts: NDArray[np.int64] = np.sum([part.segment.count(part.live) for part in self._parts], axis=0)
        return counts

    def damaged(self) -> list[str]:
        """The files whose bytes have changed; reads all files."""
        return commits.damage(self._home, self._commit)


def _best(part: Part, rows: NDArray[np.int64], scores: NDArray[np.float64], k: int, *, by_row: bool = False) -> Found:
    """The k rows of largest positive score, best first or ``by_row``; ``rows`` are ascending."""
    chosen = np.sort(topk_positive(scores, k)) if by_row else topk_positive(scores, k)
    return part, rows[chosen], scores[chosen]


def _rescored(found: Sequence[Sequence[Found]], rescore: Rescore, modality: Modality | None) -> list[list[Found]]:
    """For each query the ``rescore.k`` best rows of each part, best first, and their scores by the metric.

    ``found`` has ascending rows, so that they are read in the order of the file and ties go to the smaller id.
    """
    if rescore.metric != "dot":
        return [[_best_by_concepts(rescore, i, *one, modality) for one in parts] for i, parts in enumerate(found)]
    columns = [_best_by_vectors(rescore, parts) for parts in zip(*found, strict=True)]
    return [list(parts) for parts in zip(*columns, strict=True)] if columns else [[] for _ in found]


def _best_by_concepts(
    rescore: Rescore, i: int, part: Part, rows: NDArray[np.int64], _: NDArray[Any], modality: Modality | None
) -> Found:
    """Of some ascending ``rows`` those of the largest alignment scores for query i, and these."""
    assert part.segment.concepts is not None
    assert modality is not None
    scores = rescored(rescore, i, take_sets(part.segment.concepts, rows), modality)
    best = topk(scores, rescore.k)
    return part, rows[best], scores[best]


def _best_by_vectors(rescore: Rescore, found: Sequence[Found]) -> list[Found]:
    """The best rows of one part for each query."""
    part, best = found[0][0], []
    vectors = part.segment.vectors
    for first in range(0, len(found), TOGETHER):
        span = slice(first, first + TOGETHER)
        chosen = [rows for _, rows, _ in found[span]]
        if _on_disk(vectors, chosen[0]):
            fetch(vectors, np.unique(np.concatenate(chosen)))
        best += dot.best(rescore.queries.vectors[span], vectors, chosen, rescore.k)
    return [(part, rows, scores) for rows, scores in best]


def _on_disk(vectors: NDArray[Any], rows: NDArray[np.int64]) -> bool:
    """Whether the first ``rows`` of mapped vectors take so long to read that the others seem not to be in memory."""
    if len(rows) <= PROBE:
        return False
    begun = perf_counter()
    for row in rows[:PROBE].tolist():
        vectors[row, 0]
    return perf_counter() - begun > COLD


def _hits(found: Sequence[Found], k: int) -> list[Hit]:
    """The k best hits, ordered by (-score, id)."""
    hits: list[Hit] = []
    for part, rows, scores in leading(found, k) if len(found) > 1 else found:
        hits += map(Hit, part.segment.items(rows), scores.tolist())
    if len(found) > 1:
        hits.sort(key=lambda hit: (-hit.score, hit.item.id))
    return hits


def _ids(found: Sequence[Found]) -> tuple[list[str], NDArray[Any]]:
    """The ids of the rows of all parts, ordered by (-score, id), and their scores."""
    ids = [id for part, rows, _ in found for id in part.segment.texts["ids"].take(rows)]
    if len(found) == 1:
        return ids, found[0][2]
    scores = np.concatenate([np.empty(0), *(scores for _, _, scores in found)])
    order = sorted(range(len(ids)), key=lambda i: (-scores[i], ids[i]))
    return [ids[i] for i in order], scores[order]
