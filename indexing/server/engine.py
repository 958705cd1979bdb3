"""Search an index on a server."""

from collections.abc import Sequence
from functools import lru_cache
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from boc.errors import BackendError
from boc.plan import SERVER, Plan, Statistics, make_plan, nearest
from boc.rerank.alignment import alignment_scores
from boc.rerank.dot import ids_and_scores, reorder
from boc.types import Filter, Hit, Item, Modality, Rescore, SearchRequest, Stages, TermMatrix
from boc.vectors import batches

from .._validate import check_conditions, check_request
from . import requests
from .aliases import Generation
from .contents import BATCH, Contents
from .term_fields import EXACT, ClauseBudget
from .transport import Json, RefusedError, Transport

ALL_SHARDS = {"search_type": "dfs_query_then_fetch"}
"""Search type that combines the word statistics of all shards, so that scores do not depend on the
shard."""


class ServerEngine(Contents):
    """Search a generation of an index. Thread-safe."""

    def __init__(self, transport: Transport, generation: Generation) -> None:
        super().__init__(transport, generation)
        self._budget = ClauseBudget(self._takes, transport.label)
        self.costs = SERVER._replace(quick=self._vectors.quick, unscored=self._vectors.unscored)
        self._passing = lru_cache(256)(self._count)

    def search(self, request: SearchRequest, stages: Stages | None = None) -> list[list[Hit]]:
        modality = request.modality
        rescore = request.rescore
        stages = stages or Stages()
        check_request(request, self.manifest, self.generation.name)
        if modality is not None and not self.manifest.items[modality]:
            return [[] for _ in range(len(request))]
        if rescore is not None and rescore.k > requests.WINDOW:
            raise BackendError(
                f"at most {requests.WINDOW} hits can be re-ranked, got k = {rescore.k}; set a "
                "smaller k",
            )
        if rescore is not None and rescore.metric != "dot":
            return self._align(request, rescore, stages)
        return self._hits(request, self._plan(request), stages)

    def rank(self, request: SearchRequest) -> tuple[NDArray[np.object_], NDArray[np.float64]]:
        width = min(request.most, sum(self.manifest.items.values()))
        return ids_and_scores(self.search(request), width)

    def statistics(self, modality: Modality | None, filters: Sequence[Filter] = ()) -> Statistics:
        """Return the statistics on which a plan is based. The number of items that pass the filters
        is cached for a minute."""
        manifest = self.generation.manifest
        passing = self._passing(modality, tuple(filters), int(monotonic() / 60))
        list_length = manifest.postings / self._n_terms
        total = sum(manifest.items.values())
        return Statistics(passing, total, list_length, manifest.identity.dim)

    def _plan(self, request: SearchRequest) -> Plan:
        costs = self.costs
        if request.rescore is None:
            costs = costs._replace(patience=0, unscored=0.0)
        return make_plan(request, lambda: self.statistics(request.modality, request.filters), costs)

    def _hits(self, request: SearchRequest, plan: Plan, stages: Stages) -> list[list[Hit]]:
        """Return the hits for each query. If the terms of a query find too few candidates, the
        search is repeated with the alternative method of the plan."""
        answers = self._answers(request, range(len(request)), plan, stages)
        lengths = np.diff(request.queries.indptr).tolist()
        few = [i for i, (_, matched) in enumerate(answers) if plan.are_few(matched, lengths[i])]
        if few:
            again = self._answers(request, few, plan._replace(way=plan.otherwise), stages)
            for i, answer in zip(few, again, strict=True):
                answers[i] = answer
        stages.plan = plan.way_of(len(few), len(answers))
        return [hits for hits, _ in answers]

    def _count(self, modality: Modality | None, filters: Sequence[Filter], period: int) -> int:
        return self._total(requests.search_body(None, 0, modality, filters, layout=self._layout))

    def _total(self, body: Json) -> int:
        counted = {"query": body["query"], "size": 0, "track_total_hits": True}
        return int(self._searches.ask(counted)["hits"]["total"]["value"])

    def _depth(self, request: SearchRequest, plan: Plan, i: int) -> int:
        """Return the number of candidates to re-rank for query i. ``RANKED`` means all matching
        items."""
        bounds = request.queries.indptr
        n_terms = int(bounds[i + 1] - bounds[i])
        if plan.way == "all" or n_terms <= plan.unscored:
            return requests.RANKED
        if request.planned and request.rescore is not None:
            return min(plan.depth, requests.WINDOW)
        return plan.depth

    def _body(
        self,
        request: SearchRequest,
        i: int,
        plan: Plan,
        fields: Json,
    ) -> Json | None:
        """Return the search body for query i, which requests ``fields`` for the hits, or None if
        the query's terms do not occur in any item."""
        depth = self._depth(request, plan, i)
        rescore = request.rescore
        must = may = None
        if plan.way != "all" and (
            features := self._features(request.queries, i, len(request.filters))
        ):
            # Term scores are not needed if all matching items are re-ranked.
            unscored = rescore is not None and depth > requests.WINDOW
            must = (self._strategy.matching if unscored else self._strategy.query)(features)
        if plan.way != "terms":
            may = must
            must = None
        elif must is None:
            return None
        modality = request.modality
        body = requests.search_body(must, depth, modality, request.filters, may, self._layout)
        body |= fields
        if rescore is None:
            return body
        body["size"] = min(rescore.k, depth)
        return requests.rerank_body(body, self._vectors, rescore.queries.vectors[i], depth)

    def _answers(
        self,
        request: SearchRequest,
        numbers: Sequence[int],
        plan: Plan,
        stages: Stages,
    ) -> list[tuple[list[Hit], int]]:
        """Return the hits for the queries with these ``numbers``, and the number of matching items
        for each query."""
        depths = {i: self._depth(request, plan, i) for i in numbers}
        depth = max(depths.values(), default=1)
        rescore = request.rescore
        answers: dict[int, tuple[list[Hit], int]] = {i: ([], 0) for i in numbers}
        fields = self._layout.hits
        bodies = {i: body for i in numbers if (body := self._body(request, i, plan, fields))}
        most = depth if rescore is None else request.most
        for part in batches(list(bodies), BATCH):
            pages = self._searches.pages([bodies[i] for i in part], most)
            for i, (hits, total) in zip(part, pages, strict=True):
                if rescore is not None:
                    stages.candidates += min(depths[i], total)
                answers[i] = self._ranked(hits, rescore, i), total
        return list(answers.values())

    def _ranked(self, hits: Sequence[Json], rescore: Rescore | None, i: int) -> list[Hit]:
        """Return the hits for query i, ranked by term scores, or the best hits if the server
        re-ranked them."""
        scores = _scores(hits)
        if rescore is not None:
            products = self._vectors.products(scores, rescore.queries.vectors[i])
            return reorder(self._with_scores(hits, scores), products, rescore.k)
        if scores and scores[0] >= EXACT:
            raise BackendError(
                f"scores reach 2^24, above which {self._transport.label} rounds them",
                "use a code of smaller frequencies (<--code bits>, or fewer terms: <code "
                "NAME:Z/QUERY_Z>)",
            )
        return self._with_scores(hits, scores)

    def _align(self, request: SearchRequest, rescore: Rescore, stages: Stages) -> list[list[Hit]]:
        modality = request.modality
        assert modality is not None
        near = nearest(request, self.manifest.recall)
        assert near.rescore is not None
        near.rescore.k = min(near.rescore.k, requests.WINDOW)
        ranked = []
        for i, hits in enumerate(self._hits(near, self._plan(request), stages)):
            concepts = self.concepts([hit.item.id for hit in hits])
            scores = alignment_scores(rescore, i, concepts, modality)
            ranked.append(reorder(hits, scores.tolist(), rescore.k))
        return ranked

    def request(self, search: SearchRequest) -> str:
        rescore = search.rescore
        check_request(search, self.manifest, self.generation.name)
        if search.most > requests.WINDOW:
            raise BackendError(
                f"one request has at most {requests.WINDOW} hits, got k = {search.most}; set a "
                "smaller k",
            )
        if rescore is not None and rescore.metric != "dot":
            raise BackendError(
                f"the server cannot re-rank by {rescore.metric}; only boc can",
                "add <--rerank dot>",
            )
        plan = self._plan(search)
        fields = {"_source": self._layout.source_fields}
        body = self._body(search, 0, plan, fields)
        matched = 0 if body is None else self._total(body)
        if plan.are_few(matched, int(search.queries.indptr[1])):
            body = self._body(search, 0, plan._replace(way=plan.otherwise), fields)
        if body is None:
            raise BackendError(
                "the query has no terms and no hits; try another query",
            )
        return requests.printed(body)

    def match(
        self,
        texts: Sequence[str],
        k: int,
        modality: Modality | None = None,
        filters: Sequence[Filter] = (),
    ) -> list[list[Hit]]:
        check_conditions(k, modality, filters, self.manifest)
        self._check_words()
        if not texts or (modality is not None and not self.manifest.items[modality]):
            return [[] for _ in texts]
        queries = [{"match": {"words": {"query": text, "boost": 1.0}}} for text in texts]
        bodies = [requests.search_body(query, k, modality, filters) for query in queries]
        searches = [{**body, **self._layout.hits} for body in bodies]
        pages = self._searches.pages(searches, k, **ALL_SHARDS)
        return [self._with_scores(hits, _scores(hits)) for hits, _ in pages]

    def _check_words(self) -> None:
        if self._layout.prefix:
            raise BackendError(
                f"{self.generation.name} has its own text fields, from which boc does not choose",
                "leave out <--hybrid>, or add a clause for these fields to the body of a request",
            )

    def _takes(self, clauses: int) -> bool:
        """Test whether the server accepts a query with this number of clauses, using terms that do
        not occur in the index."""
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
        columns = queries.indices[span].tolist()
        weights = queries.data[span].tolist()
        features = self._strategy.features(columns, weights, self.generation.state.digits)
        return self._budget.fit(features, filters + 1)

    def _with_scores(self, hits: Sequence[Json], scores: Sequence[float]) -> list[Hit]:
        items_or_ids = self._of_hits(hits)
        long = [item for item in items_or_ids if isinstance(item, str)]
        whole = dict(zip(long, self.find(long), strict=True)) if long else {}
        items = [whole[item] if isinstance(item, str) else item for item in items_or_ids]
        return [Hit(item, score) for item, score in zip(items, scores, strict=True)]

    def _of_hits(self, hits: Sequence[Json]) -> list[Item | str]:
        try:
            return self._layout.of_hits(hits)
        except KeyError as missing:
            if len(hits) > 1:  # read hits individually to identify the document
                return [item for hit in hits for item in self._of_hits([hit])]
            document = f"the document {hits[0]['_id']}" if "_id" in hits[0] else "a document"
            raise self._foreign(document, missing) from None


def _scores(hits: Sequence[Json]) -> list[float]:
    return [float(hit["_score"]) for hit in hits]
