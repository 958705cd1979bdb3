"""What every back end must do. A new one is one more entry of ``PLACES`` in conftest.py."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.random import default_rng
from numpy.typing import NDArray
from scipy import sparse

from boc import build_index, copy_index, plugins
from boc.errors import BackendError, BocError
from boc.inputs.metadata import holds, parse_filter
from boc.manifest import Manifest
from boc.names import CONCEPT_DTYPES, METRICS, VECTOR_DTYPES, Metric
from boc.plugins import Backend, Engine
from boc.rerank.storage import round_trip, store
from boc.types import (
    ID,
    MODALITIES,
    Embeddings,
    FieldType,
    Filter,
    Item,
    Modality,
    Ragged,
    Rescore,
    Rows,
    SearchRequest,
    Stages,
    StoredConcepts,
)
from boc.vectors import Doubles, Floats
from tests.indexing.embedded.test_model_based import Kind, Model, assert_holds, columns, rows_for
from tests.oracles import (
    assert_canonical,
    new_manifest,
    pairs_of_hits,
    picture,
    random_terms,
    same_matrix,
    sentence,
    term_matrices,
)

EXACT: dict[str, int] = {"embedded": 2**53, "server": 2**24}
"""Scores below this are exact; a back end that is less than 2**53 refuses larger ones."""

ARRAYS = {
    "0.means_": np.arange(6, dtype=np.float32).reshape(2, 3),
    "0.labels_": np.array(["image", "text"]),
}
STORED = [("float32", "float16"), ("float16", "int8"), ("int8", None)]  # vectors, concept sets


FIELDS: dict[str, FieldType] = {
    "year": "integer",
    "tag": "keyword",
    "taken": "date",
    "sharpness": "float",
    "indoors": "boolean",
    "title": "text",
}
VALUES: dict[str, list[Any]] = {
    "year": [
        -3,
        0,
        2019,
        2020,
        2**53 + 1,
    ],
    "tag": [
        "dog",
        "Dog",
        "two dogs",
        "été",
        "日本",
        "-1",
    ],
    "taken": ["1969-12-31T23:59:59", "2020-02-29T00:00:00", "2021-05-01T12:30:00"],
    "sharpness": [-0.5, 0.1, 0.30000000000000004, 1e20],
    "indoors": [True, False],
    "title": ["a red zebra", "no animals", "nothing of it"],
}


def vectors_for(n: int, dim: int = 3, seed: int = 0) -> Floats:
    return default_rng(seed).standard_normal((n, dim)).astype(np.float32)


def build(
    backend: Backend,
    name: str,
    items: Sequence[Item],
    terms: sparse.csr_array,
    vectors: Floats | None = None,
    *,
    batch: int = 7,
    dtype: str = "float32",
    concepts: Sequence[Floats] | None = None,
    concept_dtype: str | None = None,
    fields: Mapping[str, FieldType] | None = None,
) -> Engine:
    vectors = vectors_for(len(items)) if vectors is None else vectors
    manifest = new_manifest(
        terms.shape[1],
        vectors.shape[1],
        ARRAYS,
        dtype=dtype,
        concepts=concept_dtype,
    )
    manifest = replace(manifest, fields=dict(fields or {}))
    with backend.create(name, manifest, ARRAYS) as writer:
        for i in range(0, len(items), batch):
            part = slice(i, i + batch)
            sets = (
                None
                if concepts is None or concept_dtype is None
                else store_rows(concepts[part], concept_dtype)
            )
            writer.add(
                Rows(
                    items[part],
                    terms[part],
                    vectors[part],
                    sets,
                ),
            )
        writer.commit()
    return backend.open(name)


def store_rows(sets: Sequence[Floats], dtype: str) -> StoredConcepts:
    return store(Ragged.from_sets(sets, 5), dtype)


def mixed_items(n: int) -> list[Item]:
    """n items of both modalities whose order is not that of their ids."""
    keys = default_rng(n).permutation(n)
    return [
        picture(f"{key:04d}.jpg") if key % 3 else sentence(f"{key:04d}#0", f"sentence {key}")
        for key in keys
    ]


def slow_search(
    items: Sequence[Item],
    terms: sparse.csr_array,
    query: list[int],
    k: int,
    modality: Modality | None = None,
) -> list[tuple[str, int]]:
    """(id, score) by Python's integers over dense rows."""
    scored = []
    for item, row in zip(items, terms.toarray().tolist(), strict=True):
        score = sum(a * b for a, b in zip(row, query, strict=True))
        if score > 0 and modality in (None, item.modality):
            scored.append((item.id, score))
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))[:k]


def pairs(ranked: tuple[NDArray[np.object_], Doubles]) -> list[list[tuple[str, float]]]:
    """Ids and scores of each query; where there are fewer than of others, None and -inf."""
    rows = zip(*(array.tolist() for array in ranked), strict=True)
    matches = [list(zip(*row, strict=True)) for row in rows]
    assert all((id is None) == (score == -np.inf) for row in matches for id, score in row)
    return [[pair for pair in row if pair[0] is not None] for row in matches]


def test_large_scores_are_exact_or_refused(backend: Backend, place: str, name: str):
    rng = default_rng(0)
    items = mixed_items(50)
    terms = random_terms(
        rng,
        (50, 30),
        2**20,
        0.3,
    )
    queries = random_terms(
        rng,
        (20, 30),
        2**20,
        0.3,
    )
    index = build(
        backend,
        name,
        items,
        terms,
    )
    if EXACT[place] < 2**53:
        with pytest.raises(BackendError, match=r"2\^24"):
            index.search(SearchRequest(queries, 1000))
        return
    results = index.search(SearchRequest(queries, 1000))
    assert len(results) == 20
    for hits, query in zip(results, queries.toarray().tolist(), strict=True):
        assert pairs_of_hits(hits) == slow_search(
            items,
            terms,
            query,
            50,
        )
    assert sum(map(len, results)) > 500


