"""A query that is too large for a server is cut by weight, and only then."""

import warnings

import pytest
from hypothesis import given, strategies as st

from boc.errors import BocWarning
from indexing.server.term_fields import SAFE, ClauseBudget


@pytest.mark.slow
@given(
    limit=st.integers(SAFE + 24, 20_000),
    sizes=st.lists(
        st.integers(0, 30_000),
        max_size=4,
    ),
    others=st.integers(0, 9),
)
def test_budget_is_within_the_limit(
    limit: int,
    sizes: list[int],
    others: int,
):
    asked = []

    def takes(clauses):
        asked.append(clauses)
        return clauses <= limit

    budget = ClauseBudget(takes, "somewhere")
    for size in sizes:
        features = {f"t{j}": j * 7919 % size + 1 for j in range(size)}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kept = budget.fit(features, others)
        assert len(kept) + others <= max(limit, SAFE)
        assert len(kept) >= min(size, SAFE - others)
        assert len(kept) == size or size + others > limit
        assert kept.items() <= features.items()
        left = [weight for feature, weight in features.items() if feature not in kept]
        assert not left or min(kept.values()) >= max(left)
        assert [w.category for w in caught] == [BocWarning] * (len(kept) < size)
    assert len(asked) <= len(sizes)


def test_small_queries_are_not_tried():
    budget = ClauseBudget(lambda clauses: pytest.fail("asked"), "somewhere")
    features = dict.fromkeys(
        map(str, range(SAFE - 3)),
        1,
    )
    assert budget.fit(features, 3) == features
