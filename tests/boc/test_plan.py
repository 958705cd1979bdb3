"""The plan of a search, and the numbers that it is made from."""

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import sparse

from boc.plan import (
    FOLDER,
    QUICK,
    SERVER,
    Costs,
    Statistics,
    candidates,
    least_items,
    make_plan,
    nearest,
    postings_read,
    usual_way,
    vectors_read,
)
from boc.types import Embeddings, Filter, Rescore, SearchRequest
from tests.oracles import new_manifest

TERMS = sparse.csr_array((1, 9), dtype=np.int32)
VECTORS = Embeddings(
    "text",
    np.zeros((1, 4), np.float32),
)


def request_for(k: int, depth: int, **options: Any) -> SearchRequest:
    return SearchRequest(
        TERMS,
        depth,
        "image",
        rescore=Rescore("dot", VECTORS, k),
        **{"planned": True, **options},
    )


@given(
    depth=st.integers(1, 5000),
    k=st.integers(1, 300),
)
def test_vectors_read_are_a_twentieth_and_a_hundred(depth: int, k: int):
    size = vectors_read(depth, k)
    least = max(5 * k if k > 40 else 100, depth / 20)
    assert size <= depth
    assert size == depth or least <= size < least + 1


@given(
    k=st.integers(1, 99),
    rm=st.floats(1, 1e300),
)
def test_all_lists_up_to_a_page_have_the_same_candidates(k: int, rm: float):
    assert candidates(k, rm, planned=False) == min(math.ceil(k * rm), 2**31 - 1)
    for by_vectors, of in ((True, 10), (False, 40)):
        found = candidates(k, rm, planned=True, by_vectors=by_vectors)
        least = candidates(k if k > 40 else of, rm, planned=False)
        assert found == (least if k > 40 else max(40, least))


@given(
    n_terms=st.integers(0, 500),
    depth=st.integers(0, 3000),
    list_length=st.integers(0, 10**5),
    compact=st.booleans(),
)
def test_each_term_reads_its_list_and_each_candidate_its_vector(
    n_terms: int,
    depth: int,
    list_length: int,
    compact: bool,
):
    cost = partial(postings_read, list_length=list_length, compact=compact)
    assert cost(0, 0) == 0
    per_term = list_length + 3 if compact else list_length
    assert cost(n_terms + 1, depth) == cost(n_terms, depth) + per_term
    assert cost(n_terms, depth + 1) == cost(n_terms, depth) + (1 if compact else 10)


@given(
    passing=st.integers(0, 10**7),
    dim=st.integers(1, 4096),
    matching=st.integers(0, 10**7),
    k=st.integers(1, 50),
    rm=st.integers(1, 50),
    costs=st.sampled_from(
        [
            FOLDER,
            SERVER,
            SERVER._replace(patience=0),
        ],
    ),
)
def test_all_are_compared_where_that_is_quick_or_terms_find_too_few(
    passing: int,
    dim: int,
    matching: int,
    k: int,
    rm: int,
    costs: Costs,
):
    known = Statistics(passing, 10**7, 500.0, dim)
    plan = make_plan(
        request_for(k, k * rm),
        lambda: known,
        costs,
    )
    assert (plan.way == "all") == (passing <= min(costs.quick // dim, costs.window))
    enough = min(k * rm, max(k, 40) * costs.choice)
    few = plan.are_few(min(matching, passing), 20)
    assert few == (plan.way == "terms" and min(matching, passing) < min(enough, passing))


@given(
    passing=st.integers(0, 10**5),
    dim=st.integers(1, 4096),
    n_terms=st.integers(1, 500),
    depth=st.integers(10, 3000),
)
def test_folder_compares_all_for_the_price_of_a_dictionary(
    passing: int,
    dim: int,
    n_terms: int,
    depth: int,
):
    known = Statistics(passing, 10**5, 20.0, dim)
    plan = make_plan(request_for(10, depth, n_terms=n_terms), lambda: known, FOLDER)
    price = (passing * (dim + 64) / 320 - FOLDER.begin) * FOLDER.row
    by_terms = postings_read(n_terms, depth, list_length=20, compact=False)
    assert (plan.way == "all") == (price <= by_terms)


@given(
    passing=st.integers(0, 20_000),
    n_terms=st.none() | st.integers(1, 500),
    depth=st.integers(40, 3000),
    costs=st.sampled_from([FOLDER, SERVER]),
)
def test_an_alignment_has_the_same_candidates_on_all_engines(
    passing: int,
    n_terms: int | None,
    depth: int,
    costs: Costs,
):
    request = request_for(10, depth, n_terms=n_terms)
    assert request.rescore is not None
    request.rescore.metric = "mrsw"
    known = Statistics(passing, 10**5, 20.0, 512)
    plan = make_plan(request, lambda: known, costs._replace(compact=True))
    assert (plan.way == "all") == (passing <= (depth if n_terms is None else QUICK))
    assert plan.size == plan.depth == depth
    assert n_terms is not None or plan.unscored < 0


@given(
    depth=st.integers(1, 20_000),
    k=st.integers(1, 100),
    planned=st.booleans(),
    measured=st.booleans(),
)
def test_concept_sets_of_twenty_per_hit_are_compared_where_budgets_are_measured(
    depth: int,
    k: int,
    planned: bool,
    measured: bool,
):
    request = request_for(k, depth, planned=planned)
    near = nearest(request, {"target": 0.98} if measured else {})
    assert near.rescore is not None
    assert near.rescore.metric == "dot"
    most = 20 * max(k, 40) if planned and measured else depth
    assert near.most == min(depth, most)
    assert request.rescore is not None
    assert request.rescore.k == k


@pytest.mark.parametrize("dim", [16, 384, 1024])
@pytest.mark.parametrize("rerank", ["dot", "mrsw"])
def test_way_of_an_index_on_a_server(dim: int, rerank: str):
    """By vectors, budgets are measured of each index that is searched by terms; an alignment under
    a code that is no dictionary compares no more concept sets than candidates."""
    manifest = replace(new_manifest(9, dim), rerank=rerank, items={"image": 9, "text": 0})
    costs = SERVER._replace(quick=1 << 22)
    for count in (400, 401, 4096, 4097, 10_000, 10_001, 12_000):
        known = Statistics(count, count, 2.0, dim)
        index = SimpleNamespace(
            costs=costs,
            manifest=manifest,
            statistics=lambda find, filters, known=known: known,
        )
        least = least_items(index) if rerank == "dot" else 400
        assert (usual_way(index) == "all") == (count <= least)
        assert usual_way(index, metric="dot") == ("all" if count <= least_items(index) else "terms")


def test_under_filters_less_than_usual_is_too_few():
    filters = [Filter("n", "=", 1)]
    known = Statistics(10**6, 10**7, 500.0, 512)
    plan = make_plan(
        request_for(10, 100, filters=filters),
        lambda: known,
        FOLDER,
    )
    # A query of 20 terms shares one with 20 x 500 items, of which a tenth passes.
    assert [plan.are_few(matching, 20) for matching in (499, 500)] == [True, False]
    assert not make_plan(
        request_for(10, 100),
        lambda: known,
        FOLDER,
    ).are_few(
        499,
        20,
    )


@pytest.mark.parametrize("costs", [FOLDER, SERVER])
def test_budgets_by_hand_need_no_statistics(costs: Costs):
    plan = make_plan(
        request_for(5, 50, planned=False),
        lambda: 1 / 0,
        costs,
    )  # type: ignore[arg-type, return-value]
    assert (plan.way, plan.depth, plan.are_few(0, 20)) == ("terms", 50, False)
