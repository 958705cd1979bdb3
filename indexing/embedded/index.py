"""The embedded engine: indexes in a folder, searched where they lie.

``DIR/NAME`` holds an index, as ``_catalogue`` tells. Its rows are in segments that never change; adding, replacing and
deleting make new segments and lists of rows that count no longer, and then one rename makes them the index. So a
process that dies leaves the last commit, whole, and a reader goes on with what it opened.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from operator import itemgetter
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.errors import BackendError
from boc.inputs.metadata import check_filter, holds
from boc.instances import instances
from boc.rerank import dot
from boc.types import MODALITIES, Filter, Hit, Item, Modality, Rescore, Stages, StoredConcepts, TermMatrix, Words

from . import bm25, commits
from .live_segments import Part, open_current
from .npy_files import fetch
from .postings import top_k
from .segment import Segment, side_by_side, take_sets

_Found: TypeAlias = tuple[Part, NDArray[np.int64], NDArray[Any]]
"""Rows of a part, and their scores."""

COLD = 2e-4  # seconds that PROBE vectors take on a disk: ten times as long as in memory, less than three from the disk
FILTERS = 16  # sets of filters whose items are remembered
SEGMENTED = 4  # the first format with segments
PARTS = {  # of the size of an index, by the first word of a file's name
    "starts": "postings",
    "rows": "postings",
    "frequencies": "postings",
    "indptr": "postings",
    "vectors": "vectors",
    "concepts": "concepts",
    "concept": "concepts",
}


class EmbeddedIndex:
    """What an index was when it was opened, memory-mapped."""

    exact_vectors = True

    def __init__(self, home: Path) -> None:
        self._home = home
        opened = open_current(home, scattered=True)
        self.manifest = opened.manifest
        self._arrays = opened.arrays
        self._parts = opened.parts
        self._commit = opened.commit
        self._masks = lru_cache(FILTERS)(self._masked)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Codec arrays; ManifestError if they are not those the index was made with."""
        if self._commit is None:  # else the commit has their digests, which opening compares
            self.manifest.check_arrays(self._arrays, where=str(self._home))
        return self._arrays

    def search(
        self,
        queries: TermMatrix,
        k: int,
        modality: Modality | None = None,
        *,
        filters: Sequence[Filter] = (),
        rescore: Rescore | None = None,
        words: Words | None = None,
        stages: Stages | None = None,
    ) -> list[list[Hit]]:
        if k < 1:
            raise BackendError(f"k must be at least 1, got {k}")
        n_terms = self.manifest.codec["n_terms"]
        if queries.shape[1] != n_terms:
            raise BackendError(f"queries have {queries.shape[1]} terms, the index has {n_terms}")
        stages, begun = Stages() if stages is None else stages, perf_counter()
        found = self._candidates(queries, k, modality, tuple(filters), words, by_row=rescore is not None)
        begun = stages.took("postings_ms", begun)
        if rescore is not None:
            k = rescore.k
            for one in found:
                for _, rows, _ in one:
                    stages.candidates += len(rows)
            found = [_rescored(one, vector, k) for one, vector in zip(found, rescore.vectors, strict=True)]
            begun = stages.took("rerank_ms", begun)
        hits = [_hits(one, k) for one in found]
        stages.took("content_ms", begun)
        return hits

    def _candidates(
        self,
        queries: TermMatrix,
        k: int,
        modality: Modality | None,
        filters: tuple[Filter, ...],
        words: Words | None,
        *,
        by_row: bool,
    ) -> list[list[_Found]]:
        """Of each query the k best rows, in parts: the best first, or ``by_row``."""
        masks = self._masks(modality, filters)
        if words is not None:
            found = [self._with_words(queries[[i]], k, masks, words, i, by_row=by_row) for i in range(queries.shape[0])]
        else:
            pairs = zip(self._parts, masks, strict=True)
            tops = [(part, part.segment.postings.top(queries, k, mask, by_row)) for part, mask in pairs]
            found = [[(part, *best[i]) for part, best in tops] for i in range(queries.shape[0])]
        return [_leading(one, k) for one in found] if len(self._parts) > 1 else found

    def match(
        self, texts: Sequence[str], k: int, modality: Modality | None = None, filters: Sequence[Filter] = ()
    ) -> list[list[Hit]]:
        if k < 1:
            raise BackendError(f"k must be at least 1, got {k}")
        masks = self._masks(modality, tuple(filters))
        return [_hits(_leading([_best(*one, k) for one in self._matching(text, masks)], k), k) for text in texts]

    def _with_words(
        self,
        query: TermMatrix,
        k: int,
        masks: Sequence[NDArray[np.uint8] | None],
        words: Words,
        i: int,
        *,
        by_row: bool,
    ) -> list[_Found]:
        """The k best of each part by the score of the terms of a query and of the words of sentence number i."""
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

    def _matching(self, text: str, masks: Sequence[NDArray[np.uint8] | None]) -> list[_Found]:
        """The rows of every part that share a word with a sentence."""
        if self.manifest.format < SEGMENTED:
            raise BackendError(
                f"{self._home.name} was made by an older boc, without the words of its sentences; "
                f"run boc compact {self._home.name} to have them searched"
            )
        found: list[_Found] = []
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

    def _masked(self, modality: Modality | None, filters: tuple[Filter, ...]) -> list[NDArray[np.uint8] | None]:
        """Of each part, which rows are live, of this modality and pass all filters; None if all do."""
        for condition in filters:
            check_filter(condition, self.manifest.fields)
        return [_mask(part, modality, filters) for part in self._parts]

    def vectors(self, ids: Sequence[str]) -> NDArray[np.floating[Any]]:
        dtype, dim = np.dtype(self.manifest.vector_dtype), self.manifest.identity.dim
        out: NDArray[np.floating[Any]] = np.empty((len(ids), dim), dtype)
        for part, places, rows in self._places(ids):
            out[places] = part.segment.vectors[rows]
        return out

    def concepts(self, ids: Sequence[str]) -> StoredConcepts:
        if self.manifest.concept_dtype is None:
            raise BackendError(
                f"the index in {self._home} holds no concept sets; make it anew with boc index --concepts "
                "float16, or re-rank by dot"
            )
        return self._sets(ids)

    def _sets(self, ids: Sequence[str]) -> StoredConcepts:
        found = self._places(ids)
        stored = [part.segment.concepts for part in self._parts]
        order = np.concatenate([np.zeros(0, np.int64), *(places for _, places, _ in found)])
        sets = [take_sets(part.segment.concepts, rows) for part, _, rows in found if part.segment.concepts]
        whole = side_by_side(sets or [take_sets(each, np.zeros(0, np.int64)) for each in stored[:1] if each])
        return take_sets(whole, np.argsort(order))

    def items(self) -> Iterator[Item]:
        def items(part: Part) -> Iterator[tuple[str, Item]]:
            return ((key, part.segment.item(row)) for key, row in part.rows())

        return (item for _, item in heapq.merge(*map(items, self._parts), key=itemgetter(0)))

    def find(self, ids: Sequence[str]) -> list[Item]:
        return [part.segment.item(row) for part, row in map(self._place, ids)]

    def sizes(self) -> dict[str, int]:
        found = dict.fromkeys(("postings", "vectors", "concepts", "other"), 0)
        files = {} if self._commit is None else {name: size for name, (size, _) in self._commit.files.items()}
        if self._commit is None:
            folder = self._home / commits.current(self._home)
            files = {path.name: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
        for name, size in files.items():
            found[PARTS.get(Path(name).stem.partition("_")[0], "other")] += size
        return found

    def terms(self, ids: Sequence[str], among: Sequence[int] | None = None) -> TermMatrix:
        found = self._places(ids)
        n_terms = self.manifest.codec["n_terms"]
        parts = [sparse.csr_array((0, n_terms), dtype=np.int32)]
        for part, _, rows in found:
            postings = part.segment.postings
            parts.append(postings.matrix_of(rows) if among is None else postings.lookup(rows, among))
        order = np.concatenate([np.zeros(0, np.int64), *(places for _, places, _ in found)])
        terms = sparse.vstack(parts, format="csr", dtype=np.int32)[np.argsort(order)]
        terms.sort_indices()
        return terms

    def document_frequencies(self) -> NDArray[np.int64]:
        counts: NDArray[np.int64] = np.sum([part.segment.count(part.live) for part in self._parts], axis=0)
        return counts

    def damaged(self) -> list[str]:
        """The files whose bytes are not those that were written; all are read."""
        return [] if self._commit is None else commits.damage(self._home, self._commit)

    def _place(self, key: str) -> tuple[Part, int]:
        for part in self._parts:
            row = part.find(key)
            if row is not None:
                return part, row
        raise KeyError(key)

    def _places(self, ids: Sequence[str]) -> list[tuple[Part, NDArray[np.int64], NDArray[np.int64]]]:
        """The parts in which some ids are: their places among the ids, and their rows there."""
        found = [self._place(key) for key in ids]
        of = {id(part): ([i for i, (owner, _) in enumerate(found) if owner is part], part) for part in self._parts}
        return [
            (part, np.array(places), np.array([found[i][1] for i in places], dtype=np.int64))
            for places, part in of.values()
            if places
        ]


def _mask(part: Part, modality: Modality | None, filters: Sequence[Filter]) -> NDArray[np.uint8] | None:
    segment, mask = part.segment, part.live
    if modality is not None and segment.counts[modality] < len(segment):
        chosen = segment.modality == MODALITIES.index(modality)
        mask = chosen.view(np.uint8) if mask is None else mask * chosen
    for condition in filters:
        passed = _passing(segment, condition)
        mask = passed.view(np.uint8) if mask is None else mask * passed
    return mask


def _passing(segment: Segment, condition: Filter) -> NDArray[np.bool_]:
    """Which rows (n,) a condition holds for."""
    if segment.words is not None:
        return segment.words.passing(condition)
    passed = (holds(condition, segment.item(row).fields) for row in range(len(segment)))
    return np.fromiter(passed, np.bool_, len(segment))


def _best(part: Part, rows: NDArray[np.int64], scores: NDArray[np.float64], k: int, *, by_row: bool = False) -> _Found:
    """The k rows of largest positive score, the best first or ``by_row``; ``rows`` ascend."""
    chosen = np.sort(top_k(scores, k)) if by_row else top_k(scores, k)
    return part, rows[chosen], scores[chosen]


def _rescored(found: Sequence[_Found], query: NDArray[np.float32], k: int) -> list[_Found]:
    """The k rows of every part with the largest dot products of their vectors and ``query``, and these: of ascending
    rows, so that they are read in the order of the file."""
    return [(part, *_best_by_vectors(query, part.segment.vectors, rows, k)) for part, rows, _ in found]


def _best_by_vectors(
    query: NDArray[np.float32], vectors: NDArray[Any], rows: NDArray[np.int64], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Of some ascending ``rows``, whose vectors are fetched first if they seem to lie on the disk."""
    best = dot.best(query, vectors, rows, k, COLD)
    if best is None:
        fetch(vectors, rows[dot.PROBE :])
        best = dot.best(query, vectors, rows, k)
        assert best is not None
    return best


def _leading(found: Sequence[_Found], k: int) -> list[_Found]:
    """The k of all parts' rows that have the largest scores, ties to the smaller id, in the order that they have in
    each part; a part alone has its best rows first, or k at most. Ids are in the order of rows."""
    if len(found) == 1:
        part, rows, scores = found[0]
        return [(part, rows[:k], scores[:k])]
    kept = [one for one in found if len(one[1])]
    total = sum(len(rows) for _, rows, _ in kept)
    if total <= k:
        return kept
    scores = np.concatenate([scores for _, _, scores in kept])
    least = np.partition(scores, total - k)[total - k]
    missing = k - int(np.count_nonzero(scores > least))
    equal = [
        (part.segment.texts["ids"][row], i, row)
        for i, (part, rows, scores) in enumerate(kept)
        for row in np.sort(rows[scores == least])[:missing].tolist()
    ]
    taken = heapq.nsmallest(missing, equal)
    last = [[row for _, i, row in taken if i == j] for j in range(len(kept))]
    chosen = [(scores > least) | np.isin(rows, more) for (_, rows, scores), more in zip(kept, last, strict=True)]
    return [(part, rows[those], scores[those]) for (part, rows, scores), those in zip(kept, chosen, strict=True)]


def _hits(found: Sequence[_Found], k: int) -> list[Hit]:
    """The k best, ordered by (-score, id)."""
    hits: list[Hit] = []
    for part, rows, scores in _leading(found, k):
        hits += instances(Hit, part.segment.items(rows), scores.tolist())
    if len(found) > 1:
        hits.sort(key=lambda hit: (-hit.score, hit.item.id))
    return hits
