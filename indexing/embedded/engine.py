"""Search a memory-mapped index of the embedded engine.

An index is stored in ``DIR/NAME``; see ``commits.py``. Rows are stored in immutable segments. Edits
write new segments and tombstones, which are published by a single rename. If a process dies, the
last commit stays intact. Readers keep using the commit that they opened.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial, wraps
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.errors import BackendError, ManifestError
from boc.plan import FOLDER, MOST, Plan, Statistics, make_plan, nearest
from boc.rerank.compact import CompactCode
from boc.rerank.storage import restore_rows
from boc.types import (
    Filter,
    Hit,
    HitList,
    Item,
    Modality,
    SearchRequest,
    Stages,
    StoredConcepts,
    TermMatrix,
)
from boc.vectors import Array, Doubles, Ints

from .._validate import check_conditions, check_request, no_concepts
from . import bm25, commits
from .kernel import TopRows
from .live_segments import Located, Snapshot, locate, masks_of, open_current, owner, read
from .npy_files import DAMAGED
from .ranking import Ranking, best_of
from .segment import Segment, side_by_side

# Minimum number of items for using compact codes. The vectors of fewer items fit into the cache.
LEAST = 20_000

P = ParamSpec("P")
T = TypeVar("T")

PARTS = {
    "starts": "postings",
    "rows": "postings",
    "frequencies": "postings",
    "vectors": "vectors",
    "compact": "vectors",
    "concepts": "concepts",
    "concept": "concepts",
}
"""Part of the index to which a file belongs, keyed by the first word of the file name."""


def _refusing(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate an index method so that, if arrays are inconsistent, the files are checked before
    the index is reported as damaged. Forged files can have correct digests."""

    @wraps(method)
    def call(*given: P.args, **options: P.kwargs) -> T:
        try:
            return method(*given, **options)
        except (ValueError, IndexError) as error:
            index = given[0]
            assert isinstance(index, EmbeddedEngine)
            raise index._misfit(error) from error

    return call


