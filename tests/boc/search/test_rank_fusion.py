"""Reciprocal rank fusion against a slow loop, and the searches that it makes of terms and words."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from boc.errors import BocError
from boc.inputs.features import FeatureFile
from boc.search.rank_fusion import reciprocal_rank_fusion
from boc.search.searcher import Searcher
from boc.types import Embeddings, Filter, Hit, Modality
from indexing.embedded.engine import EmbeddedEngine
from tests.oracles import picture

RANKINGS = st.lists(
    st.lists(
        st.sampled_from("abcdefgh"),
        unique=True,
        max_size=8,
    ),
    max_size=4,
)


def hits_of(ids: Sequence[str]) -> list[Hit]:
    return [Hit(picture(key), -float(i)) for i, key in enumerate(ids)]


@given(
    rankings=RANKINGS,
    k=st.integers(1, 10),
)
def test_fusion_equals_the_slow_loop(rankings: list[list[str]], k: int):
    scores = {}
    for key in {key for ranking in rankings for key in ranking}:
        places = [ranking.index(key) + 1 for ranking in rankings if key in ranking]
        scores[key] = sum(Fraction(1, 60 + place) for place in places)
    expected = sorted(
        scores,
        key=lambda key: (-scores[key], key),
    )[:k]
    hits = reciprocal_rank_fusion(
        [hits_of(ranking) for ranking in rankings],
        k,
    )
    assert [hit.item.id for hit in hits] == expected
    assert [hit.score for hit in hits] == pytest.approx(
        [float(scores[key]) for key in expected],
        rel=1e-15,
    )
    assert all(hit.item == picture(hit.item.id) for hit in hits)


class WordIndex(EmbeddedEngine):
    """The library's index with a full-text score: the number of a sentence's words in an item's
    content."""

    def match(
        self,
        texts: Sequence[str],
        k: int,
        modality: Modality | None = None,
        filters: Sequence[Filter] = (),
    ) -> list[list[Hit]]:
        self.request = (k, modality, tuple(filters))
        hits = []
        for text in texts:
            counts = [
                Hit(
                    item,
                    float(sum(word in item.content.split() for word in text.split())),
                )
                for item in self.items()
                if modality in (None, item.modality)
            ]
            hits.append(
                sorted(
                    (h for h in counts if h.score),
                    key=lambda h: (-h.score, h.item.id),
                )[:k],
            )
        return hits


@pytest.fixture
def searcher(library: Path) -> Searcher:
    return Searcher(WordIndex(library / "index" / "photos"))


@pytest.fixture
def captions(library: Path) -> tuple[Embeddings, list[str]]:
    with FeatureFile(library / "photos.h5") as file:
        rows = file.batch("text", 0, 6)
    return Embeddings("text", rows.embeddings.vectors), [item.content for item in rows.items]


def test_rrf_fuses_the_rescored_candidates_with_the_words(
    searcher: Searcher,
    captions: tuple[Embeddings, list[str]],
):
    queries, texts = captions
    results = searcher.search_vectors(
        queries,
        texts=texts,
        k=4,
        rm=3,
        find="text",
        hybrid="rrf",
    )
    assert searcher.index.request == (12, "text", ())  # type: ignore[attr-defined]
    ranked = searcher.search_vectors(
        queries,
        k=12,
        rm=1,
        find="text",
    )
    matched = searcher.index.match(texts, 12, "text")
    assert results == [
        reciprocal_rank_fusion(pair, 4) for pair in zip(ranked, matched, strict=True)
    ]
    assert [len(hits) for hits in results] == [4] * 6
    for text, hits in zip(texts, results, strict=True):
        assert (
            searcher.search(
                text,
                k=4,
                rm=3,
                find="text",
                hybrid="rrf",
            )
            == hits
        )


def test_a_hybrid_search_without_sentences_is_refused(
    searcher: Searcher,
    captions: tuple[Embeddings, list[str]],
):
    with pytest.raises(BocError, match="words of a sentence"):
        searcher.search_vectors(captions[0], hybrid="rrf")
