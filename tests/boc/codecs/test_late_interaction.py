"""Late interaction on posting lists, against its definition and against MrSw."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from boc.codecs import SurrogateCodec
from boc.codecs.late_interaction import TOP, LateInteraction
from boc.codecs.parse import code_of
from boc.errors import BocError
from boc.explain.score import explain
from boc.manage.build import build_index
from boc.manage.copy import copy_index
from boc.rerank.alignment import alignments
from boc.search.searcher import Searcher
from boc.types import Embeddings, Ragged, SearchRequest
from boc.vectors import Floats, unit_rows

WIDTH = 5


def sets(counts: list[int], seed: int) -> Ragged:
    rng = np.random.default_rng(seed)
    return Ragged.from_sets([rng.standard_normal((count, WIDTH)) for count in counts], WIDTH)


def fitted(words: Ragged, pictures: Ragged, **parameters: int) -> LateInteraction:
    labels = ["text"] * len(words) + ["image"] * len(pictures)
    return LateInteraction(**parameters).fit(Ragged.concatenate([words, pictures]), labels)


def cosine(a: Floats, b: Floats) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


COUNTS = st.lists(
    st.integers(0, 4),
    min_size=1,
    max_size=6,
)


@given(
    counts=COUNTS,
    terms=st.integers(1, 9),
    density=st.integers(1, 100),
    seed=st.integers(0, 99),
)
def test_codes_follow_definition(counts: list[int], terms: int, density: int, seed: int):
    step = fitted(
        sets([2, 3, 4], seed),
        sets(
            [
                3,
                1,
                2,
                2,
            ],
            seed + 100,
        ),
        terms=terms,
        density=density,
    )
    fresh = sets(counts, seed + 200)
    pictures, sentences = (
        step.encode_documents(fresh, kind).toarray() for kind in ("image", "text")
    )
    for i in range(len(fresh)):
        histogram = [0] * len(step.centroids_)
        for word in fresh[i]:
            histogram[int(np.argmax([cosine(word, centroid) for centroid in step.centroids_]))] += 1
        assert sentences[i].tolist() == histogram
        for k, centroid in enumerate(step.centroids_):
            best = max((cosine(region, centroid) for region in fresh[i]), default=-2)
            assert pictures[i, k] == pytest.approx(
                max(0, TOP * (best - step.thresholds_[k])),
                abs=0.501,
            )


@given(
    words=COUNTS,
    pictures=COUNTS,
    seed=st.integers(0, 99),
)
def test_scores_are_mrsw_without_thresholds(
    words: list[int],
    pictures: list[int],
    seed: int,
):
    """Where every word is a centroid and all pictures have all terms, up to a constant of the
    sentence and rounding."""
    sentences = sets([count + 1 for count in words], seed)
    gallery = sets([count + 1 for count in pictures], seed + 100)
    step = fitted(
        sentences,
        gallery,
        density=100,
    )
    assert np.allclose(step.centroids_, unit_rows(sentences.values))
    scores = (
        step.encode_queries(sentences, "text") @ step.encode_documents(gallery, "image").T
    ).toarray() / TOP
    constants = step.encode_queries(sentences, "text") @ step.thresholds_
    exact = alignments(
        sentences,
        gallery,
        "mrsw",
    )
    error = 0.501 / TOP * np.diff(sentences.offsets)[:, None]
    assert (np.abs(scores + constants[:, None] - exact) <= error + 1e-5).all()


def test_fit_without_sentences():
    codec = SurrogateCodec([LateInteraction(terms=8)]).fit(
        Embeddings(
            "image",
            np.zeros((30, WIDTH), np.float32),
            sets([4] * 30, 0),
        ),
    )
    query = Embeddings(
        "text",
        np.zeros((1, WIDTH), np.float32),
        sets([6], 1),
    )
    assert codec.encode_queries(query).sum() == 6


def test_invalid_parameters_and_inputs():
    some = sets([1, 2], 0)
    with pytest.raises(ValueError, match="terms must be at least 1, got 0"):
        LateInteraction(terms=0).fit(some)
    with pytest.raises(
        ValueError,
        match="density must be between 1 and 100 percent of the pictures, got 101",
    ):
        LateInteraction(density=101).fit(some)
    with pytest.raises(ValueError, match="0 concepts in the sample"):
        LateInteraction().fit(sets([0, 0], 0))
    with pytest.raises(BocError, match="the items have no concept vectors"):
        LateInteraction().read(Embeddings("text", np.zeros((1, WIDTH), np.float32)))


def test_index_scores_and_explanation(library: Path, tmp_path: Path):
    """Learned from the feature file, by the concepts of both modalities; scores are those of the
    code."""
    build_index(
        "late",
        library / "photos.h5",
        code="late(terms=16, density=50)",
        at=f"file:{tmp_path}",
        rerank="mrsw",
    )
    searcher = Searcher.open(
        "late",
        f"file:{tmp_path}",
        device="cpu",
    )
    assert str(code_of(searcher.index.manifest.codec)) == "late(terms=16, density=50)"
    codes = searcher.codec.encode_queries(searcher.encoder.encode_texts(["a red box"]))
    ranking = searcher.index.search(
        SearchRequest(
            codes,
            5,
            "image",
        ),
    )[0]
    terms = searcher.index.terms([hit.item.id for hit in ranking])
    assert [hit.score for hit in ranking] == (terms @ codes.T).toarray()[:, 0].tolist()
    hits = searcher.search("a red box", k=3)
    assert len(hits) == 3
    explained = explain(
        searcher,
        hits[0].item.id,
        text="a red box",
    )
    assert sum(match.product for match in explained.matches) > 0
    with pytest.raises(BocError, match="needs the encoder's concept sets"):
        copy_index(
            "late",
            "other",
            code="late",
            at=f"file:{tmp_path}",
        )
