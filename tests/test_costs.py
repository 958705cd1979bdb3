"""Costs of a code against slow counts and the definition by pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import term_matrices
from scipy import sparse

from boc.costs import Size, bytes_per_item, document_frequencies, gini, postings_read
from boc.errors import BocError


@given(documents=term_matrices((6, 5), 9), queries=term_matrices((3, 5), 9))
def test_postings_are_the_pairs_that_share_a_term(documents: sparse.csr_array, queries: sparse.csr_array) -> None:
    D, Q = documents.toarray(), queries.toarray()
    frequencies = document_frequencies(documents)
    assert frequencies.tolist() == [sum(int(d[j] > 0) for d in D) for j in range(5)]
    met = sum(int(q[j] > 0 and d[j] > 0) for q in Q for d in D for j in range(5))
    assert postings_read(frequencies, queries) == pytest.approx(met / len(Q))


def test_queries_of_another_code_are_refused_with_both_sizes() -> None:
    with pytest.raises(BocError, match="2 queries over 5 terms, lists of 4"):
        postings_read(np.ones(4, dtype=np.int64), sparse.csr_array((2, 5), dtype=np.int32))
    with pytest.raises(BocError, match="0 queries over 4 terms"):
        postings_read(np.ones(4, dtype=np.int64), sparse.csr_array((0, 4), dtype=np.int32))


@given(amounts=st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_gini_is_half_the_relative_mean_difference(amounts: list[int]) -> None:
    n, total = len(amounts), sum(amounts)
    pairs = sum(abs(x - y) for x in amounts for y in amounts)
    assert gini(np.array(amounts)) == pytest.approx(pairs / (2 * n * total) if total else 0)


@given(amount=st.integers(1, 9), n=st.integers(1, 20))
def test_gini_is_0_for_equal_lists_and_largest_for_one(amount: int, n: int) -> None:
    assert gini(np.full(n, amount)) == pytest.approx(0)
    assert gini(np.eye(n)[0] * amount) == pytest.approx(1 - 1 / n)


@pytest.mark.parametrize(("amounts", "what"), [([], "none"), ([3, -2], "-2")])
def test_gini_of_no_amounts_is_refused(amounts: list[int], what: str) -> None:
    with pytest.raises(BocError, match=f"needs amounts of 0 or more, got {what}"):
        gini(np.array(amounts))


def test_bytes_are_those_of_all_files_by_their_part(tmp_path: Path) -> None:
    (tmp_path / "generation" / "codec").mkdir(parents=True)
    sizes = {"indptr.npy": 10, "rows.npy": 20, "frequencies.npy": 5, "vectors.npy": 100, "ids.bin": 7}
    sizes |= {"concepts.npy": 30, "concept_offsets.npy": 8, "concept_scales.npy": 2, "codec/means.npy": 8}
    for name, size in sizes.items():
        (tmp_path / "generation" / name).write_bytes(b"x" * size)
    (tmp_path / "CURRENT").write_bytes(b"generation")
    found = bytes_per_item(tmp_path, 5)
    assert found == Size(postings=7, vectors=20, concepts=8, other=5)
    assert found.total == 40
    assert bytes_per_item(tmp_path / "generation" / "ids.bin", 2).total == 3.5


def test_an_index_is_measured_by_its_own_file_names(library: Path) -> None:
    place = library / "index" / "photos"
    sizes = {f.stem: f.stat().st_size for f in place.glob("generation-*/*.npy")}
    found = bytes_per_item(place, 120)
    assert found.vectors == pytest.approx(sizes["vectors"] / 120)
    assert found.postings == pytest.approx((sizes["indptr"] + sizes["rows"] + sizes["frequencies"]) / 120)
    assert found.total == pytest.approx(sum(f.stat().st_size for f in place.rglob("*") if f.is_file()) / 120)


def test_nothing_has_no_bytes_an_item(tmp_path: Path) -> None:
    with pytest.raises(BocError, match="at least one item, got 0"):
        bytes_per_item(tmp_path, 0)
    with pytest.raises(BocError, match="nowhere"):
        bytes_per_item(tmp_path / "nowhere", 1)
