"""Learned terms: the step against its definition, its training, and an index of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from boc import plugins
from boc.clustering import learned_terms
from boc.clustering.codebook import Codebook
from boc.clustering.learned_head import item_rows
from boc.clustering.learned_terms import Adam, Forward, Head, Pairs, contrast, train
from boc.codecs import Code, parse_code
from boc.codecs.code_from_config import code_of
from boc.codecs.learned import LEAST, LearnedTerms
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
    return Codebook(
        centroids, Identity("t:x", "0" * 64, WIDTH), (), {"z": 3, "query_z": 2}, 9, 1.0, thresholds=thresholds
    )


def head_of(codebook: Codebook) -> Head:
    assert codebook.thresholds is not None
    return Head(codebook.centroids.copy(), codebook.thresholds.copy())


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


@given(st.integers(0, 99))
def test_the_loss_is_that_of_encoders_and_its_gradient_that_of_differences(seed: int) -> None:
    torch = pytest.importorskip("torch")
    from encoders.training import losses

    owners = np.array([0, 0, 1, 2, 2])
    scores = gaussian(5, 3, seed=seed)
    loss, gradient = contrast(scores, owners)
    tensor = torch.tensor(scores.T, dtype=torch.float64, requires_grad=True)
    positive = torch.tensor(owners[None, :] == np.arange(3)[:, None])
    theirs = losses.contrast(tensor, positive, 1.0) / len(owners)
    theirs.backward()
    assert loss == pytest.approx(float(theirs.detach()), rel=1e-5)
    assert np.allclose(gradient, tensor.grad.numpy().T, atol=1e-5)


@given(st.integers(0, 99), st.integers(1, 7))
def test_gradients_of_the_head_are_those_of_differences(seed: int, z: int) -> None:
    head, rows, weights = head_of(book(7, seed)), item_rows(items([2, 0, 3], "image", seed)), gaussian(3, 7, seed=seed)
    forward = Forward(rows, head, "image", z)
    directions, thresholds = np.zeros_like(head.directions), np.zeros_like(head.thresholds)
    forward.backward(weights, directions, thresholds)
    assert not thresholds[1].any()  # of the other modality

    def changed(change: Callable[[Head, float], None]) -> float:
        values = []
        for sign in (1, -1):
            other = Head(head.directions.astype(np.float64), head.thresholds.astype(np.float64))
            change(other, sign * 1e-3)
            there = Forward(Ragged(rows.values.astype(np.float64), rows.offsets), other, "image", z)
            values.append(float((there.unit * weights).sum()) if (there.kept == forward.kept).all() else np.nan)
        return (values[0] - values[1]) / 2e-3

    def turn(other: Head, by: float) -> None:
        other.directions[2, 1] += by

    def lift(other: Head, by: float) -> None:
        other.thresholds[0, 1, 2] += by

    for change, found in ((turn, directions[2, 1]), (lift, thresholds[0, 1, 2])):
        expected = changed(change)
        if np.isfinite(expected):
            assert float(found) == pytest.approx(expected, abs=1e-2)


def pairs_of(count: int, seed: int) -> Pairs:
    """Pictures and two captions each, which lie apart, and differ in two components that say nothing."""
    vectors = gaussian(count, WIDTH, seed=seed)
    texts = np.repeat(vectors, 2, axis=0)
    texts[:, :2] = gaussian(2 * count, 2, seed=seed + 1)
    texts[:, 2] += 1
    rows: dict[Modality, Ragged] = {
        "image": item_rows(Embeddings("image", vectors)), "text": item_rows(Embeddings("text", texts)),
    }  # fmt: skip
    return Pairs(rows, {i: np.array([2 * i, 2 * i + 1]) for i in range(count)})


def test_training_finds_terms_that_both_modalities_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_terms, "EPOCHS", 30)
    monkeypatch.setattr(learned_terms, "RATE", 0.02)
    pairs = pairs_of(64, 0)
    head = learned_terms.first_head(pairs, 24, 0)
    again = Head(head.directions.copy(), head.thresholds.copy())
    losses = list(train(head, pairs, z=4, query_z=4))
    assert losses[-1] < losses[0] - 0.5
    assert losses == list(train(again, pairs, z=4, query_z=4))
    assert np.array_equal(head.directions, again.directions)
    found, asked = (Forward(pairs.rows[m], head, m, 4).unit for m in MODALITIES)
    first = (asked @ found.T).argmax(axis=1)
    assert (first == np.arange(128) // 2).mean() > 0.1  # chance is 1 / 64
    used = [(side > 0).any(axis=0) for side in (found, asked)]
    assert (used[0] & used[1]).sum() >= 0.8 * (used[0] | used[1]).sum()


def test_adam_goes_down() -> None:
    x = np.array([3.0, -2.0], np.float32)
    adam = Adam([x])
    for _ in range(400):
        adam.step([2 * x], 0.05)
    assert np.abs(x).max() < 0.01


@pytest.mark.slow
def test_terms_are_learned_indexed_and_explained(library: Path, tmp_path: Path) -> None:
    made = tmp_path / "terms.npz"
    told = boc("build-codebook", library / "photos.h5", "-o", made, "--learned", "--clusters", 16)
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
    with pytest.raises(BocError, match="holds learned terms; make one without boc build-codebook --learned"):
        parse_code(f"hard(codebook='{made}')").load_codebook()


@pytest.mark.parametrize("server", kinds("opensearch-3", "elasticsearch-9"), indirect=True)
def test_a_server_finds_by_learned_terms_what_a_folder_does(library: Path, server: Any, tmp_path: Path) -> None:
    plain, made, name = library / "photos.h5", tmp_path / "terms.npz", f"boc-test-{uuid.uuid4().hex[:12]}"
    assert boc("build-codebook", plain, "-o", made, "--learned", "--clusters", 16).exit_code == 0
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
    Codebook(np.eye(3, dtype=np.float32), Identity("t:x", "0" * 64, 3), (), {}, 9, 0.5).save(other)
    with pytest.raises(BocError, match="the codebook holds concepts; make one with boc build-codebook --learned"):
        Code("learned", codebook=str(other)).load_codebook()
    with pytest.raises(BocError, match="make one with boc build-codebook FEATURES -o FILE --learned"):
        Code("learned").load_codebook()
    for option in ("--dictionary", "--spherical", "--words-only"):
        refused = boc("build-codebook", library / "photos.h5", "-o", tmp_path / "n.npz", "--learned", option)
        assert refused.exit_code == 2
        assert "--learned learns terms from whole pictures" in refused.output
    both = boc("build-codebook", library / "photos.h5", "-o", tmp_path / "n.npz", "--learned", "--words")
    assert "--words learns words from captions" in both.output
    with pytest.raises(ValueError, match="clusters must be at least 1, got 0"):
        LearnedTerms(0).fit(np.eye(3))
    wrong = Codebook(np.eye(3, dtype=np.float32), Identity("t:x", "0" * 64, 3), (), {}, 9, 0.5,
                     thresholds=np.zeros((2, 2, 2), np.float32))  # fmt: skip
    wrong.save(other)
    with pytest.raises(BocError, match="entries do not fit together"):
        Codebook.load(other)
