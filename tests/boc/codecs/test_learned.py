"""Learned terms: the step against its definition, its training, and an index of them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from boc.clustering.codebook import Codebook
from boc.codecs.learned import LEAST, LearnedTerms
from boc.codecs.parse import code_of
from boc.codecs.presets import book_code
from boc.explain.score import explain
from boc.manage.build import build_index
from boc.search.searcher import Searcher
from boc.types import MODALITIES, Embeddings, Identity, Modality, Ragged, SearchRequest
from boc.vectors import Floats, unit_rows
from tests.helpers import run

WIDTH = 5


def gaussian(*shape: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def items(counts: list[int], modality: Modality, seed: int) -> Embeddings:
    """Items with a vector and so many concepts each."""
    sets = Ragged.from_sets(
        [
            gaussian(
                count,
                WIDTH,
                seed=seed + i,
            )
            for i, count in enumerate(counts)
        ],
        WIDTH,
    )
    return Embeddings(
        modality,
        unit_rows(
            gaussian(
                len(counts),
                WIDTH,
                seed=seed + 99,
            ),
        ),
        sets,
    )


def book(terms: int, seed: int) -> Codebook:
    thresholds = 0.3 * gaussian(
        2,
        2,
        terms,
        seed=seed + 1,
    )
    centroids = gaussian(
        terms,
        WIDTH,
        seed=seed,
    )
    return Codebook(
        centroids,
        Identity(
            "t:x",
            "0" * 64,
            WIDTH,
        ),
        (),
        {"z": 3, "query_z": 2},
        9,
        thresholds=thresholds,
    )


def slow(codebook: Codebook, embeddings: Embeddings, item: int) -> list[float]:
    """The activations of an item, by the definition."""
    assert codebook.thresholds is not None
    assert embeddings.concepts is not None
    of = codebook.thresholds[MODALITIES.index(embeddings.modality)]
    rows = [(0, embeddings.vectors[item]), *((1, row) for row in embeddings.concepts[item])]
    activations = []
    for k, w in enumerate(codebook.centroids):
        best = max(
            float(w @ (row / np.linalg.norm(row))) - float(of[kind, k]) for kind, row in rows
        )
        activations.append(np.log(1 + best) if best > LEAST else 0.0)
    return activations


@given(
    st.lists(
        st.integers(0, 4),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(MODALITIES),
    st.integers(0, 999),
)
def test_activations_follow_definition(counts: list[int], modality: Modality, seed: int):
    codebook = book(7, seed)
    some = items(
        counts,
        modality,
        seed + 10,
    )
    step = LearnedTerms.from_codebook(codebook, z=7)
    terms = step.encode_documents(step.read(some), modality).toarray()
    for i in range(len(counts)):
        assert terms[i].tolist() == pytest.approx(
            slow(
                codebook,
                some,
                i,
            ),
            abs=1e-4,
        )


@given(st.integers(0, 999), st.sampled_from(["documents", "queries"]))
def test_code_keeps_largest_of_unit_length(seed: int, side: str):
    codebook = book(7, seed)
    some = items(
        [3, 0, 2],
        "text",
        seed + 10,
    )
    rows = getattr(book_code(codebook, "learned").fit(some), f"encode_{side}")(some).toarray()
    for i, row in enumerate(rows):
        exact = np.array(
            slow(
                codebook,
                some,
                i,
            ),
        )
        exact[np.argsort(-exact, kind="stable")[3 if side == "documents" else 2 :]] = 0
        norm = np.linalg.norm(exact)
        assert row.tolist() == pytest.approx((255 * exact / max(norm, 1e-9)).tolist(), abs=1.01)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* of its items have no terms")
def test_index_scores_and_explanation(library: Path, tmp_path: Path):
    made = tmp_path / "terms.npz"
    result = run(
        f"build-codebook {library}/photos.h5 -o {made} --kind learned --clusters 16",
    )
    assert f"16 terms in {made}" in result.output
    assert "epoch 1 of " in result.output
    at = f"file:{tmp_path}"
    code = f"learned(codebook='{made}', z=4, query_z=3)"
    build_index(
        "learned",
        library / "photos.h5",
        code=code,
        at=at,
    )
    searcher = Searcher.open(
        "learned",
        at,
        device="cpu",
    )
    assert str(code_of(searcher.index.manifest.codec)) == "learned:4/3"
    codes = searcher.codec.encode_queries(searcher.encoder.encode_texts(["a red box"]))
    assert 0 < codes.nnz <= 3
    hits = searcher.index.search(
        SearchRequest(
            codes,
            5,
            "image",
        ),
    )[0]
    terms = searcher.index.terms([hit.item.id for hit in hits])
    assert [hit.score for hit in hits] == (terms @ codes.T).toarray()[:, 0].tolist()
    assert (
        explain(
            searcher,
            hits[0].item.id,
            "a red box",
        ).score
        == hits[0].score
    )