def test_sizes_have_parts(backend: Backend, name: str):
    terms = random_terms(
        0,
        (40, 30),
        9,
        0.5,
    )
    sizes = build(
        backend,
        name,
        mixed_items(40),
        terms,
    ).sizes()
    assert set(sizes) == {"postings", "vectors", "concepts", "other"}
    assert sizes["postings"] >= terms.nnz
    assert sizes["vectors"] > 0
    assert sizes["other"] > 0
    assert sizes["concepts"] == 0


@pytest.mark.parametrize("n", [1, 30])
def test_search_equals_slow_search(backend: Backend, name: str, n: int):
    """Few different frequencies, hence many ties, under ids of any characters."""
    rng = default_rng(n)
    letters = list("aAb0~/\"' éß日\U0001f600")
    keys = {"".join(rng.choice(letters, size=int(rng.integers(1, 5)))) for _ in range(4 * n)}
    items = [
        Item(
            key,
            MODALITIES[i % 2],
            key[::-1],
            key[:1],
        )
        for i, key in enumerate(sorted(keys)[:n])
    ]
    terms = random_terms(
        rng,
        (n, 4),
        3,
        0.5,
    )
    terms.data[::5] = 1000
    index = build(
        backend,
        name,
        items,
        terms,
        batch=4,
    )

    @settings(max_examples=40)
    @given(
        queries=term_matrices((3, 4), 1000),
        k=st.integers(1, n + 3),
        modality=st.sampled_from([None, *MODALITIES]),
    )
    def check(queries: sparse.csr_array, k: int, modality: Modality | None) -> None:
        for hits, query in zip(
            index.search(SearchRequest(queries, k, modality)),
            queries.toarray().tolist(),
            strict=True,
        ):
            assert pairs_of_hits(hits) == slow_search(
                items,
                terms,
                query,
                k,
                modality,
            )
            assert all(hit.item in items for hit in hits)

    check()


def with_fields(n: int) -> list[Item]:
    """n items of both modalities; of each field some have no value, some one, some several."""
    rng = default_rng(n)

    def some(name):
        count = int(rng.integers(0, 3))
        chosen = [VALUES[name][i] for i in rng.permutation(len(VALUES[name]))[:count]]
        return {name: chosen if count > 1 else chosen[0]} if count else {}

    return [
        replace(item, fields={k: v for name in FIELDS for k, v in some(name).items()})
        for item in mixed_items(n)
    ]


PERIODS = st.sampled_from(
    [
        "1969",
        "2020",
        "2020-02",
        "2020-03",
        "2021-05-01",
        "2021-05-02",
    ],
).flatmap(
    lambda period: st.sampled_from(
        [
            "=",
            "!=",
            "<",
            "<=",
            ">",
            ">=",
        ],
    ).map(
        lambda op: parse_filter(f"taken{op}{period}", FIELDS),
    ),
)
CONDITIONS = PERIODS | st.sampled_from(sorted(set(FIELDS) - {"title"})).flatmap(
    lambda name: st.builds(
        Filter,
        st.just(name),
        st.sampled_from(
            ["=", "!="]
            if name == "indoors"
            else [
                "=",
                "!=",
                "<",
                "<=",
                ">",
                ">=",
            ],
        ),
        st.sampled_from(
            [*VALUES[name], *{"year": [2018], "tag": ["cat"], "sharpness": [0.0]}.get(name, [])],
        ),
    ),
)


ANY_OF = st.tuples(st.sampled_from(["=", "!="]), *[st.sampled_from(VALUES["tag"])] * 2).map(
    lambda drawn: Filter("tag", *drawn[:2], others=(Filter("tag", drawn[0], drawn[2]),)),
)


def test_filters_equal_slow_filters(backend: Backend, name: str):
    items = with_fields(40)
    terms = random_terms(
        0,
        (40, 3),
        3,
        0.8,
    )
    index = build(
        backend,
        name,
        items,
        terms,
        fields=FIELDS,
    )
    assert index.manifest.fields == FIELDS
    assert index.used_fields() == set(FIELDS) - {"title"}
    assert list(index.items()) == sorted(items, key=lambda item: item.id)
    query = [1, 2, 1]
    request_terms = sparse.csr_array(np.array([query, [0, 0, 0]], np.int32))

    ids = st.sampled_from([item.id for item in items])
    by_id = st.builds(Filter, st.just(ID), st.sampled_from(["=", "!="]), ids)

    @settings(max_examples=60)
    @given(
        filters=st.lists(CONDITIONS | ANY_OF | by_id, max_size=3),
        k=st.sampled_from([5, 50]),
        kind=st.sampled_from([None, *MODALITIES]),
    )
    def check(filters: list[Filter], k: int, kind: Modality | None) -> None:
        hits, nothing = index.search(
            SearchRequest(
                request_terms,
                k,
                kind,
                filters=filters,
            ),
        )
        is_match = [
            all(holds(condition, {ID: item.id, **item.fields}) for condition in filters)
            for item in items
        ]
        matches = [item for item, passes in zip(items, is_match, strict=True) if passes]
        assert pairs_of_hits(hits) == slow_search(
            matches,
            terms[np.flatnonzero(is_match)],
            query,
            k,
            kind,
        )
        assert all(hit.item in matches for hit in hits)
        assert nothing == []

    check()


