"""Reciprocal rank fusion against a slow loop, and the searches that it makes of terms and words."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boc.errors import BocError
from boc.inputs.features import FeatureFile
from boc.search.rank_fusion import reciprocal_rank_fusion
from boc.search.searcher import Searcher
from boc.types import Embeddings, Filter, Hit, Modality, SearchRequest, Stages, TextScore
from indexing.embedded.engine import EmbeddedEngine
from tests.oracles import picture

RANKINGS = st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8), max_size=4)


def hits_of(ids: Sequence[str]) -> list[Hit]:
    return [Hit(picture(key), -float(i)) for i, key in enumerate(ids)]


@given(rankings=RANKINGS, k=st.integers(1, 10))
def test_fusion_equals_the_slow_loop(rankings: list[list[str]], k: int) -> None:
    scores = {}
    for key in {key for ranking in rankings for key in ranking}:
        places = [ranking.index(key) + 1 for ranking in rankings if key in ranking]
        scores[key] = sum(Fraction(1, 60 + place) for place in places)
    expected = sorted(scores, key=lambda key: (-scores[key], key))[:k]
    hits = reciprocal_rank_fusion([hits_of(ranking) for ranking in rankings], k)
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
                Hit(item, float(sum(word in item.content.split() for word in text.split())))
                for item in self.items()
                if modality in (None, item.modality)
            ]
            hits.append(
                sorted((h for h in counts if h.score), key=lambda h: (-h.score, h.item.id))[:k],
            )
        return hits

    def search(self, request: SearchRequest, stages: Stages | None = None) -> list[list[Hit]]:
        if request.words is None:
            return super().search(request, stages)
        assert request.rescore is None
        self.joint: tuple[int, Modality | None, TextScore] = (
            request.k,
            request.modality,
            request.words,
        )
        return [[] for _ in request.words.texts]


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
) -> None:
    queries, texts = captions
    results = searcher.search_vectors(queries, texts=texts, k=4, rm=3, find="text", hybrid="rrf")
    assert searcher.index.request == (12, "text", ())  # type: ignore[attr-defined]
    ranked = searcher.search_vectors(queries, k=12, rm=1, find="text")
    matched = searcher.index.match(texts, 12, "text")
    assert results == [
        reciprocal_rank_fusion(pair, 4) for pair in zip(ranked, matched, strict=True)
    ]
    assert [len(hits) for hits in results] == [4] * 6
    for text, hits in zip(texts, results, strict=True):
        assert searcher.search(text, k=4, rm=3, find="text", hybrid="rrf") == hits


def test_sum_asks_the_engine_once(
    searcher: Searcher,
    captions: tuple[Embeddings, list[str]],
) -> None:
    queries, texts = captions
    assert (
        searcher.search_vectors(queries, texts=texts, k=4, hybrid="sum", words_weight=2.5)
        == [[]] * 6
    )
    assert searcher.index.joint == (4, "image", TextScore(texts, 2.5))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hybrid": "rrf", "texts": None}, "words of a sentence"),
        ({"hybrid": "sum", "texts": None, "words_weight": 1.0}, "words of a sentence"),
        ({"hybrid": "sum"}, "words_weight above 0, got None"),
        ({"hybrid": "sum", "words_weight": 0.0}, "words_weight above 0, got 0"),
        ({"hybrid": "sum", "words_weight": float("nan")}, "words_weight above 0, got nan"),
        ({"hybrid": "sum", "words_weight": 1.0, "rerank": "dot"}, "leave rerank out"),
        ({"hybrid": "rrf", "words_weight": 1.0}, "have no weight"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    searcher: Searcher,
    captions: tuple[Embeddings, list[str]],
    options: dict[str, object],
    words: str,
) -> None:
    queries, texts = captions
    with pytest.raises(BocError, match=words):
        searcher.search_vectors(queries, **{"texts": texts, **options})  # type: ignore[arg-type]
