"""Learned terms: the step against its definition, its training, and an index of them."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from boc import plugins
from boc.clustering.codebook import Codebook
from boc.codecs import Code, parse_code
from boc.codecs.learned import LEAST, LearnedTerms
from boc.codecs.parse import code_of
from boc.codecs.presets import learned_code
from boc.errors import BocError
from boc.explain.score import explain
from boc.indexes.build import build_index
from boc.inputs.features import FeatureFile
from boc.search.searcher import Searcher
from boc.types import MODALITIES, Embeddings, Identity, Modality, Ragged, SearchRequest
from boc.vectors import unit_rows
from tests.helpers import boc
from tests.servers.fixtures import kinds

WIDTH = 5


def gaussian(*shape: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def items(counts: list[int], modality: Modality, seed: int) -> Embeddings:
    """Items with a vector and so many concepts each."""
    sets = Ragged.from_sets([gaussian(count, WIDTH, seed=seed + i) for i, count in enumerate(counts)], WIDTH)
    return Embeddings(modality, unit_rows(gaussian(len(counts), WIDTH, seed=seed + 99)), sets)


def book(terms: int, seed: int) -> Codebook:
    thresholds = 0.3 * gaussian(2, 2, terms, seed=seed + 1)
    centroids = gaussian(terms, WIDTH, seed=seed)
    return Codebook(centroids, Identity("t:x", "0" * 64, WIDTH), (), {"z": 3, "query_z": 2}, 9, thresholds=thresholds)


def slow(codebook: Codebook, embeddings: Embeddings, item: int) -> list[float]:
    """The activations of an item, by the definition."""
    assert codebook.thresholds is not None
    assert embeddings.concepts is not None
    of = codebook.thresholds[MODALITIES.index(embeddings.modality)]
    rows = [(0, embeddings.vectors[item]), *((1, row) for row in embeddings.concepts[item])]
    found = []
    for k, w in enumerate(codebook.centroids):
        best = max(float(w @ (row / np.linalg.norm(row))) - float(of[kind, k]) for kind, row in rows)
        found.append(np.log(1 + best) if best > LEAST else 0.0)
    return found


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.sampled_from(MODALITIES), st.integers(0, 999))
def test_activations_are_those_of_the_definition(counts: list[int], modality: Modality, seed: int) -> None:
    codebook, some = book(7, seed), items(counts, modality, seed + 10)
    step = LearnedTerms.from_codebook(codebook, z=7)
    found = step.encode_documents(step.read(some), modality).toarray()
    for i in range(len(counts)):
        assert found[i].tolist() == pytest.approx(slow(codebook, some, i), abs=1e-4)


@given(st.integers(0, 999), st.sampled_from(["documents", "queries"]))
def test_a_code_keeps_the_largest_and_scales_them_to_unit_length(seed: int, side: str) -> None:
    codebook, some = book(7, seed), items([3, 0, 2], "text", seed + 10)
    codec = learned_code(codebook).fit(some)
    rows = getattr(codec, f"encode_{side}")(some).toarray()
    for i, row in enumerate(rows):
        exact = np.array(slow(codebook, some, i))
        exact[np.argsort(-exact, kind="stable")[3 if side == "documents" else 2 :]] = 0
        norm = np.linalg.norm(exact)
        assert row.tolist() == pytest.approx((255 * exact / max(norm, 1e-9)).tolist(), abs=1.01)


@pytest.mark.slow
def test_terms_are_learned_indexed_and_explained(library: Path, tmp_path: Path) -> None:
    made = tmp_path / "terms.npz"
    told = boc("build-codebook", library / "photos.h5", "-o", made, "--kind", "learned", "--clusters", 16)
    assert told.exit_code == 0, told.output
    assert f"16 terms in {made}" in told.output
    assert "epoch 1 of " in told.output
    at, code = f"file:{tmp_path}", f"learned(codebook='{made}', z=4, query_z=3)"
    build_index("learned", library / "photos.h5", code=code, at=at)
    searcher = Searcher.open("learned", at, device="cpu")
    assert str(code_of(searcher.index.manifest.codec)) == "learned:4/3"
    asked = searcher.encoder.encode_texts(["a red box"])
    codes = searcher.codec.encode_queries(asked)
    assert 0 < codes.nnz <= 3
    found = searcher.index.search(SearchRequest(codes, 5, "image"))[0]
    terms = searcher.index.terms([hit.item.id for hit in found])
    assert [hit.score for hit in found] == (terms @ codes.T).toarray()[:, 0].tolist()
    assert explain(searcher, found[0].item.id, "a red box").score == found[0].score
    with pytest.raises(BocError, match=r"holds learned terms; make one with boc build-codebook$"):
        parse_code(f"hard(codebook='{made}')").load_codebook()


@pytest.mark.parametrize("server", kinds("opensearch-3", "elasticsearch-9"), indirect=True)
def test_a_server_finds_by_learned_terms_what_a_folder_does(library: Path, server: Any, tmp_path: Path) -> None:
    plain, made, name = library / "photos.h5", tmp_path / "terms.npz", f"boc-test-{uuid.uuid4().hex[:12]}"
    assert boc("build-codebook", plain, "-o", made, "--kind", "learned", "--clusters", 16).exit_code == 0
    schemes = {"elasticsearch": "elastic", "opensearch": "opensearch"}
    places = f"file:{tmp_path}", f"{schemes[server.kind.engine]}+{server.url}"
    try:
        for at in places:
            build_index(name, plain, code=f"learned(codebook='{made}', z=5, query_z=4)", at=at)
        folder, remote = (Searcher.open(name, at, device="cpu") for at in places)
        with FeatureFile(plain) as file:
            asked = file.batch("text", 0, file.count("text")).embeddings
        codes = remote.codec.encode_queries(asked)
        found, expected = (each.index.search(SearchRequest(codes, 7, "image")) for each in (remote, folder))
        told = [[[(hit.item.id, hit.score) for hit in hits] for hits in rows] for rows in (found, expected)]
        assert told[0] == told[1]
        ids = sorted({id for hits in told[0] for id, _ in hits})
        assert len(ids) > 7
        assert code_of(remote.index.manifest.codec) == code_of(folder.index.manifest.codec)
        assert (remote.index.terms(ids) != folder.index.terms(ids)).nnz == 0
    finally:
        plugins.backend(places[1]).remove(name)


def test_what_does_not_go_together_is_refused(library: Path, tmp_path: Path) -> None:
    other = tmp_path / "book.npz"
    Codebook(np.eye(3, dtype=np.float32), Identity("t:x", "0" * 64, 3), (), {}, 9).save(other)
    with pytest.raises(BocError, match="the codebook holds concepts; make one with boc build-codebook --kind learned"):
        Code("learned", codebook=str(other)).load_codebook()
    with pytest.raises(BocError, match="make one with boc build-codebook FEATURES -o FILE --kind learned"):
        Code("learned").load_codebook()
    with pytest.raises(ValueError, match="clusters must be at least 1, got 0"):
        LearnedTerms(0).fit(np.eye(3))
    wrong = Codebook(np.eye(3, dtype=np.float32), Identity("t:x", "0" * 64, 3), (), {}, 9,
                     thresholds=np.zeros((2, 2, 2), np.float32))  # fmt: skip
    wrong.save(other)
    with pytest.raises(BocError, match="entries do not fit together"):
        Codebook.load(other)