@pytest.mark.parametrize("rescored", [False, True])
def test_long_items_come_back(backend: Backend, name: str, rescored: bool):
    long = replace(
        sentence("long", "été " * 20_000),
        fields={"title": "a zebra " * 10_000, "year": 2**53 + 1},
    )
    items = [
        sentence("none", ""),
        long,
        replace(sentence("some", "a dog"), fields={"tag": ["dog", "été"]}),
    ]
    terms = sparse.csr_array(np.array([[1, 0], [3, 0], [2, 0]], np.int32))
    index = build(
        backend,
        name,
        items,
        terms,
        np.eye(3, dtype=np.float32),
        fields=FIELDS,
    )
    rescore = (
        Rescore("dot", Embeddings("text", np.array([[1, 3, 2]], np.float32)), 3)
        if rescored
        else None
    )
    (hits,) = index.search(
        SearchRequest(sparse.csr_array(np.array([[1, 0]], np.int32)), 3, rescore=rescore),
    )
    assert [hit.item for hit in hits] == [items[1], items[2], items[0]]
    assert np.allclose([hit.score for hit in hits], [3, 2, 1], atol=1e-5)


def halves(n: int, seed: int) -> Floats:
    """Unit vectors (n, 8) of four components of 0.5 or -0.5: products are exact everywhere, and
    often equal."""
    rng = default_rng(seed)
    places = rng.permuted(
        np.repeat(
            [
                [
                    1,
                    1,
                    1,
                    1,
                    0,
                    0,
                    0,
                    0,
                ],
            ],
            n,
            axis=0,
        ),
        axis=1,
    )
    return (places * rng.choice([-0.5, 0.5], (n, 8))).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", *VECTOR_DTYPES])
def test_rescore_by_vectors(backend: Backend, name: str, dtype: str):
    items = with_fields(40)
    vectors = halves(40, 0)
    terms = random_terms(
        0,
        (40, 4),
        3,
        0.6,
    )
    index = build(
        backend,
        name,
        items,
        terms,
        vectors,
        dtype=dtype,
        fields=FIELDS,
    )
    vector_of = dict(zip([item.id for item in items], vectors.tolist(), strict=True))

    @settings(max_examples=40)
    @given(
        queries=term_matrices((3, 4), 9),
        seed=st.integers(0, 99),
        depth=st.integers(1, 50),
        k=st.integers(1, 50),
        kind=st.sampled_from([None, *MODALITIES]),
        filters=st.lists(CONDITIONS, max_size=1),
    )
    def check(
        queries: sparse.csr_array,
        seed: int,
        depth: int,
        k: int,
        kind: Modality | None,
        filters: list[Filter],
    ) -> None:
        query_vectors = halves(3, seed)
        rescore = Rescore("dot", Embeddings("text", query_vectors), k)
        results = index.search(
            SearchRequest(
                queries,
                depth,
                kind,
                filters=filters,
                rescore=rescore,
            ),
        )
        assert pairs(
            index.rank(
                SearchRequest(
                    queries,
                    depth,
                    kind,
                    filters=filters,
                    rescore=rescore,
                ),
            ),
        ) == [*map(pairs_of_hits, results)]
        is_match = [all(holds(condition, item.fields) for condition in filters) for item in items]
        matches = [item for item, passes in zip(items, is_match, strict=True) if passes]
        for hits, query, vector in zip(
            results,
            queries.toarray().tolist(),
            query_vectors.tolist(),
            strict=True,
        ):
            candidates = slow_search(
                matches,
                terms[np.flatnonzero(is_match)],
                query,
                depth,
                kind,
            )
            scored = [
                (key, sum(a * b for a, b in zip(vector_of[key], vector, strict=True)))
                for key, _ in candidates
            ]
            expected = sorted(scored, key=lambda pair: (-pair[1], pair[0]))[:k]
            assert [hit.item.id for hit in hits] == [key for key, _ in expected]
            assert [hit.score for hit in hits] == pytest.approx(
                [score for _, score in expected],
                abs=1e-5,
            )

    check()


def slow_alignment(one: Floats, other: Floats, metric: str) -> float:
    """The score of words (n, d) with regions (m, d), in double precision."""
    if not len(one) or not len(other):
        return 0.0
    words, regions = (
        rows / np.linalg.norm(rows.astype(np.float64), axis=1)[:, None] for rows in (one, other)
    )
    cosines = words @ regions.T
    over_words = cosines.max(axis=1).sum()
    over_regions = cosines.max(axis=0).sum()
    scores = {"mrsw": over_words, "mwsr": over_regions, "symm": over_words + over_regions}
    return float(scores.get(metric, over_words / len(words)))


@pytest.mark.parametrize(
    ("metric", "dtype"),
    list(zip(METRICS[1:], 2 * CONCEPT_DTYPES, strict=True)),
)
def test_rescore_by_concept_sets(backend: Backend, name: str, dtype: str, metric: Metric):
    rng = default_rng(0)
    items = mixed_items(40)
    terms = random_terms(
        rng,
        (40, 4),
        3,
        0.6,
    )
    sets = [vectors_for(i % 5, 5, i) for i in range(40)]
    index = build(
        backend,
        name,
        items,
        terms,
        concepts=sets,
        concept_dtype=dtype,
    )
    set_of = dict(zip([item.id for item in items], sets, strict=True))
    queries = random_terms(
        rng,
        (3, 4),
        9,
        0.8,
    )
    query_sets = Ragged.from_sets([vectors_for(i + 1, 5, 100 + i) for i in range(3)], 5)
    for source in MODALITIES:
        rescore = Rescore(metric, Embeddings(source, vectors_for(3), query_sets), 6)
        for target in MODALITIES:
            stages = Stages()
            results = index.search(
                SearchRequest(
                    queries,
                    9,
                    target,
                    rescore=rescore,
                ),
                stages,
            )
            assert stages.candidates >= sum(map(len, results)) > 0
            for i, (hits, query) in enumerate(
                zip(results, queries.toarray().tolist(), strict=True),
            ):
                score_of = {}
                for key, _ in slow_search(
                    items,
                    terms,
                    query,
                    9,
                    target,
                ):
                    pair = (query_sets[i], set_of[key])
                    words, regions = pair if (source, target) != ("image", "text") else pair[::-1]
                    score_of[key] = slow_alignment(words, regions, metric)
                assert {hit.item.id for hit in hits} <= set(score_of)
                best = sorted(score_of.values(), reverse=True)[:6]
                assert [hit.score for hit in hits] == pytest.approx(best, abs=0.03)
                assert [hit.score for hit in hits] == pytest.approx(
                    [score_of[hit.item.id] for hit in hits],
                    abs=0.03,
                )
                assert pairs_of_hits(hits) == sorted(
                    pairs_of_hits(hits),
                    key=lambda pair: (-pair[1], pair[0]),
                )


