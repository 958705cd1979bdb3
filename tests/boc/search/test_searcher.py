"""Queries of a few terms only, the heaviest; what a search took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from boc.codecs.topz import heaviest
from boc.errors import BocError
from boc.search.searcher import Searcher
from boc.types import Rescore, Stages
from indexing.embedded.index import EmbeddedIndex
from tests.helpers import boc
from tests.oracles import assert_canonical, term_matrices


@given(terms=term_matrices((4, 9), 5), z=st.integers(1, 11))
def test_the_heaviest_terms_are_kept_and_ties_go_to_the_lower(terms: sparse.csr_array, z: int) -> None:
    found = heaviest(terms, z)
    assert_canonical(found, terms.shape)
    for row, cut in zip(terms.toarray().tolist(), found.toarray().tolist(), strict=True):
        kept = sorted((j for j, f in enumerate(row) if f), key=lambda j: (-row[j], j))[:z]
        assert cut == [f if j in kept else 0 for j, f in enumerate(row)]


@pytest.fixture(scope="module")
def searcher(library: Path) -> Searcher:
    return Searcher.open("photos", f"file:{library / 'index'}", device="cpu")


def test_a_search_asks_by_the_terms_that_are_kept(searcher: Searcher) -> None:
    queries = searcher.encoder.encode_texts(["a red box", "something green"])
    codes = searcher.codec.encode_queries(queries)
    for z in (1, 3, 1000):
        stages = Stages()
        found = searcher.search_vectors(queries, k=4, rm=2, query_z=z, stages=stages)
        rescore = Rescore("dot", queries, 4)
        assert found == searcher.index.search(heaviest(codes, z), 8, "image", rescore=rescore)
        assert stages.codes is not None
        assert np.diff(stages.codes.indptr).tolist() == [min(z, n) for n in np.diff(codes.indptr).tolist()]
        alone = searcher.search("a red box", k=4, rm=2, query_z=z)
        assert [hit.item for hit in alone] == [hit.item for hit in found[0]]
    with pytest.raises(BocError, match="query_z must be at least 1"):
        searcher.search("a red box", query_z=0)


def test_a_search_tells_what_encoding_and_coding_took(searcher: Searcher, library: Path) -> None:
    for query in ({"text": "a red box"}, {"image": library / "images" / "000.png"}):
        stages = Stages()
        assert searcher.search(**query, k=3, rm=2, stages=stages) == searcher.search(**query, k=3, rm=2)  # type: ignore[arg-type]
        assert min(stages.encode_ms, stages.code_ms, stages.postings_ms, stages.content_ms) > 0
        assert stages.candidates == 6


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("options", [{}, {"k": 3, "rm": 1.5, "query_z": 4}, {"k": 50, "find": "text"}])
def test_arrays_are_the_ids_and_scores_of_the_hits(
    searcher: Searcher, monkeypatch: pytest.MonkeyPatch, threads: int, options: dict[str, Any]
) -> None:
    monkeypatch.setattr("boc.search.arrays.BLOCK", 2)
    queries = searcher.encoder.encode_texts(["a red box", "something green", "a box", "blue", "two red boxes"])
    ids, scores = searcher.search_arrays(queries, threads=threads, **options)
    k = options.get("k", 10)
    assert (ids.shape, scores.shape, scores.dtype) == ((5, k), (5, k), np.float32)
    for i in range(5):
        hits = searcher.search_vectors(queries.take([i]), **options)[0]
        rest = k - len(hits)
        assert ids[i].tolist() == [*(hit.item.id for hit in hits), *[None] * rest]
        assert scores[i].tolist() == [*(hit.score for hit in hits), *[-np.inf] * rest]


def test_arrays_of_no_queries_are_empty(searcher: Searcher) -> None:
    ids, scores = searcher.search_arrays(searcher.encoder.encode_texts(["a"]).take([]), k=3)
    assert ids.shape == scores.shape == (0, 3)


def test_arrays_refuse_options_that_work_on_hits(searcher: Searcher) -> None:
    queries = searcher.encoder.encode_texts(["a red box"])
    with pytest.raises(BocError, match="leave out mmr, collapse, or call search_vectors"):
        searcher.search_arrays(queries, mmr=0.5, collapse=True)
    with pytest.raises(BocError, match="threads must be at least 1, got 0"):
        searcher.search_arrays(queries, threads=0)


def test_a_stored_item_is_what_was_indexed(searcher: Searcher) -> None:
    found = searcher.stored("003.png#1")
    assert found.modality == "text"
    assert found.vectors.dtype == np.float32
    assert np.array_equal(found.vectors, searcher.index.vectors(["003.png#1"]))
    with pytest.raises(KeyError):
        searcher.stored("none such")


def test_a_renewed_searcher_keeps_the_encoder(searcher: Searcher) -> None:
    encoder = searcher.encoder
    found = searcher.renewed(force=True)
    assert found.encoder is encoder
    assert found.index is not searcher.index
    assert found.search("a red box") == searcher.search("a red box")


def test_an_index_is_taken_anew_if_it_was_edited_and_its_codec_fetched_then_only(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, photos = f"file:{tmp_path}", library / "photos.h5"
    assert boc("index", "photos", photos, "--at", at).exit_code == 0
    searcher = Searcher.open("photos", at, device="cpu")
    fetched: list[EmbeddedIndex] = []
    arrays = EmbeddedIndex.arrays
    monkeypatch.setattr(EmbeddedIndex, "arrays", lambda index: fetched.append(index) or arrays(index))
    assert searcher.renewed() is searcher
    assert not fetched
    for _ in range(2):  # the same items in place of those that are there, as many as before
        assert boc("add", "photos", photos, "--at", at).exit_code == 0
        fetched.clear()
        found = searcher.renewed()
        assert found is not searcher
        assert fetched == [found.index]
        assert found.index.manifest.items == searcher.index.manifest.items
        searcher = found
    before = searcher.search_vectors(searcher.stored("003.png"), k=5)
    assert boc("compact", "photos", "--at", at).exit_code == 0
    assert searcher.renewed() is searcher
    assert searcher.search_vectors(searcher.stored("003.png"), k=5) == before
    assert Searcher.open("photos", at).search_vectors(searcher.stored("003.png"), k=5) == before
