"""Questions of several parts: how they are written, and what they find."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from boc.errors import BocError
from boc.names import METRICS, Metric
from boc.rerank.alignment import alignment_scores
from boc.rerank.storage import store
from boc.search.queries import Query, QueryPart, compose, parse_text
from boc.search.searcher import Searcher
from boc.types import Embeddings, Hit, Ragged, Rescore
from boc.vectors import Floats
from tests.helpers import run
from tests.oracles import tied_vectors

TEXT = "a red box at the left"
WEIGHTS = st.floats(0.01, 100)


@pytest.fixture(scope="module")
def aligned(library: Path, tmp_path_factory) -> Searcher:
    """A searcher of an index with concept sets."""
    at = f"file:{tmp_path_factory.mktemp('aligned')}"
    run(
        f"index photos {library}/photos.h5 --at {at} --rerank mrsw",
    )
    return Searcher.open("photos", at, device="cpu")


def row(vector: Floats, concepts: Floats | None = None) -> Embeddings:
    sets = (
        None
        if concepts is None
        else Ragged.from_sets(
            [concepts],
            concepts.shape[1],
        )
    )
    return Embeddings("text", vector[None], sets)


def ids(hits: list[Hit]) -> list[str]:
    return [hit.item.id for hit in hits]


@pytest.mark.parametrize(
    ("typed", "sentence", "minus"),
    [
        ("a dog -snow", "a dog", ["snow"]),
        ("-snow a dog", "a dog", ["snow"]),
        ('a dog -"two cats" at night -rain', "a dog at night", ["two cats", "rain"]),
        ("a dog, -snow, outside", "a dog, outside", ["snow"]),
        ("un chien -été", "un chien", ["été"]),
        ("-snow", None, ["snow"]),
        ("a t-shirt and a hot-air balloon", "a t-shirt and a hot-air balloon", []),
        ("a dog - or a cat", "a dog - or a cat", []),
        ("minus -5 degrees", "minus -5 degrees", []),
        ('a dog -"two cats', 'a dog -"two cats', []),
        ('the words "-snow"', 'the words "-snow"', []),
        ("a dog -- snow --fast", "a dog -- snow --fast", []),
        (r"\-snow on a sign", "-snow on a sign", []),
        (r"\-snow on a sign -rain", "-snow on a sign", ["rain"]),
        ("  two  spaces ", "  two  spaces ", []),
        ("", "", []),
    ],
)
def test_a_minus_before_a_word_or_quotes_says_what_is_unwanted(
    typed: str,
    sentence: str,
    minus: list[str],
) -> None:
    assert parse_text(typed) == (sentence, minus)


@given(typed=st.text())
def test_any_text_can_be_read_and_words_without_a_minus_are_kept(typed: str) -> None:
    sentence, minus = parse_text(typed)
    assert all(each.strip() for each in minus)
    if "-" not in typed:
        assert (sentence, minus) == (typed, [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "no wanted part"),
        (
            {"minus": ["snow"], "unlike": ["1.jpg"]},
            "no wanted part",
        ),
        ({"text": " "}, "the sentence is empty"),
        ({"text": "a dog", "weight": 0}, "weights must be above 0, got 0"),
        (
            {"text": "a dog", "unlike_weight": float("nan")},
            "weights must be above 0, got 1.0 and nan",
        ),
        (
            {"like": ["1.jpg"], "weight": float("inf")},
            "invalid weight inf",
        ),
        ({"text": 3}, "not a query part: 'text' 3"),
        ({"text": "\ud800"}, "a sentence must be text"),
        ({"text": "a", "weight": "1"}, "weights must be above 0, got '1'"),
        ({"text": "a", "minus": "snow"}, r"must be lists, got 'snow'; write \['snow'\]"),
        ({"like": "1.jpg"}, "must be lists, got '1.jpg'"),
        ({"images": 3}, "must be lists, got 3"),
    ],
)
def test_query_errors(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(BocError, match=message):
        Query.of(**arguments)  # type: ignore[arg-type]


def test_what_is_said_twice_counts_once(aligned: Searcher) -> None:
    twice = Query.of(
        "a dog",
        minus=["snow", "snow"],
        like=["003.png"] * 2,
        unlike=["4", "4"],
        images=["a", Path("a")],
    )
    assert twice == Query.of(
        "a dog",
        minus=["snow"],
        like=["003.png"],
        unlike=["4"],
        images=["a"],
    )
    once = aligned.search_query(
        Query.of(like=["003.png"]),
        k=20,
    )
    assert (
        aligned.search_query(
            Query.of(like=["003.png", "003.png"]),
            k=20,
        )
        == once
    )


def test_rocchio_gives_each_kind_of_part_its_weight() -> None:
    query = Query.of(
        "a dog",
        images=["1.jpg"],
        like=["2", "3"],
        minus=["snow"],
        unlike=["4"],
        weight=6,
    )
    assert [part.weight for part in query.parts] == [1, 2, 2, 2, -0.25, -0.25]
    assert query.words == "a dog"
    assert query.ids == {"2", "3", "4"}


@given(
    vectors=tied_vectors((2, 4)),
    weights=st.lists(WEIGHTS, min_size=4, max_size=4),
    factor=WEIGHTS,
)
def test_only_the_ratios_of_weights_matter(
    vectors: Floats,
    weights: list[float],
    factor: float,
) -> None:
    assume(np.linalg.norm(vectors, axis=1).min() > 0)
    parts = [(row(vector), weight) for vector, weight in zip(vectors, weights, strict=False)]
    assume(np.linalg.norm(sum(w * p.vectors / np.linalg.norm(p.vectors) for p, w in parts)) > 1e-3)
    one = compose(parts)
    other = compose([(part, factor * weight) for part, weight in parts])
    assert one.vectors == pytest.approx(other.vectors, abs=1e-5)
    assert np.linalg.norm(one.vectors) == pytest.approx(1, abs=1e-5)


@given(
    vectors=tied_vectors((2, 4), 5),
    less=WEIGHTS,
    more=WEIGHTS,
)
def test_what_is_unwanted_moves_the_query_away_and_more_weight_further(
    vectors: Floats,
    less: float,
    more: float,
) -> None:
    assume(np.linalg.norm(vectors, axis=1).min() > 0)
    away = vectors[-1] / np.linalg.norm(vectors[-1])
    positive = [(row(vector), 1.0) for vector in vectors[:-1]]
    less, more = sorted((less, more))
    try:
        before = compose(
            [*positive, (row(away), 1e-9)],
        )  # two parts at least, so that it has unit length
        cosines = [
            compose([*positive, (row(away), -weight)]).vectors[0] @ away for weight in (less, more)
        ]
    except BocError:  # they cancel each other
        return
    assert cosines[1] - 1e-5 <= cosines[0] <= before.vectors[0] @ away + 1e-5


def test_parts_that_cancel_each_other_are_refused() -> None:
    one = row(np.array([0.6, 0.8], np.float32))
    with pytest.raises(BocError, match="are the same; change one"):
        compose([(one, 1.0), (one, -1.0)])


@pytest.mark.parametrize("metric", METRICS[1:])
def test_an_alignment_of_parts_is_the_weighted_sum_of_theirs(metric: Metric) -> None:
    rng = np.random.default_rng(0)
    stored = store(
        Ragged.from_sets(
            [rng.standard_normal((n, 5)) for n in (3, 0, 4)],
            5,
        ),
        "float16",
    )
    sets = [rng.standard_normal((n, 5)).astype(np.float32) for n in (2, 3)]
    parts = [(row(each[0], each), weight) for each, weight in zip(sets, (1.5, -0.5), strict=True)]
    scores = alignment_scores(
        Rescore(metric, compose(parts), 3, parts),
        0,
        stored,
        "image",
    )
    alone = [
        alignment_scores(
            Rescore(metric, part, 3),
            0,
            stored,
            "image",
        )
        for part, _ in parts
    ]
    assert scores == pytest.approx(
        1.5 * alone[0] - 0.5 * alone[1],
        abs=1e-5,
    )


def test_a_single_part_is_the_plain_search(searcher: Searcher, library: Path) -> None:
    path = library / "images" / "007.png"
    for weight in (1.0, 3.0):
        assert searcher.search_query(
            Query((QueryPart("text", TEXT, weight),)),
            k=6,
        ) == searcher.search(
            TEXT,
            k=6,
        )
        assert searcher.search_query(
            Query((QueryPart("image", path, weight),)),
            k=6,
        ) == searcher.search(
            image=path,
            k=6,
        )
    hits = searcher.search_vectors(
        searcher.embeddings("007.png"),
        k=7,
    )[0]
    assert (
        searcher.search_query(
            Query.of(like=["007.png"]),
            k=6,
        )
        == [h for h in hits if h.item.id != "007.png"][:6]
    )


@pytest.mark.parametrize("which", ["searcher", "aligned"])
def test_the_same_part_twice_ranks_as_once(which: str, request) -> None:
    searcher = request.getfixturevalue(which)
    twice = Query(
        (
            QueryPart("text", TEXT),
            QueryPart("text", TEXT, 0.5),
        ),
    )
    assert ids(searcher.search_query(twice, k=8, rm=5)) == ids(searcher.search(TEXT, k=8, rm=5))


def test_hits_of_a_question_are_those_of_a_slow_sum(searcher: Searcher) -> None:
    """With all items as candidates: the cosines of each part, divided by how widely they are
    spread."""
    index = searcher.index
    query = Query.of(
        TEXT,
        minus=["green"],
        like=["003.png", "004.png"],
        unlike=["005.png"],
    )
    pictures = [item.id for item in index.items() if item.modality == "image"]
    vectors = index.vectors(pictures).astype(np.float64)
    total = np.zeros(len(pictures))
    for part in query.parts:
        if part.kind == "text":
            vector = searcher.encoder.encode_texts([str(part.value)]).vectors[0]
        else:
            vector = searcher.embeddings(str(part.value)).vectors[0]
        cosines = vectors @ vector
        total += part.weight * cosines / cosines.std()
    best = [pictures[i] for i in np.argsort(-total) if pictures[i] not in query.ids]
    hits = searcher.search_query(query, k=37, rm=40)
    assert ids(hits) == best[: len(hits)]
    assert len(hits) > 30


def test_alignment_sums_over_the_parts(aligned: Searcher) -> None:
    query = Query.of(
        TEXT,
        minus=["green"],
        like=["003.png"],
    )
    for metric in METRICS[1:]:
        hits = aligned.search_query(
            query,
            k=5,
            rm=8,
            rerank=metric,
        )
        assert len(hits) == 5
        assert "003.png" not in ids(hits)
        stored = aligned.index.concepts(ids(hits))
        total = np.zeros(5)
        background = aligned.background("image")
        for part in query.parts:
            text = part.kind == "text"
            one = (
                aligned.encoder.encode_texts([str(part.value)])
                if text
                else aligned.embeddings(str(part.value))
            )
            scores = alignment_scores(
                Rescore(metric, one, 5),
                0,
                stored,
                "image",
            )
            total += part.weight * scores / background.scores(one, metric).std()
        assert [hit.score for hit in hits] == pytest.approx(total.tolist(), rel=1e-3)


def test_words_count_of_what_is_wanted_only(searcher: Searcher) -> None:
    hits = searcher.search_query(
        Query.of("green", minus=["left"]),
        k=5,
        find="text",
        hybrid="rrf",
    )
    assert all("green" in hit.item.content for hit in hits)
    with pytest.raises(BocError, match="hybrid search needs the words"):
        searcher.search_query(
            Query.of(like=["003.png"]),
            hybrid="rrf",
        )


def test_an_unknown_item_is_named(searcher: Searcher) -> None:
    with pytest.raises(BocError, match=r"no item 'nobody.png'; use the id of a hit"):
        searcher.search_query(Query.of(TEXT, unlike=["nobody.png"]))


def test_a_picture_beside_other_parts_is_compared_by_vectors_unless_asked_otherwise(
    aligned: Searcher,
) -> None:
    both = Query(
        (
            QueryPart("text", "a red box"),
            QueryPart("item", "001.png"),
        ),
    )
    by_vectors, by_alignment = (
        aligned.search_query(
            both,
            k=5,
            rm=8,
            rerank=metric,
        )
        for metric in ("dot", "mrsw")
    )
    assert aligned.search_query(both, k=5, rm=8) == by_vectors != by_alignment
    for query in (
        Query.of("a red box", minus=["blue"]),
        Query.of(like=["001.png"]),
    ):
        assert aligned.search_query(query, k=5, rm=8) == aligned.search_query(
            query,
            k=5,
            rm=8,
            rerank="mrsw",
        )