@pytest.mark.parametrize("n_terms", [4, None])
def test_alignment_of_the_nearest_or_of_the_best_by_terms(
    backend: Backend,
    name: str,
    n_terms: int | None,
):
    """Under a dictionary the nearest by vectors are aligned, under other codes the best by terms,
    on all back ends the same."""
    rng = np.random.default_rng(3)
    items = [picture(f"{i:02d}.jpg") for i in range(40)]
    terms = random_terms(rng, (40, 6), 5, 0.9)
    vectors = vectors_for(40)
    sets = [vectors_for(3, 5, i) for i in range(40)]
    index = build(
        backend,
        name,
        items,
        terms,
        vectors,
        concepts=sets,
        concept_dtype="float16",
    )
    queries = random_terms(rng, (3, 6), 9, 0.9)
    query_sets = Ragged.from_sets([vectors_for(2, 5, 100 + i) for i in range(3)], 5)
    asked = Embeddings("text", vectors_for(3, seed=9), query_sets)
    request = SearchRequest(
        queries,
        12,
        "image",
        rescore=Rescore("mrsw", asked, 5),
        planned=True,
        n_terms=n_terms,
    )
    stages = Stages()
    for i, hits in enumerate(index.search(request, stages)):
        nearest = np.argsort(-(vectors @ asked.vectors[i]), kind="stable")[:12]
        chosen = {items[row].id for row in nearest}
        if n_terms is None:
            query = queries.toarray()[i].tolist()
            chosen = {key for key, _ in slow_search(items, terms, query, 12)}
        scores = {
            item.id: slow_alignment(query_sets[i], own, "mrsw")
            for item, own in zip(items, sets, strict=True)
            if item.id in chosen
        }
        best = sorted(chosen, key=lambda key: -scores[key])[:5]
        assert [hit.item.id for hit in hits] == best
    assert stages.plan == ("terms" if n_terms is None else "all")


def test_impossible_alignment_is_refused(backend: Backend, name: str):
    items = mixed_items(6)
    terms = random_terms(
        0,
        (6, 3),
        3,
        1,
    )
    aligned = Embeddings("text", vectors_for(1), Ragged.from_sets([np.ones((2, 5), np.float32)], 5))
    bare = Embeddings("text", vectors_for(1))
    index = build(
        backend,
        name,
        items,
        terms,
        concepts=[np.ones((1, 5), np.float32)] * 6,
        concept_dtype="int8",
    )
    for queries, modality, message in (
        (bare, "image", "have no concept sets, which symm"),
        (aligned, None, "modality"),
    ):
        with pytest.raises(BocError, match=message):
            index.search(
                SearchRequest(
                    terms[:1],
                    5,
                    modality,
                    rescore=Rescore("symm", queries, 5),
                ),
            )
    without = build(
        backend,
        f"{name}-bare",
        items,
        terms,
    )
    for ids in ([], [items[0].id]):
        with pytest.raises(BackendError, match=r"has no concept sets.*concepts="):
            without.concepts(ids)
    with pytest.raises(BackendError, match=r"has no concept sets.*concepts="):
        without.search(
            SearchRequest(
                terms[:1],
                5,
                "image",
                rescore=Rescore("symm", aligned, 5),
            ),
        )
    with pytest.raises(BocError, match="unknown metric 'cosine' for re-ranking"):
        without.search(
            SearchRequest(
                terms[:1],
                5,
                "image",
                rescore=Rescore("cosine", aligned, 5),
            ),
        )  # type: ignore[arg-type]


@pytest.mark.parametrize("rescored", [False, True])
def test_stages_count_candidates(backend: Backend, name: str, rescored: bool):
    items = mixed_items(60)
    terms = random_terms(
        0,
        (60, 4),
        3,
        0.6,
    )
    index = build(
        backend,
        name,
        items,
        terms,
        halves(60, 0),
    )
    queries = random_terms(
        1,
        (3, 4),
        3,
        0.9,
    )
    rescore = Rescore("dot", Embeddings("text", halves(3, 1)), 5) if rescored else None
    request = SearchRequest(queries, 20, rescore=rescore)
    stages = Stages()
    assert index.search(request, stages) == index.search(request)
    least = sum(
        len(
            slow_search(
                items,
                terms,
                query,
                20,
            ),
        )
        for query in queries.toarray().tolist()
    )
    assert (least <= stages.candidates <= 60) if rescored else stages.candidates == 0
    before = replace(stages)
    index.search(request, stages)
    assert stages.candidates == 2 * before.candidates


