"""Blocked posting lists give back what was put in, and the kernel and its numpy twin the best rows
of a slow loop."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.random import default_rng
from numpy.typing import NDArray
from scipy import sparse

from boc.errors import BackendError
from indexing.embedded import kernel
from indexing.embedded.postings import BLOCK, Postings, RowScores
from tests.oracles import random_terms, same_matrix, term_matrices, top_rows

NATIVE = kernel._search
BUILT = pytest.mark.skipif(
    NATIVE is None,
    reason="indexing.embedded._search is not built; numpy does its work",
)
both = pytest.mark.parametrize(
    "engine",
    [pytest.param(NATIVE, marks=BUILT, id="C"), pytest.param(None, id="numpy")],
)
Engine = Any
FEW = 8192  # as in topk.h


def top(
    engine: Engine,
    postings: Postings,
    queries: Any,
    k: int,
    mask: NDArray[np.uint8] | None = None,
) -> list[RowScores]:
    return top_rows(
        postings,
        queries,
        k,
        mask,
        native=engine is not None,
    )


def slow_top(
    terms: Any,
    query: Any,
    k: int,
    mask: NDArray[np.uint8] | None,
) -> list[tuple[int, int]]:
    """(row, score): all scores, sorted."""
    scores = terms.astype(np.int64) @ query.toarray()[0].astype(np.int64)
    chosen = scores > 0 if mask is None else (scores > 0) & (mask != 0)
    pairs = [(row, int(scores[row])) for row in np.flatnonzero(chosen).tolist()]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:k]


def assert_equal_to_slow(
    engine: Engine,
    terms: Any,
    queries: Any,
    k: int,
    mask: NDArray[np.uint8] | None = None,
) -> None:
    postings = Postings.from_matrix(terms)
    answers = top(
        engine,
        postings,
        queries,
        k,
        mask,
    )
    assert len(answers) == queries.shape[0]
    for i, (rows, scores) in enumerate(answers):
        assert (rows.dtype, scores.dtype) == (np.int64, np.float64)
        assert list(zip(rows.tolist(), scores.tolist(), strict=True)) == slow_top(
            terms,
            queries[[i]],
            k,
            mask,
        )


def scatter(terms: Any, places: list[int], n: int) -> Any:
    """The rows of ``terms`` at ``places``, ascending, among n rows that are empty otherwise."""
    lengths = np.zeros(n, np.int64)
    lengths[places] = np.diff(terms.indptr)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return sparse.csr_array((terms.data, terms.indices, indptr), shape=(n, terms.shape[1]))


@st.composite
def spread_terms(draw: st.DrawFn, largest: int = 3) -> Any:
    """At most 8 rows that are not empty, somewhere in up to three blocks, over 5 terms."""
    n = draw(
        st.sampled_from(
            [
                1,
                5,
                BLOCK - 1,
                BLOCK,
                BLOCK + 1,
                2 * BLOCK + 70,
            ],
        ),
    )
    places = sorted(draw(st.sets(st.integers(0, n - 1) | st.just(n - 1), max_size=8)))
    return scatter(draw(term_matrices((len(places), 5), largest)), places, n)


@pytest.mark.slow
@both
@given(
    terms=spread_terms(),
    queries=term_matrices((2, 5), 4),
    k=st.integers(1, 9),
    masked=st.booleans(),
    data=st.data(),
)
def test_best_rows_are_those_of_the_slow_loop(
    engine: Engine,
    terms: Any,
    queries: Any,
    k: int,
    masked: bool,
    data: st.DataObject,
):
    mask = None
    if masked:
        mask = np.zeros(terms.shape[0], np.uint8)
        mask[
            data.draw(
                st.lists(st.sampled_from([*np.flatnonzero(np.diff(terms.indptr)).tolist(), 0])),
            )
        ] = 1
    assert_equal_to_slow(
        engine,
        terms,
        queries,
        k,
        mask,
    )


@pytest.mark.slow
@both
@pytest.mark.parametrize(
    "largest",
    [
        1,
        15,
        255,
        256,
        65535,
        65536,
        2**31 - 1,
    ],
)
@pytest.mark.parametrize("weight", [1, 15, 70_000])
def test_so_they_are_where_lists_are_long(engine: Engine, largest: int, weight: int):
    rng = default_rng(largest + weight)
    terms = sparse.vstack(
        [
            random_terms(
                rng,
                (size, 4),
                largest,
                0.8,
            )
            for size in (FEW, 2000)
        ],
        format="csr",
    )
    terms = scatter(
        terms,
        [*range(FEW), *range(BLOCK + 9, BLOCK + 2009)],
        BLOCK + 3000,
    )  # a long block and a short one
    queries = random_terms(
        rng,
        (3, 4),
        weight,
        0.9,
    )
    for k in (1, 700, 20_000):
        assert_equal_to_slow(
            engine,
            terms,
            queries,
            k,
        )
    assert_equal_to_slow(
        engine,
        terms,
        queries,
        50,
        (rng.random(BLOCK + 3000) < 0.3).astype(np.uint8),
    )


@both
@pytest.mark.parametrize("k", [10, 50, 300])
@pytest.mark.parametrize(
    "spare",
    [
        0,
        1,
        2,
        8,
        15,
    ],
)
def test_block_of_few_postings_leaves_room_for_a_block_of_many(
    engine: Engine,
    k: int,
    spare: int,
):
    """The first block fills the buffer of 2 k + 64 keys but for ``spare``; the second one adds 16
    keys a step."""
    first = np.zeros(BLOCK, np.int32)
    first[: 2 * k + 64 - spare] = 1
    second = np.ones(BLOCK, np.int32)
    second.reshape(-1, 64)[:600, :16] = 200
    terms = sparse.csr_array(np.concatenate([first, second])[:, None])
    assert_equal_to_slow(
        engine,
        terms,
        sparse.csr_array(np.array([[1]], np.int32)),
        k,
    )


@both
@pytest.mark.parametrize("n", [FEW - 1, FEW, FEW + 1])
@pytest.mark.parametrize(
    ("largest", "weight"),
    [
        (255, 257),
        (256, 256),
        (65535, 65537),
        (65536, 65536),
        (2**23, 2**30),
        (1, 2**31 - 1),
    ],
)
def test_scores_are_exact_up_to_2_to_the_53(
    engine: Engine,
    n: int,
    largest: int,
    weight: int,
):
    """On both sides of 2**16 and of 2**32, where the kernel counts wider, and no more."""
    frequencies = np.full(n, largest, np.int32)
    frequencies[::3] -= largest > 1
    terms = sparse.csr_array(frequencies[:, None])
    query = sparse.csr_array(np.array([[weight]], np.int32))
    assert_equal_to_slow(
        engine,
        terms,
        query,
        7,
    )
    assert top(
        engine,
        Postings.from_matrix(terms),
        query,
        1,
    )[0][1] == [largest * weight]


@both
@pytest.mark.parametrize(
    "steps",
    [
        [1],
        [-1],
        [0],
        [3, -5, 0],
        [1, -1],
    ],
)
def test_selection_bears_every_order_of_scores(engine: Engine, steps: list[int]):
    """Rising, falling, equal scores: whatever arrives after the threshold is known."""
    rows = np.arange(FEW + 500)
    frequencies = (20_000 + np.resize(steps, len(rows)) * (rows % 4000)).astype(np.int32)
    terms = sparse.csr_array(np.maximum(frequencies, 1)[:, None])
    for k in (1, 31, 32, 33, 3000):
        assert_equal_to_slow(
            engine,
            terms,
            sparse.csr_array(np.array([[2]], np.int32)),
            k,
        )
        assert_equal_to_slow(
            engine,
            terms[:3100],
            sparse.csr_array(np.array([[2]], np.int32)),
            k,
        )


@both
def test_nothing_shared_is_nothing_found(engine: Engine):
    empty = sparse.csr_array((3, 4), dtype=np.int32)
    for n in (0, 1, BLOCK + 1):
        postings = Postings.from_matrix(sparse.csr_array((n, 4), dtype=np.int32))
        for queries in (empty, sparse.csr_array(np.ones((3, 4), np.int32)), empty[:0]):
            answers = top(
                engine,
                postings,
                queries,
                5,
            )
            assert [len(part) for best in answers for part in best] == [0, 0] * queries.shape[0]


@both
def test_a_batch_is_its_queries(engine: Engine):
    rng = default_rng(0)
    terms = random_terms(
        rng,
        (900, 30),
        9,
        0.2,
    )
    queries = random_terms(
        rng,
        (23, 30),
        9,
        0.3,
    )
    postings = Postings.from_matrix(terms)
    single = [
        top(
            engine,
            postings,
            queries[[i]],
            10,
        )[0]
        for i in range(23)
    ]
    np.testing.assert_equal(
        top(
            engine,
            postings,
            queries,
            10,
        ),
        single,
    )


@both
def test_threads_do_not_meet(engine: Engine):
    rng = default_rng(1)
    terms = random_terms(
        rng,
        (9000, 12),
        9,
        0.5,
    )
    queries = random_terms(
        rng,
        (6, 12),
        9,
        0.5,
    )
    postings = Postings.from_matrix(terms)
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(
                lambda _: top(
                    engine,
                    postings,
                    queries,
                    50,
                ),
                range(12),
            ),
        )
    for answer in answers:
        np.testing.assert_equal(answer, answers[0])
    assert_equal_to_slow(
        engine,
        terms,
        queries,
        50,
    )


@pytest.mark.slow
@given(terms=spread_terms(largest=300))
def test_what_was_put_in_comes_back(terms: Any):
    postings = Postings.from_matrix(terms)
    offsets, rows, weights = postings.lists(0, postings.n_terms)
    columns = sparse.csc_array((weights, rows, offsets), shape=terms.shape)
    assert same_matrix(columns.tocsr(), terms)
    assert postings.document_frequencies().tolist() == np.diff(terms.tocsc().indptr).tolist()
    largest = int(terms.data.max(initial=1))
    assert postings.frequencies.dtype == np.min_scalar_type(largest)
    assert len(postings.frequencies) == (terms.nnz if largest > 1 else 0)
    scores = postings.scores(np.array([4, 1]), np.array([2, 3]))
    np.testing.assert_array_equal(
        scores,
        terms
        @ np.array(
            [
                0,
                3,
                0,
                0,
                2,
            ],
        ),
    )


@pytest.mark.slow
@given(terms=spread_terms(), among=st.lists(st.integers(0, 4)), data=st.data())
def test_lookup_is_rows_and_columns(terms: Any, among: list[int], data: st.DataObject):
    places = [*np.flatnonzero(np.diff(terms.indptr)).tolist(), 0, terms.shape[0] - 1]
    chosen = np.array(data.draw(st.lists(st.sampled_from(places))), dtype=np.int64)
    matrix = Postings.from_matrix(terms).lookup(chosen, among)
    mask = np.isin(np.arange(5), among)
    assert matrix.dtype == np.int32
    assert matrix.toarray().tolist() == (terms[chosen].toarray() * mask).tolist()


@pytest.mark.slow
@given(terms=spread_terms(largest=300), data=st.data())
def test_some_rows_are_those_of_the_matrix(terms: Any, data: st.DataObject):
    places = [*np.flatnonzero(np.diff(terms.indptr)).tolist(), 0, terms.shape[0] - 1]
    chosen = np.array(data.draw(st.lists(st.sampled_from(places))), dtype=np.int64)
    postings = Postings.from_matrix(terms)
    assert same_matrix(postings.matrix_of(chosen), terms[chosen])


def damage(postings: Postings, name: str, place: int, value: int) -> Postings:
    changed = getattr(postings, name).copy()
    changed[place] = value
    return replace(postings, **{name: changed})


@both
@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("starts", 1, 10**9),
        ("starts", 1, 2**32 - 1),
        ("starts", 2, 0),
        ("rows", -1, 70),
        ("rows", 0, 70),
    ],
)
def test_damage_is_told_and_leaves_no_trace(
    engine: Engine,
    name: str,
    place: int,
    value: int,
):
    terms = sparse.csr_array(np.ones((70, 3), np.int32))
    postings = Postings.from_matrix(terms)
    query = terms[:1]
    with pytest.raises(ValueError, match=r"^the postings are damaged: .*; rebuild the index$"):
        top(
            engine,
            damage(
                postings,
                name,
                place,
                value,
            ),
            query,
            5,
        )
    with pytest.raises(ValueError, match=r"^the postings are damaged: .*; rebuild the index$"):
        damage(
            postings,
            name,
            place,
            value,
        ).matrix_of(np.array([3]))
    assert (
        top(
            engine,
            postings,
            query,
            100,
        )[0][1].tolist()
        == [3] * 70
    )


@pytest.mark.slow
@both
@settings(max_examples=200)
@given(
    place=st.integers(1, 14),
    value=st.integers(0, 70) | st.integers(0, 2**32 - 1),
    seed=st.integers(0, 3),
)
def test_no_start_leads_out_of_the_postings(
    engine: Engine,
    place: int,
    value: int,
    seed: int,
):
    terms = scatter(
        random_terms(
            seed,
            (20, 5),
            9,
            0.5,
        ),
        [*range(10), *range(BLOCK, BLOCK + 10)],
        2 * BLOCK + 9,
    )
    good = Postings.from_matrix(terms)
    query = sparse.csr_array(np.ones((1, 5), np.int32))
    bad = damage(
        good,
        "starts",
        place,
        value,
    )
    with suppress(ValueError):
        assert (
            top(
                engine,
                bad,
                query,
                99,
            )[0][0].max(initial=0)
            < terms.shape[0]
        )
    with suppress(ValueError):
        assert bad.matrix_of(np.array([0, BLOCK + 9])).shape == (2, 5)
    assert_equal_to_slow(
        engine,
        terms,
        query,
        99,
    )


def test_arrays_that_do_not_fit_are_refused():
    good = Postings.from_matrix(sparse.csr_array(np.array([[1, 2], [0, 300]], np.int32)))
    wrong = [
        {"n": BLOCK + 1},
        {"n_terms": 3},
        {"starts": good.starts[:-1]},
        {"starts": good.starts.astype(np.int64)},
        {"starts": good.starts + np.uint32(1)},
        {"rows": good.rows[:-1]},
        {"rows": good.rows.astype(np.int32)},
        {"rows": np.repeat(good.rows, 2)[::2]},
        {"frequencies": good.frequencies[:-1]},
        {"frequencies": good.frequencies.astype(np.float32)},
    ]
    for change in wrong:
        with pytest.raises(ValueError, match="do not match each other"):
            replace(good, **change)


@both
def test_negative_weights_are_refused(engine: Engine):
    postings = Postings.from_matrix(sparse.csr_array(np.ones((3, 2), np.int32)))
    with pytest.raises(ValueError, match="negative"):
        top(
            engine,
            postings,
            -sparse.csr_array(np.ones((1, 2), np.int32)),
            1,
        )


def test_too_many_postings_are_told():
    too_many = SimpleNamespace(shape=(1, 1), nnz=2**32)
    with pytest.raises(BackendError, match="4294967296 postings"):
        Postings.from_matrix(too_many)