class EmbeddedEngine:
    """Search a memory-mapped index as it was when it was opened."""

    exact_vectors = True
    searches_words = True
    is_unfinished = False

    def __init__(self, home: Path) -> None:
        self._home = home
        opened = open_current(home, scattered=True)
        self.manifest = opened.manifest
        self._arrays = opened.arrays
        self._parts = opened.parts
        self._commit = opened.commit
        self._prepared = WeakKeyDictionary[object, tuple[Ranking, Plan]]()
        compact = _compact_code(opened)
        recall = self.manifest.recall
        read = recall.get("read", FOLDER.read)
        self.costs = FOLDER._replace(compact=compact is not None, read=read)
        if recall.get("whole"):
            self.costs = self.costs._replace(begin=MOST)
        parts = opened.parts
        dim = self.manifest.identity.dim
        # Cache filter masks up to a total of 32 MiB, but for at least 16 sets of filters.
        cached = max(16, (1 << 25) // (1 + sum(len(part.segment) for part in parts)))
        # A function that refers to ``self`` would keep the files open for a long time.
        self._ranking = lru_cache(cached)(
            lambda modality, filters: Ranking(
                parts,
                masks_of(parts, modality, filters),
                dim,
                compact,
            ),
        )

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def _misfit(self, error: Exception) -> ManifestError:
        if self._damage:
            return ManifestError(
                f"{self._home}: damaged ({', '.join(self._damage[:3])}: changed since)",
                DAMAGED,
            )
        return ManifestError(
            f"{self._home}: its files are unchanged, but do not match each other, or boc fails on "
            f"this request ({error}); keep them, and report this; if a stranger made the index, do "
            "not use it",
        )

    @cached_property
    def _damage(self) -> list[str]:
        return self.damaged_files()

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of the codec. Their digests were verified when the index was opened."""
        return self._arrays

    @_refusing
    def search(self, request: SearchRequest, stages: Stages | None = None) -> list[HitList]:
        ranked = self._rank(request, stages)
        return [
            HitList(count, partial(self._hits, ranked, i))
            for i, count in enumerate(ranked.lengths())
        ]

    @_refusing
    def _hits(self, ranked: TopRows, i: int) -> list[Hit]:
        return self._read(*ranked.query(i))

    def _read(
        self,
        numbers: Array,
        rows: Array,
        scores: Array,
    ) -> list[Hit]:
        return list(map(Hit, read(self._parts, numbers, rows, Segment.items), scores.tolist()))

    @_refusing
    def rank(self, request: SearchRequest) -> tuple[NDArray[np.object_], Doubles]:
        ranked = self._rank(request, None)
        numbers, rows, scores = ranked.arrays()
        there = np.arange(rows.shape[1]) < np.array(ranked.lengths())[:, None]
        ids = np.full(rows.shape, None, object)
        ids[there] = read(self._parts, numbers[there], rows[there], Segment.ids)
        return ids, np.where(there, scores, -np.inf)

    def _rank(self, request: SearchRequest, stages: Stages | None) -> TopRows:
        if request.way is None:
            ranking, plan = self._prepare(request)
        else:
            prepared = self._prepared.get(request.way)
            if prepared is None:
                prepared = self._prepared[request.way] = self._prepare(request)
            ranking, plan = prepared
        near = None
        if request.rescore is not None and request.rescore.metric != "dot":
            near = ranking(nearest(request, self.manifest.recall), plan, stages)
        return ranking(request, plan, stages, near)

    def _prepare(self, request: SearchRequest) -> tuple[Ranking, Plan]:
        """Check a request and plan its search."""
        check_request(request, self.manifest, self._home)
        ranking = self._ranking(request.modality, tuple(request.filters))
        return ranking, make_plan(request, lambda: ranking.statistics, self.costs)

    @_refusing
    def statistics(self, modality: Modality | None, filters: Sequence[Filter] = ()) -> Statistics:
        return self._ranking(modality, tuple(filters)).statistics

    @_refusing
    def request(self, *query: Any, **options: Any) -> NoReturn:
        name = self._home.name
        raise BackendError(
            f"{name} is in a folder and has no HTTP interface",
            f"use <boc serve {name}> and its requests under /api, or copy it to a server: <boc "
            f"copy {name} --to elastic+URL>",
        )

    def match(
        self,
        texts: Sequence[str],
        k: int,
        modality: Modality | None = None,
        filters: Sequence[Filter] = (),
    ) -> list[list[Hit]]:
        check_conditions(k, modality, filters, self.manifest)
        masks = self._ranking(modality, tuple(filters)).masks
        answers = []
        for text in texts:
            matches = []
            for (rows, scores), mask in zip(self._words.match(text), masks, strict=True):
                passed = slice(None) if mask is None else mask[rows] != 0
                matches.append((rows[passed], scores[passed]))
            answers.append(self._read(*best_of(self._parts, matches, k)))
        return answers

    @cached_property
    def _words(self) -> bm25.WordRanking:
        words = [part.segment.words for part in self._parts]
        return bm25.WordRanking(words, [part.live for part in self._parts])

    @_refusing
    def vectors(self, ids: Sequence[str]) -> NDArray[np.floating[Any]]:
        dtype = np.dtype(self.manifest.vector_floats)
        dim = self.manifest.identity.dim
        out: NDArray[np.floating[Any]] = np.empty((len(ids), dim), dtype)
        for part, places, rows in locate(self._parts, ids):
            out[places] = restore_rows(part.segment.vectors[rows])
        return out

    @_refusing
    def concepts(self, ids: Sequence[str]) -> StoredConcepts:
        if self.manifest.concept_dtype is None:
            raise no_concepts(self._home)
        groups = locate(self._parts, ids)
        sets = [
            part.segment.concepts.take(rows)
            for part, _, rows in [(self._parts[0], None, np.zeros(0, np.int64)), *groups]
            if part.segment.concepts is not None
        ]
        return side_by_side(sets).take(_order(groups))

    def items(self) -> Iterator[Item]:
        try:
            yield from heapq.merge(*(part.items() for part in self._parts), key=attrgetter("id"))
        except (ValueError, IndexError) as error:
            raise self._misfit(error) from error

    @_refusing
    def find(self, ids: Sequence[str]) -> list[Item]:
        owners = [owner(self._parts, key) for key in ids]
        return [part.segment.items(np.array([row]))[0] for part, row in owners]

    @_refusing
    def sample(self, count: int, modality: Modality) -> list[str]:
        passing = self._ranking(modality, ()).passing_rows()
        ends = np.cumsum([0, *map(len, passing)])
        rng = np.random.default_rng(0)
        drawn = np.sort(rng.choice(ends[-1], min(count, ends[-1]), replace=False))
        ids = []
        for part, rows, start in zip(
            self._parts,
            passing,
            ends,
            strict=False,
        ):
            places = drawn[(drawn >= start) & (drawn < start + len(rows))]
            ids += part.segment.ids(rows[places - start])
        return ids

    @_refusing
    def passing(self, modality: Modality, filters: Sequence[Filter], most: int) -> set[str]:
        """Return the ids of items that pass all filters, including at least the first ``most`` ids
        in sorted order."""
        chosen = self._ranking(modality, tuple(filters)).passing_rows()
        pairs = zip(self._parts, chosen, strict=True)
        return set().union(*(part.segment.ids(rows[:most]) for part, rows in pairs))

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
        sizes = dict.fromkeys(("postings", "vectors", "concepts", "other"), 0)
        for name, (size, _) in self._commit.files.items():
            sizes[PARTS.get(Path(name).stem.partition("_")[0], "other")] += size
        return sizes

    @_refusing
    def terms(self, ids: Sequence[str], among: Sequence[int] | None = None) -> TermMatrix:
        groups = locate(self._parts, ids)
        parts = [sparse.csr_array((0, self.manifest.codec["n_terms"]), dtype=np.int32)]
        for part, _, rows in groups:
            postings = part.segment.postings
            parts.append(
                postings.matrix_of(rows) if among is None else postings.lookup(rows, among),
            )
        terms = sparse.vstack(parts, format="csr", dtype=np.int32)[_order(groups)]
        terms.sort_indices()
        return terms

    @_refusing
    def document_frequencies(self) -> Ints:
        counts: Ints = np.sum(
            [part.segment.count(part.live) for part in self._parts],
            axis=0,
        )
        return counts

    def damaged_files(self) -> list[str]:
        """Read all files, and return the names of files whose contents have changed."""
        return commits.damage(self._home, self._commit.files)


def _compact_code(opened: Snapshot) -> CompactCode | None:
    """Return the code used to rank candidates before their vectors are read, or None if the index
    is small or a segment has no compact codes."""
    parts = [part for part in opened.parts if len(part.segment)]
    if sum(map(len, parts)) < LEAST or any(part.segment.compact is None for part in parts):
        return None
    manifest = opened.manifest
    return CompactCode.of(manifest.codec, opened.arrays, manifest.identity.dim)


def _order(groups: Sequence[Located]) -> Ints:
    """Return the permutation that sorts the concatenated rows of all parts by id."""
    return np.argsort(np.concatenate([np.zeros(0, np.int64), *(each[1] for each in groups)]))