def test_a_search_by_words(backend: Backend, name: str):
    rng = default_rng(0)
    sentences = [
        "a zebra eats grass",
        "two zebra sleep",
        "a red car",
        "grass, grass and grass",
        "a man in a car",
    ] * 3
    items = [sentence(f"s{i:02d}", text) for i, text in enumerate(sentences)]
    items += [
        replace(picture(f"p{i}"), fields={"title": title})
        for i, title in enumerate(VALUES["title"])
    ]
    items = [replace(item, fields={**item.fields, "year": i}) for i, item in enumerate(items)]
    terms = random_terms(
        rng,
        (len(items), 3),
        9,
        1,
    )
    index = build(
        backend,
        name,
        items,
        terms,
        fields=FIELDS,
    )
    assert {hit.item.id for hit in index.match(["a zebra"], 50, "image")[0]} == {"p0"}
    assert index.match(["unheard"], 5) == [[]]
    zebras = {item.id for item in items if "zebra" in item.content}
    recent = [Filter("year", ">=", 5)]
    hits, others = index.match(["zebra", "grass"], 50, "text")
    assert {hit.item.id for hit in hits} == zebras
    assert [hit.item.content for hit in others[:3]] == ["grass, grass and grass"] * 3
    assert pairs_of_hits(others) == sorted(
        pairs_of_hits(others),
        key=lambda pair: (-pair[1], pair[0]),
    )
    assert index.match(["grass"], 2, "text") == [others[:2]]
    recent_hits = index.match(
        ["zebra"],
        50,
        "text",
        recent,
    )[0]
    assert {hit.item.id for hit in recent_hits} == {f"s{i:02d}" for i in (5, 6, 10, 11)}


FOLDED = {
    "İstanbul": ["istanbul", "ISTANBUL", "I\u0307stanbul", "Istanbul."],
    "Straße": ["strasse", "STRASSE", "STRAẞE", "straße"],
    "cafe\u0301 crème": ["CAFÉ", "cafe", "creme", "CRE\u0300ME"],
    "Ångström": ["angstrom", "\u212bngstrom", "ANGSTRO\u0308M"],
    "\uff46\uff55\uff4c\uff4c \uff13\uff15": ["full", "FULL", "35", "\uff26ull"],
    "ﾃﾚﾋﾞ": ["テレビ"],
    "Łódź Smørrebrød I\u011fd\u0131r cœur ﬁsh": ["lodz", "smorrebrod", "IGDIR", "coeur", "fish"],
    "ὈΔΌΣ άλφα": ["οδος", "οδοσ", "ΑΛΦΑ"],
    "Ёлка йод": ["елка", "ЁЛКА", "\u0438\u0306\u043e\u0434"],
    "東京タワー": ["東京", "タワー"],
    "हिन्दी がく": ["हिन्दी", "が"],
    "don\u2019t panic": ["don't", "don\u2019t", "Don\u2019t panic.jpg"],
    "IMG_1234": ["IMG_1234", "IMG-1234.jpg", "img 1234", "1234"],
    "2024.05.01 12:30": ["2024.05.01", "2024_05_01", "12.30"],
    "mid\u00addle": ["middle"],
}
"""Texts, and what finds each of them alone."""


def test_words_are_folded_and_cut_alike(backend: Backend, name: str):
    items = [sentence(f"s{i:02d}", text) for i, text in enumerate(FOLDED)]
    index = build(backend, name, items, random_terms(0, (len(items), 3), 9, 1))
    for item, (text, questions) in zip(items, FOLDED.items(), strict=True):
        found = index.match([text, *questions], 50)
        assert [{hit.item.id for hit in hits} for hits in found] == [{item.id}] * len(found)
    assert index.match(["हिनदी", "か", "ム", "12345"], 50) == [[]] * 4


def test_items_are_sorted_by_id(backend: Backend, name: str):
    keys = [
        "b",
        "a b/ç.jpg",
        "日本語",
        "a",
        "\U0001f600",
        "A",
        "é",
        "e\u0301",
        "a\n\t\"'<&",
        "z" * 300,
    ]
    contents = [
        "",
        "ein \u201eSatz\u201c",
        "\U0001f408 " * 50,
        "a\nb",
        "/x y/ü.jpg",
        "",
        "",
        "\u0000",
        "|",
        "\\",
    ]
    items = [
        Item(
            key,
            MODALITIES[i % 2],
            content,
            key if i % 3 else "",
        )
        for i, (key, content) in enumerate(zip(keys, contents, strict=True))
    ]
    terms = random_terms(
        0,
        (10, 5),
        9,
        0.6,
    )
    index = build(
        backend,
        name,
        items,
        terms,
        batch=3,
    )
    assert list(index.items()) == sorted(items, key=lambda item: item.id)
    assert index.manifest.items == {"image": 5, "text": 5}
    assert index.manifest.postings == terms.nnz
    hits = index.search(SearchRequest(sparse.csr_array(np.ones((1, 5), np.int32)), 10))[0]
    assert {hit.item for hit in hits} <= set(items)


