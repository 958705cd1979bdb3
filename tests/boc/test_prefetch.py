"""Work by threads comes in order, not far ahead, and fails where its result would have come."""

import threading

import pytest
from hypothesis import given, strategies as st

from boc.prefetch import ahead


@pytest.mark.slow
@given(
    things=st.lists(st.integers()),
    threads=st.integers(1, 4),
)
def test_results_are_those_of_a_loop(things: list[int], threads: int):
    assert list(ahead(lambda x: x * x, things, threads)) == [x * x for x in things]


def test_prefetch_is_bounded():
    taken = []

    def things():
        for i in range(100):
            taken.append(i)
            yield i

    results = ahead(lambda x: x, things(), 2)
    for done in range(1, 51):
        next(results)
        assert len(taken) <= done + 2
    results.close()
    assert len(taken) <= 52


def test_two_threads_work_at_once():
    """Neither gets past the barrier alone."""
    barrier = threading.Barrier(2, timeout=300)
    assert sorted(
        ahead(
            lambda _: barrier.wait(),
            range(4),
            2,
        ),
    ) == [0, 0, 1, 1]


def test_an_error_comes_in_its_turn():
    results = ahead(lambda x: 6 // x, [3, 2, 0, 1], 2)
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_iteration_stays_in_the_thread():
    seen = []

    def things():
        for i in range(9):
            seen.append(threading.get_ident())
            yield i

    assert len(list(ahead(lambda x: x, things(), 3))) == 9
    assert set(seen) == {threading.get_ident()}
