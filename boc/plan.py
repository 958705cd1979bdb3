"""Plan searches by deciding whether to find hits by terms or by vectors. All engines execute these
plans.

Usually, candidates are found by terms and ranked by vectors. The exact alternative is to compare
the query with all items that pass the filters. A search uses the exact comparison if it is at least
as fast, or if terms find too few candidates. Terms may find too few candidates because items that
pass a filter may be far from the query and share few terms with it. A plan never changes budgets
that a user has set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from boc.plugins import Engine
    from boc.types import Filter, Modality, SearchRequest

Way: TypeAlias = Literal["terms", "all", "fill"]
"""Methods for finding candidates: by terms, by comparing all items that pass the filters, or by
both, with items that share a term with the query first."""

MOST = 2**31 - 1  # maximum number of items in an index
ALL_COMPARED = "all compared: the code took no part"
MEASURED = 10  # number of hits at which recall is measured
PAGE = 40  # maximum length of the lists of hits that share one set of candidates
ALIGNED = 20  # concept sets compared per hit by an alignment, in an index with measured budgets
QUICK = 10_000  # comparing the vectors of this many items is faster than aligning concept sets


class Costs(NamedTuple):
    """Costs declared by an engine.

    In the time needed to find candidates by terms with a recall of 0.98, the engine can compare
    ``quick`` vector components. The engine compares at most ``window`` items, or ``patience`` times
    as many if only a comparison returns the correct hits. With a dictionary, all queries have the
    same number of terms. With a dictionary and vectors of 256 components, starting a search by
    terms takes as long as comparing ``begin`` items, and reading ``row`` postings takes as long as
    comparing one more item. A search has too few candidates if there are fewer than ``choice`` per
    hit or, with filters, less than 1 / ``far`` of the usual number. If only a fraction of the items
    passes the filters, a query uses (1 / fraction) ** ``growth`` times as many terms.

    If ``compact`` is true, the engine first ranks the candidates by compact codes, then reads the
    vectors of at least ``read`` candidates. Comparing up to ``unscored`` times as many items that
    share a term is faster than selecting the best of these items by score.
    """

    quick: int
    choice: int
    far: int
    patience: float = math.inf
    window: int = MOST
    growth: float = 0.0
    compact: bool = False
    read: int = 10 * MEASURED
    unscored: float = 0.0
    begin: int = 400
    row: float = 2.3


FOLDER = Costs(2_500_000, choice=1, far=2, growth=0.3)
SERVER = Costs(1 << 20, choice=10, far=4, patience=16, window=10_000, unscored=1.0, row=0)


class Statistics(NamedTuple):
    """Index statistics for a request: the number of items ``passing`` the filters, the total number
    of ``items``, the mean length of a posting list, and the dimension of the vectors."""

    passing: int
    items: int
    list_length: float
    dim: int


class Plan(NamedTuple):
    """Plan that specifies how an engine finds the hits for each query in a request.

    The engine finds ``depth`` candidates by the method ``way``, and reads the vectors of ``size``
    candidates. If fewer than ``least`` items share a term with a query, or fewer than ``share`` per
    term, the engine uses the method ``otherwise``. For queries with at most ``unscored`` terms, all
    items that share a term are candidates.
    """

    way: Way
    depth: int
    size: int
    least: int = 0
    share: float = 0.0
    otherwise: Way = "all"
    unscored: float = -1.0

    def way_of(self, compared: int, queries: int) -> Way:
        """Return the method used for the queries: ``otherwise`` if all ``queries`` used it
        (``compared`` counts them), otherwise the method that was tried first."""
        return self.otherwise if 0 < compared == queries else self.way

    def are_few(self, matching: int, n_terms: int) -> bool:
        """Return whether so few items share a term with a query that other items may be closer."""
        return matching < max(self.least, self.share * n_terms)


def postings_read(n_terms: int, depth: float, *, list_length: float, compact: bool) -> float:
    """Return the cost of finding candidates by terms, as an equivalent number of sequentially read
    postings.

    Reading a vector requires a random access. Compact codes are read before vectors, and each term
    adds more codes.
    """
    if compact:
        return n_terms * (list_length + 3) + depth
    return n_terms * list_length + 10 * depth


def quick_items(known: Statistics, costs: Costs, n_terms: int | None, depth: int) -> int:
    """Return the number of items that can be compared in the time needed to find ``depth``
    candidates by ``n_terms`` terms. ``n_terms`` is None if queries vary in length."""
    if n_terms is None or not costs.row:
        return min(costs.quick // known.dim, costs.window)
    cost = postings_read(n_terms, depth, list_length=known.list_length, compact=costs.compact)
    return int((costs.begin + cost / costs.row) * 320 / (known.dim + 64))


def make_plan(
    request: SearchRequest,
    statistics: Callable[[], Statistics],
    costs: Costs,
) -> Plan:
    """Return the plan for a request. ``statistics`` is called only if the plan depends on it."""
    rescore = request.rescore
    if rescore is None:
        return Plan("terms", request.k, request.k)
    known = statistics() if request.planned else None
    aligned = rescore.metric != "dot"
    compact = costs.compact and request.modality is not None and not aligned
    filtered = bool(request.filters)
    return _plan(request.k, rescore.k, request.n_terms, aligned, compact, filtered, known, costs)


@lru_cache(1000)
def _plan(
    depth: int,
    k: int,
    n_terms: int | None,
    aligned: bool,
    compact: bool,
    filtered: bool,
    known: Statistics | None,
    costs: Costs,
) -> Plan:
    if known is not None:
        k = max(k, PAGE)
    plan = Plan("terms", depth, vectors_read(depth, k, costs.read) if compact else depth)
    if known is None:
        return plan
    # For an alignment, vectors find candidates at least as well as dictionary terms; other codes
    # may do better.
    by_vectors = not aligned or n_terms is not None
    quick = QUICK if aligned else quick_items(known, costs, n_terms, depth)
    # Comparing concept sets is slow, so an alignment never compares more items than it would
    # re-rank.
    if known.passing <= (quick if by_vectors else depth):
        return plan._replace(way="all")
    plan = plan._replace(least=min(depth, costs.choice * min(depth, k), known.passing))
    if filtered:
        usual = known.list_length * known.passing / max(1, known.items)
        plan = plan._replace(share=usual / costs.far)
    if known.passing > costs.patience * quick:
        plan = plan._replace(otherwise="fill")
    if costs.unscored and by_vectors:
        plan = plan._replace(unscored=costs.unscored * quick / max(known.list_length, 1e-9))
    return plan


def nearest(request: SearchRequest, recall: object) -> SearchRequest:
    """Return the request that finds the items whose concept sets are compared by an alignment,
    which are the candidates with the nearest vectors. If the budgets were chosen for a vector
    ``recall``, at most ``ALIGNED`` items per hit are compared."""
    rescore = request.rescore
    assert rescore is not None
    k = request.k
    if request.planned and recall:
        k = min(k, ALIGNED * max(rescore.k, PAGE))
    return replace(request, rescore=replace(rescore, metric="dot", k=k))


def vectors_read(depth: int, k: int, read: int = FOLDER.read) -> int:
    """Return the number of candidates whose vectors are read to find k hits, after the candidates
    have been ranked by compact codes. This is a twentieth of the candidates, but at least ``read``
    for lists of up to a page, and at least five per hit for longer lists."""
    least = 5 * k if k > PAGE else read
    return min(depth, max(least, math.ceil(0.05 * depth)))


def usual_way(
    index: Engine,
    find: Modality | None = None,
    filters: Sequence[Filter] = (),
    metric: str | None = None,
) -> Way:
    """Return the method that a search uses to find items that match ``filters``. ``find`` is the
    modality of the items; the default is pictures, or sentences if the index has no pictures.
    ``metric`` defaults to the metric of the index."""
    manifest = index.manifest
    find = find or ("image" if manifest.items["image"] else "text")
    known = index.statistics(find, filters)
    rm, n_terms = manifest.budgets(find)
    aligned = (metric or manifest.rerank) != "dot"
    depth = candidates(MEASURED, rm, planned=True, by_vectors=not aligned)
    return _plan(depth, PAGE, n_terms, aligned, False, False, known, index.costs).way


def least_items(index: Engine) -> int:
    """Return the number of items that can be compared in less time than it takes to find candidates
    by terms, whichever budgets are used."""
    known = Statistics(0, 0, 0, index.manifest.identity.dim)
    return quick_items(known, index.costs, 0, 0)


def candidates(k: int, rm: float, *, planned: bool, by_vectors: bool = True) -> int:
    """Return the number of candidates for k hits, with ``rm`` candidates per hit.

    Unless a user has set the budgets, all lists of up to a page have the same candidates, so that a
    longer list starts with the same hits as a shorter list. A search by vectors uses the number of
    candidates for which recall was measured. An alignment uses the number for a full page."""
    if not planned or k > PAGE:
        return min(math.ceil(rm * k), MOST)
    measured = rm * (MEASURED if by_vectors else PAGE)
    return min(max(math.ceil(measured), PAGE), MOST)


def pages(k: int) -> list[int]:
    """Return the lengths of the lists from which a list of k hits is built. The first list is one
    page long, and each list is twice as long as the previous list."""
    sizes = [PAGE]
    while sizes[-1] < k:
        sizes.append(2 * sizes[-1])
    return sizes


def term_growth(
    index: Engine,
    find: Modality,
    filters: Sequence[Filter],
    *,
    planned: bool,
) -> float:
    """Return the factor by which filters increase the number of query terms, because the nearest
    items that pass the filters are farther away."""
    if not planned or not filters or not index.costs.growth:
        return 1.0
    share = max(1, index.statistics(find, filters).passing) / index.manifest.items[find]
    return float(2 ** (index.costs.growth * round(math.log2(1 / share))))