@pytest.mark.parametrize(
    ("dtype", "concept_dtype", "most"),
    [("float32", "float16", 6), ("float16", "int8", 6), ("int8", "int8", 0)],
)
def test_arrays_follow_the_order_of_ids(
    backend: Backend,
    name: str,
    dtype: str,
    concept_dtype: str,
    most: int,
):
    rng = default_rng(1)
    items = with_fields(20)
    vectors = vectors_for(20, 5)
    terms = random_terms(
        rng,
        (20, 6),
        300,
        0.3,
    )
    terms = sparse.csr_array(
        (terms.data, terms.indices, terms.indptr),
        shape=(20, 7),
    )  # a term that no item has
    sets = [
        vectors_for(int(m), 5, seed)
        for seed, m in enumerate(
            rng.integers(
                0,
                most,
                20,
                endpoint=True,
            ),
        )
    ]
    index = build(
        backend,
        name,
        items,
        terms,
        vectors,
        dtype=dtype,
        concepts=sets,
        concept_dtype=concept_dtype,
        fields=FIELDS,
    )
    for order in ([3, 0, 19], [7, 7, 2], [], list(range(20))):
        ids = [items[i].id for i in order]
        assert index.find(ids) == [items[i] for i in order]
        vectors_of_ids = index.vectors(ids)
        assert vectors_of_ids.dtype == index.manifest.vector_floats
        assert np.array_equal(vectors_of_ids.reshape(-1, 5), round_trip(vectors[order], dtype))
        concepts = index.concepts(ids)
        expected = store_rows([sets[i] for i in order], concept_dtype)
        assert concepts.values.dtype == concept_dtype
        assert concepts.offsets.tolist() == expected.offsets.tolist()
        assert np.array_equal(concepts.values, expected.values)
        assert (concepts.scales is None) == (expected.scales is None)
        assert concepts.scales is None or np.array_equal(concepts.scales, expected.scales)
        for among in (None, [], [5, 0, 3], range(7)):
            read = index.terms(ids, among)
            assert_canonical(read, (len(order), 7))
            some = np.isin(np.arange(7), list(range(7) if among is None else among))
            assert same_matrix(read, sparse.csr_array(terms[order].toarray() * some))
    frequencies = index.document_frequencies()
    assert frequencies.dtype == np.int64
    assert frequencies.tolist() == (terms.toarray() > 0).sum(axis=0).tolist()
    for unknown in ("", f"{items[0].id}x", "~"):
        for ask in (
            index.vectors,
            index.terms,
            index.find,
            index.concepts,
            lambda ids: index.terms(ids, [0]),
        ):
            with pytest.raises(KeyError) as caught:
                ask([items[0].id, unknown])
            assert caught.value.args == (unknown,)


def test_repeated_ids_are_refused(backend: Backend, name: str):
    terms = random_terms(
        0,
        (2, 3),
        3,
        1,
    )
    with backend.create(name, new_manifest(3, 3, ARRAYS), ARRAYS) as writer:
        writer.add(Rows([picture("a"), picture("b")], terms, vectors_for(2)))
        for keys in (["c", "a"], ["d", "d"]):
            with pytest.raises(BackendError, match=f"'{keys[1]}'"):
                writer.add(Rows([sentence(key) for key in keys], terms, vectors_for(2)))
        writer.add(Rows([sentence("c"), sentence("d")], terms, vectors_for(2)))
        writer.commit()
    assert [item.id for item in backend.open(name).items()] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("count", [9, 1000])
def test_sample_has_no_repeats(backend: Backend, name: str, count: int):
    items = mixed_items(40)
    index = build(
        backend,
        name,
        items,
        random_terms(
            0,
            (40, 30),
            9,
            0.4,
        ),
    )
    for modality in MODALITIES:
        ids = {item.id for item in items if item.modality == modality}
        ids_of_sample = index.sample(count, modality)
        assert len(ids_of_sample) == len(set(ids_of_sample)) == min(count, len(ids))
        assert set(ids_of_sample) <= ids
        assert index.sample(count, modality) == ids_of_sample
    with backend.edit(name) as editor:
        gone = [item.id for item in items if item.modality == "image"][:20]
        editor.delete(gone)
        editor.commit("fewer")
    assert not set(backend.open(name).sample(1000, "image")) & set(gone)


def everything(index: Engine, queries: sparse.csr_array) -> list[object]:
    items = list(index.items())
    keys = [item.id for item in items]
    arrays = {key: array.tolist() for key, array in index.arrays().items()}
    answers = [
        index.search(SearchRequest(queries, 50, modality)) for modality in (None, *MODALITIES)
    ]
    concepts = index.concepts(keys).values.tolist() if index.manifest.concept_dtype else None
    return [
        items,
        answers,
        [index.vectors(keys).tolist(), index.terms(keys).toarray().tolist(), concepts],
        arrays,
        index.manifest,
    ]


@pytest.mark.parametrize("dtype", [None, *CONCEPT_DTYPES])
def test_replacement_is_atomic(backend: Backend, name: str, dtype: str | None):
    rng = default_rng(0)
    queries = random_terms(
        rng,
        (4, 6),
        9,
        0.7,
    )
    sets = [vectors_for(i % 4, 5, i) for i in range(30)]
    terms = random_terms(
        rng,
        (30, 6),
        9,
        0.5,
    )
    old = build(
        backend,
        name,
        mixed_items(30),
        terms,
        concepts=sets,
        concept_dtype=dtype,
    )
    before = everything(old, queries)
    fresh = [picture("new"), sentence("also new")]
    terms = random_terms(
        rng,
        (2, 6),
        9,
        1,
    )
    asleep = backend.open(name)  # not touched before the replacement
    with backend.create(name, new_manifest(6, 3, ARRAYS), ARRAYS) as writer:
        writer.add(Rows(fresh, terms, vectors_for(2)))
        assert everything(backend.open(name), queries) == before
        writer.commit()
    assert everything(old, queries) == before
    assert everything(asleep, queries) == before
    assert {item.id for item in backend.open(name).items()} == {"new", "also new"}


class GivingUpError(Exception):
    """Raised by a test inside a writer."""


