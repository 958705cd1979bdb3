"""Searching an index on a server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from boc.errors import BackendError
from boc.rerank.alignment import alignment_scores
from boc.rerank.dot import dot, reorder
from boc.types import Filter, Hit, Item, Modality, Rescore, SearchRequest, Stages, TermMatrix

from .._validate import check_rescore
from . import requests
from .aliases import Generation
from .contents import BATCH, Contents
from .term_fields import EXACT, Budget
from .transport import Json, RefusedError, Transport

CANDIDATES = 4096  # hits with vectors per request
BY_ID, BY_SCORE = attrgetter("item.id"), attrgetter("score")

ALL_SHARDS = {"search_type": "dfs_query_then_fetch"}
"""Use word statistics of all shards, so that a score does not depend on the shard."""


class ServerIndex(Contents):
    """One generation of an index. Thread-safe."""

    def __init__(self, transport: Transport, generation: Generation) -> None:
        super().__init__(transport, generation)
        self._budget = Budget(self._takes, transport.label)
        self._mixed = all(generation.manifest.items.values())  # whether the index has items of both modalities
        self._reranks = generation.state.unit  # whether the server re-ranks candidates, and not this process

    def search(self, request: SearchRequest, stages: Stages | None = None) -> list[list[Hit]]:
        queries, k, modality, filters = request.queries, request.k, request.modality, request.filters
        rescore, words = request.rescore, request.words
        stages = Stages() if stages is None else stages
        if k < 1:
            raise BackendError(f"k must be at least 1, got {k}")
        if words is not None:
            self._check_words()
        if queries.shape[1] != self._n_terms:
            raise BackendError(f"queries have {queries.shape[1]} terms, the index has {self._n_terms}")
        if rescore is not None:
            check_rescore(rescore, modality, self.manifest, f"the index {self.generation.name}")
            if rescore.metric != "dot":
                return self._align(request, rescore, stages)
        numbers, bodies = [], []
        only = self._only(modality)
        reranks = self._reranks and rescore is not None and rescore.k <= requests.WINDOW
        # Re-ranking all that match takes no scores of terms.
        unscored = words is None and k > requests.WINDOW and reranks
        query_of = self._strategy.matching if unscored else self._strategy.query
        for i in range(queries.shape[0]):
            features = self._features(queries, i, len(filters))
            if features:
                by_words = None if words is None else requests.match_body(words.texts[i], words.weight)
                bodies.append(requests.search_body(query_of(features), k, only, filters, by_words, self._layout))
                numbers.append(i)
        results: list[list[Hit]] = [[] for _ in range(queries.shape[0])]
        if modality is None or self.manifest.items[modality]:
            size = BATCH if rescore is None or reranks else max(1, CANDIDATES // k)
            for start in range(0, len(bodies), size):
                part = slice(start, start + size)
                try:
                    answers = self._hits(bodies[part], k, numbers[part], rescore, stages, reranks, exact=words is None)
                except RefusedError as error:
                    if not reranks or "script" not in f"{error.kind} {error.reason}":
                        raise
                    self._reranks = False  # scripts are missing or forbidden on the server
                    return self.search(request, stages)
                for i, hits in zip(numbers[part], answers, strict=True):
                    results[i] = hits
        if only is None and self._has_other(results, modality):
            self._mixed = True  # the first items of the other modality were added since this index was opened
            return self.search(request, stages)
        return results

    def rank(self, request: SearchRequest) -> tuple[NDArray[np.object_], NDArray[np.float64]]:
        answers = self.search(request)
        shape = len(answers), min(request.most, sum(self.manifest.items.values()))
        ids, scores = np.full(shape, None, object), np.full(shape, -np.inf)
        for i, hits in enumerate(answers):
            ids[i, : len(hits)] = [hit.item.id for hit in hits]
            scores[i, : len(hits)] = [hit.score for hit in hits]
        return ids, scores

    def _hits(
        self,
        bodies: list[Json],
        k: int,
        numbers: list[int],
        rescore: Rescore | None,
        stages: Stages,
        reranks: bool,
        *,
        exact: bool,
    ) -> list[list[Hit]]:
        if rescore is None:
            searches = [{**body, **self._layout.hits} for body in bodies]
            begun = perf_counter()
            answers = self._searches.hits(searches, k) if exact else self._searches.hits(searches, k, **ALL_SHARDS)
            begun = stages.took("postings_ms", begun)
            if exact:
                self._check_exact(answers)
            results = [self._with_scores(hits, [float(hit["_score"]) for hit in hits]) for hits in answers]
            stages.took("content_ms", begun)
            return results
        queries = [rescore.queries.vectors[i] for i in numbers]
        if reranks:
            return self._rescore_there(bodies, k, queries, rescore.k, stages)
        return self._rescore_here(bodies, k, queries, rescore.k, stages)

    def _align(self, request: SearchRequest, rescore: Rescore, stages: Stages) -> list[list[Hit]]:
        """Fetch the concept sets of candidates, and align them here."""
        modality = request.modality
        assert modality is not None
        results = self.search(SearchRequest(request.queries, request.k, modality, request.filters), stages)
        stages.candidates += sum(map(len, results))
        begun = perf_counter()
        ranked = [
            reorder(
                hits, alignment_scores(rescore, i, self.concepts([hit.item.id for hit in hits]), modality), rescore.k
            )
            for i, hits in enumerate(results)
        ]
        stages.took("rerank_ms", begun)
        return ranked

    def _rescore_there(
        self, bodies: list[Json], candidates: int, queries: list[NDArray[np.float32]], k: int, stages: Stages
    ) -> list[list[Hit]]:
        """Have the server re-rank candidates, which returns only the best."""
        fields = self._layout.hits
        pairs = zip(bodies, queries, strict=True)
        searches = [self._reranking(*pair, candidates, k, fields) for pair in pairs]
        begun = perf_counter()
        answers = self._searches.hits(searches, k)
        begun = stages.took("postings_ms", begun)
        stages.rerank_ms = None
        stages.candidates += candidates * len(bodies)
        results = []
        for query, hits in zip(queries, answers, strict=True):
            best = self._with_scores(hits, self._vectors.products([hit["_score"] for hit in hits], query))
            best.sort(key=BY_ID)
            best.sort(key=BY_SCORE, reverse=True)
            results.append(best[:k])
        stages.took("content_ms", begun)
        return results

    def _reranking(self, body: Json, query: NDArray[np.float32], candidates: int, k: int, fields: Json) -> Json:
        """Return the search ``body`` for the best k of its candidates by the vector ``query``."""
        body = {**body, **fields, "size": min(k, candidates)}
        return requests.rerank_body(body, self._vectors, query, candidates)

    def request(self, search: SearchRequest) -> requests.HttpRequest:
        k, filters, rescore = search.k, search.filters, search.rescore
        most = k if rescore is None else rescore.k
        if most > requests.WINDOW:
            raise BackendError(f"one request has at most {requests.WINDOW} hits, got k = {most}; ask for fewer")
        if rescore is not None and rescore.metric != "dot":
            raise BackendError(f"the server does not re-rank by {rescore.metric}, boc does; add --rerank dot")
        if rescore is not None and not self.generation.state.unit:
            raise BackendError(
                f"{self.generation.name} holds vectors longer than 1, which boc re-ranks itself; index unit vectors"
            )
        features = self._features(search.queries, 0, len(filters))
        if not features:
            raise BackendError("the query has no terms, so it finds nothing; ask for something else")
        body = requests.search_body(self._strategy.query(features), k, search.modality, filters, layout=self._layout)
        fields = {"_source": self._layout.source_fields}
        if rescore is None:
            body |= fields
        else:
            body = self._reranking(body, rescore.queries.vectors[0], k, rescore.k, fields)
        return requests.HttpRequest(self._transport.address, self.generation.name, body)

    def _rescore_here(
        self, bodies: list[Json], candidates: int, queries: list[NDArray[np.float32]], k: int, stages: Stages
    ) -> list[list[Hit]]:
        """Fetch candidates with their vectors, and re-rank them here."""
        fields = self._vectors.hit_fields
        ranked = []
        begun = perf_counter()
        answers = self._searches.hits([{**body, **fields} for body in bodies], candidates)
        begun = stages.took("postings_ms", begun)
        self._check_exact(answers)
        for query, hits in zip(queries, answers, strict=True):
            rows = [Hit(Item(hit["sort"][1], "image", ""), 0.0) for hit in hits]
            scores = dot(query, self._decode_vectors(hits)) if hits else np.empty(0, np.float32)
            ranked.append(reorder(rows, scores, k))
            stages.candidates += len(rows)
        begun = stages.took("rerank_ms", begun)
        items = iter(self.find([hit.item.id for hits in ranked for hit in hits]))
        results = [[Hit(next(items), hit.score) for hit in hits] for hits in ranked]
        stages.took("content_ms", begun)
        return results

    def match(
        self, texts: Sequence[str], k: int, modality: Modality | None = None, filters: Sequence[Filter] = ()
    ) -> list[list[Hit]]:
        if k < 1:
            raise BackendError(f"k must be at least 1, got {k}")
        self._check_words()
        if not texts or (modality is not None and not self.manifest.items[modality]):
            return [[] for _ in texts]
        only = self._only(modality)
        bodies = [requests.search_body(requests.match_body(text), k, only, filters) for text in texts]
        searches = [{**body, **self._layout.hits} for body in bodies]
        answers = self._searches.hits(searches, k, **ALL_SHARDS)
        results = [self._with_scores(hits, [float(hit["_score"]) for hit in hits]) for hits in answers]
        if only is None and self._has_other(results, modality):
            self._mixed = True
            return self.match(texts, k, modality, filters)
        return results

    def _check_words(self) -> None:
        if self._layout.prefix:
            raise BackendError(
                f"{self.generation.name} has words in fields of its own, which boc does not choose; leave out --hybrid "
                "or add a clause for them to the body that boc search --request body prints"
            )

    def _only(self, modality: Modality | None) -> Modality | None:
        """``modality``, or None if the index has no other, since a condition that always holds costs time."""
        return modality if self._mixed else None

    def _takes(self, clauses: int) -> bool:
        """Return whether the server accepts a query with so many clauses; tried with terms that no item has."""
        query = self._strategy.query({f"t{self._n_terms + j}": 1 for j in range(clauses)})
        try:
            self._searches.ask({"query": query, "size": 0})
        except RefusedError as error:
            if "clause" not in str(error).lower():
                raise
            return False
        return True

    def _features(self, queries: TermMatrix, i: int, filters: int) -> dict[str, int]:
        span = slice(queries.indptr[i], queries.indptr[i + 1])
        columns, weights = queries.indices[span].tolist(), queries.data[span].tolist()
        features = self._strategy.features(columns, weights, self.generation.state.digits)
        return self._budget.fit(features, filters + 1)

    def _check_exact(self, answers: Iterable[Sequence[Json]]) -> None:
        if any(hits and hits[0]["_score"] >= EXACT for hits in answers):
            raise BackendError(
                f"scores reach 2^24, from where {self._transport.label} rounds them; use a code of smaller frequencies "
                "(--code bits, or fewer terms: --code NAME:Z/QUERY_Z)"
            )

    @staticmethod
    def _has_other(results: Sequence[Sequence[Hit]], modality: Modality | None) -> bool:
        """Return whether a hit is of another modality than all should be."""
        return modality is not None and bool({hit.item.modality for hits in results for hit in hits} - {modality})

    def _with_scores(self, hits: Sequence[Json], scores: Sequence[float]) -> list[Hit]:
        """Return the hits of an answer with their ``scores``."""
        items_or_ids = self._of_hits(hits)
        long = [item for item in items_or_ids if isinstance(item, str)]
        whole = dict(zip(long, self.find(long), strict=True)) if long else {}
        items = [whole[item] if isinstance(item, str) else item for item in items_or_ids]
        return [Hit(item, score) for item, score in zip(items, scores, strict=True)]

    def _of_hits(self, hits: Sequence[Json]) -> list[Item | str]:
        try:
            return self._layout.of_hits(hits)
        except KeyError as missing:
            if len(hits) > 1:  # one by one, to name the document
                return [item for hit in hits for item in self._of_hits([hit])]
            document = f"the document {hits[0]['_id']}" if "_id" in hits[0] else "a document"
            raise self._foreign(document, missing) from None