@pytest.mark.parametrize("ending", ["leaving", "failing"])
def test_nothing_is_visible_before_commit(backend: Backend, name: str, ending: str):
    terms = random_terms(
        0,
        (5, 3),
        3,
        1,
    )

    def give_up():
        with backend.create(name, new_manifest(3, 3, ARRAYS), ARRAYS) as writer:
            writer.add(Rows(mixed_items(5), terms, vectors_for(5)))
            assert not backend.exists(name)
            if ending == "failing":
                raise GivingUpError

    def attempt():
        if ending == "failing":
            with pytest.raises(GivingUpError):
                give_up()
        else:
            give_up()

    attempt()
    assert not backend.exists(name)
    with pytest.raises(BackendError):
        backend.open(name)
    index = build(
        backend,
        name,
        [picture("kept")],
        terms[:1],
    )
    attempt_over_an_existing_one = backend.create(name, new_manifest(3, 3, ARRAYS), ARRAYS)
    with attempt_over_an_existing_one as writer:
        writer.add(Rows(mixed_items(5), terms, vectors_for(5)))
    assert (
        [item.id for item in backend.open(name).items()]
        == [item.id for item in index.items()]
        == ["kept"]
    )


def test_wrong_requests_are_refused(backend: Backend, name: str):
    index = build(
        backend,
        name,
        mixed_items(3),
        random_terms(
            0,
            (3, 3),
            3,
            1,
        ),
    )
    assert index.search(SearchRequest(sparse.csr_array((0, 3), dtype=np.int32), 5)) == []
    for width, k, words in (
        (2, 5, "queries have 2 terms, but the index has 3"),
        (4, 5, "queries have 4 terms, but the index has 3"),
        (3, 0, "k must be at least 1, got 0"),
    ):
        with pytest.raises(BackendError, match=words):
            index.search(SearchRequest(sparse.csr_array(np.ones((1, width), np.int32)), k))


def load(backend: Backend, name: str, manifest: Manifest, rows: tuple[Any, ...]) -> None:
    with backend.create(name, manifest, ARRAYS) as writer:
        writer.add(Rows(*rows))
        writer.commit()


@pytest.mark.parametrize("dtype", [None, *CONCEPT_DTYPES])
def test_edits_equal_those_of_a_dictionary(backend: Backend, name: str, dtype: str | None):
    rng = default_rng(0)
    kind = Kind(concepts=dtype)
    keys = [f"key {i:02d}" for i in range(25)]
    model = Model(kind, {row.item.id: row for row in rows_for(kind, keys[:15], 0)})
    load(
        backend,
        name,
        kind.manifest,
        columns(kind, list(model.rows.values())),
    )
    queries = sparse.csr_array(np.ones((2, 5), np.int32))
    by_vectors = Rescore("dot", Embeddings("text", np.eye(2, 4, dtype=np.float32)), 7)
    for number in range(1, 6):
        source = f"{number:064x}"
        with backend.edit(name) as editor:
            for step in range(4):
                chosen = rng.choice(keys, 5, replace=False).tolist()
                if step % 2:
                    assert editor.delete([*chosen, "unknown"]) == len(
                        model.rows.keys() & set(chosen),
                    )
                    model.rows = {key: row for key, row in model.rows.items() if key not in chosen}
                else:
                    rows = rows_for(kind, chosen, 10 * number + step)
                    editor.put(Rows(*columns(kind, rows)))
                    model.rows |= {row.item.id: row for row in rows}
            if number % 2:  # else it stays as it is
                unreadable = {f"{number}.jpg": [number, 10**18]}
                editor.commit(source, unreadable=unreadable)
            else:
                editor.commit(source)
        if number == 5:
            backend.compact(name)
        index = backend.open(name)
        assert index.damaged_files() == []
        assert index.manifest.source == source
        assert index.manifest.unreadable == unreadable
        assert index.manifest.same_contents(replace(kind.manifest, source=source))
        assert_holds(index, model)
        assert index.used_fields() == {
            field for row in model.rows.values() for field in row.item.fields
        } - {"title"}
        for rescore in (None, by_vectors):
            request = SearchRequest(queries, 20, rescore=rescore)
            assert pairs(index.rank(request)) == [*map(pairs_of_hits, index.search(request))]


@pytest.mark.parametrize("edits", [False, True])
def test_wrong_rows_are_refused(backend: Backend, name: str, edits: bool):
    kind = Kind(concepts="float16", fields=False)
    first, other = (columns(kind, rows_for(kind, keys, 0)) for keys in (["a", "b"], ["c", "d"]))
    writer = backend.create(name, kind.manifest, ARRAYS)
    if edits:
        load(
            backend,
            name,
            kind.manifest,
            first,
        )
        writer = backend.edit(name)
    items, terms, vectors, sets = other
    rounded = columns(replace(kind, concepts="int8"), rows_for(kind, ["c", "d"], 0))[3]
    wider = store(Ragged.from_sets([np.ones((1, 6), np.float32)] * 2, 6), "float16")
    alone = columns(kind, rows_for(kind, ["c"], 0))[3]
    with writer:
        if not edits:
            assert not writer.has(["a"])
            with pytest.raises(BackendError, match="no items were added"):
                writer.commit()
            writer.add(Rows(*first))
        put = writer.put if edits else writer.add
        for wrong, words in (
            ((items[:1], terms, vectors, sets), "1 items"),
            ((items, terms[:, :3], vectors, sets), r"\d"),
            ((items, terms, vectors[:, :2], sets), r"\d"),
            ((items, terms, vectors, None), "type None.*type float16"),
            ((items, terms, vectors, rounded), "type int8.*type float16"),
            ((items, terms, vectors, alone), "2 items and 1 concept sets"),
            ((items, terms, vectors, wider), "6 components, but earlier concepts have 3"),
            (([items[0]] * 2, terms, vectors, sets), "'c'"),
            (([replace(items[0], fields={"tag": "x"}), items[1]], terms, vectors, sets), "'tag'"),
        ):
            with pytest.raises(BackendError, match=words):
                put(Rows(*wrong))
        put(
            Rows(
                items,
                terms,
                vectors,
                sets,
            ),
        )
        writer.commit(*["ef" * 32] * edits)
    assert [item.id for item in backend.open(name).items()] == ["a", "b", "c", "d"]


def test_modality_filter_of_an_earlier_index(backend: Backend, name: str):
    terms = random_terms(
        0,
        (4, 3),
        3,
        1,
    )
    index = build(
        backend,
        name,
        [picture("a"), picture("b")],
        terms[:2],
    )
    query = sparse.csr_array(np.ones((1, 3), np.int32))
    assert len(index.search(SearchRequest(query, 9, "image"))[0]) == 2
    with backend.edit(name) as editor:
        editor.put(Rows([sentence("c"), sentence("d")], terms[2:], vectors_for(2)))
        editor.commit("ef" * 32)
    for opened in (index, backend.open(name)):
        for rescore in (None, Rescore("dot", Embeddings("text", vectors_for(1, seed=1)), 9)):
            assert sorted(
                hit.item.id
                for hit in opened.search(
                    SearchRequest(
                        query,
                        9,
                        "image",
                        rescore=rescore,
                    ),
                )[0]
            ) == ["a", "b"]
    assert sorted(
        hit.item.id for hit in backend.open(name).search(SearchRequest(query, 9, "text"))[0]
    ) == ["c", "d"]


def test_delete_leaves_an_item(backend: Backend, name: str):
    build(
        backend,
        name,
        mixed_items(3),
        random_terms(
            0,
            (3, 3),
            3,
            1,
        ),
    )

    def empty():
        with backend.edit(name) as editor:
            editor.delete([item.id for item in mixed_items(3)])
            editor.commit("ef" * 32)

    with pytest.raises(BackendError, match=f"boc delete {name} --all"):
        empty()


def test_removal_ends_listing(backend: Backend, name: str):
    terms = random_terms(
        0,
        (3, 3),
        3,
        1,
    )
    names = [f"{name}-{word}" for word in ("dogs", "cats")]
    for each in names:
        build(
            backend,
            each,
            mixed_items(3),
            terms,
        )
    listed = backend.names()
    assert listed == sorted(listed)
    assert set(names) <= set(listed)
    backend.remove(names[0])
    assert not backend.exists(names[0])
    assert [each for each in backend.names() if each in names] == names[1:]
    assert len(list(backend.open(names[1]).items())) == 3
    for gone in (backend.remove, backend.open, backend.edit, backend.compact):
        with pytest.raises(BackendError, match=f"no index '{names[0]}'.*{names[1]}"):
            gone(names[0])
    build(
        backend,
        names[0],
        mixed_items(2),
        terms[:2],
    )
    assert len(list(backend.open(names[0]).items())) == 2


@pytest.mark.parametrize(("dtype", "concepts"), STORED)
def test_copies_and_exports_equal_the_index(
    backend: Backend,
    address: str,
    name: str,
    tmp_path: Path,
    dtype: str,
    concepts: str | None,
):
    rng = default_rng(3)
    items = with_fields(30)
    terms = random_terms(
        rng,
        (30, 9),
        700,
        0.5,
    )
    sets = [rng.standard_normal((int(m), 5)).astype(np.float32) for m in rng.integers(0, 4, 30)]
    here = f"file:{tmp_path / 'source'}"
    back = f"file:{tmp_path / 'back'}"
    export = tmp_path / "a.zip"
    source = build(
        plugins.backend(here),
        name,
        items,
        terms,
        halves(30, 0),
        dtype=dtype,
        concepts=sets,
        concept_dtype=concepts,
        fields=FIELDS,
    )
    report = copy_index(name, at=here, to=address)
    assert report.images + report.texts == 30
    assert copy_index(name, at=here, to=address).up_to_date
    copy_index(
        name,
        f"{name}-2",
        at=address,
        to=back,
    )
    report = copy_index(name, at=address, to=export)
    assert report.images + report.texts == 30
    for place in (address, back):
        assert build_index(f"{name}-3", export, at=place).images == report.images
    queries = random_terms(
        rng,
        (8, 9),
        9,
        0.5,
    )
    for place, copy in (
        (address, name),
        (back, f"{name}-2"),
        (address, f"{name}-3"),
        (back, f"{name}-3"),
    ):
        assert_copied(source, plugins.backend(place).open(copy), queries)


def assert_copied(source: Engine, copy: Engine, queries: sparse.csr_array) -> None:
    """An index holds what another holds, and answers alike."""
    assert copy.manifest.same_contents(source.manifest)
    assert (copy.manifest.items, copy.manifest.postings) == (
        source.manifest.items,
        source.manifest.postings,
    )
    items = list(source.items())
    assert list(copy.items()) == items
    ids = [item.id for item in items]
    assert same_matrix(copy.vectors(ids), source.vectors(ids))
    assert same_matrix(copy.terms(ids), source.terms(ids))
    assert all(
        np.array_equal(array, copy.arrays()[name]) for name, array in source.arrays().items()
    )
    if source.manifest.concept_dtype is not None:
        ours = copy.concepts(ids)
        theirs = source.concepts(ids)
        assert np.array_equal(ours.offsets, theirs.offsets)
        assert same_matrix(ours.values, theirs.values)
        assert np.array_equal(ours.to_ragged().values, theirs.to_ragged().values)
    vectors = Embeddings("image", halves(queries.shape[0], 1))
    for rescore in (None, Rescore("dot", vectors, 7)):
        assert copy.search(SearchRequest(queries, 20, rescore=rescore)) == source.search(
            SearchRequest(queries, 20, rescore=rescore),
        )
