"""The native call gives the hits of the steps in numpy, and both give those of slow loops."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.random import default_rng

from boc.codecs import SurrogateCodec, parse_code
from boc.codecs.dictionary import dictionary_steps
from boc.codecs.frequencies import heaviest
from boc.errors import ManifestError
from boc.inputs.metadata import holds
from boc.manifest import Manifest
from boc.plan import Plan, vectors_read
from boc.rerank.compact import CompactCode
from boc.search.options import parse_filters
from boc.search.searcher import Searcher
from boc.types import Embeddings, Filter, Hit, Identity, Item, Modality, Rows, Stages
from boc.vectors import Floats
from indexing.embedded import engine, kernel, merge, ranking
from indexing.embedded.backend import EmbeddedBackend
from indexing.embedded.engine import EmbeddedEngine
from tests.boc.rerank.test_compact import estimates

NATIVE = kernel._search
pytestmark = pytest.mark.skipif(
    NATIVE is None,
    reason="indexing.embedded._search is not built here",
)

DIM = 24
COLOURS = ("red", "green", "blue")


def make_clusters(n: int, seed: int) -> Floats:
    """Rows of few values, many of them equal: products are exact everywhere, and often equal."""
    rng = default_rng(seed)
    heads = default_rng(0).integers(-2, 3, (12, DIM))
    rows = heads[rng.integers(len(heads), size=n)] + rng.integers(-1, 2, (n, DIM)) * (
        rng.random((n, DIM)) < 0.2
    )
    return (rows / 16).astype(np.float32)


def some_items(n: int) -> list[Item]:
    """Pictures and, every third, sentences; their ids are not in the order of their numbers."""
    return [
        Item(
            f"{i * 7919 % 1009:04d}é{i}",
            "text" if i % 3 == 0 else "image",
            f"item {i}",
            "",
            {"colour": COLOURS[i % 3]},
        )
        for i in range(n)
    ]


def codec_of(code: str, rows: Floats) -> SurrogateCodec:
    if code == "dictionary":
        return SurrogateCodec(dictionary_steps(40, 2, 6)).fit(Embeddings("image", rows))
    if code == "uncentred":
        return SurrogateCodec(
            dictionary_steps(
                40,
                2,
                6,
                center=False,
            ),
        ).fit(
            Embeddings("image", rows),
        )
    return parse_code(code).codec(DIM).fit(Embeddings("image", rows))


def build(
    folder: Path,
    dtype: str,
    segments: int,
    code: str,
    least: int = engine.LEAST,
) -> Searcher:
    """An index of some segments, with rows deleted and replaced, and a shortlist if it has at least
    ``least`` items."""
    sizes = [200, 60, 30][:segments]
    rows = make_clusters(sum(sizes), 1)
    items = some_items(sum(sizes))
    codec = codec_of(code, rows)
    fields = {"colour": "keyword"}
    manifest = Manifest.new(
        Identity("tern:somewhere", "ab" * 32, DIM),
        codec.config(),
        codec.arrays(),
        rm=4.0,
        dtype=dtype,
        source="cd" * 32,
        fields=fields,
    )
    backend = EmbeddedBackend(folder)
    first = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "FEW", 1)  # or the segments would be one
        patch.setattr(merge, "LIVE", 0)
        for size in sizes:
            span = slice(first, first + size)
            if first == 0:
                with backend.create("some", manifest, codec.arrays()) as writer:
                    writer.add(
                        Rows(
                            items[span],
                            codec.encode_documents(Embeddings("image", rows[span])),
                            rows[span],
                        ),
                    )
                    writer.commit()
            else:
                again = rows[first - 1 : span.stop]
                with backend.edit("some") as editor:
                    terms = codec.encode_documents(Embeddings("image", again))
                    editor.put(Rows([*items[span], items[0]], terms, again))
                    editor.delete([item.id for item in items[max(0, first - 9) : first]])
                    editor.commit("ef" * 32)
            first += size
        patch.setattr(engine, "LEAST", least)
        return Searcher.open("some", f"file:{folder}")


CASES = {
    "one segment": (1, "float16", "dictionary", engine.LEAST),
    "segments": (3, "float16", "dictionary", engine.LEAST),
    "no centre": (2, "float32", "uncentred", 1),
    "8 bits": (3, "int8", "dictionary", engine.LEAST),
    "shortlist": (1, "float32", "dictionary", 1),
    "shortlist of segments": (3, "float16", "dictionary", 1),
    "shortlist in 8 bits": (2, "int8", "dictionary", 1),
    "bits": (2, "float16", "bits:8/16", engine.LEAST),
    "scalar": (3, "float32", "scalar:8/8", engine.LEAST),
    "permutation": (1, "float16", "permutation:6/6", engine.LEAST),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def searcher(request, tmp_path_factory) -> Searcher:
    segments, dtype, code, least = request.param
    searcher = build(
        tmp_path_factory.mktemp("index"),
        dtype,
        segments,
        code,
        least,
    )
    assert isinstance(searcher.index, EmbeddedEngine)
    assert len(searcher.index._parts) == segments
    assert searcher.index.costs.compact == (code == "dictionary" and least == 1)
    return searcher


def queries_of(n: int, seed: int, modality: Modality) -> Embeddings:
    """Queries, of which one in five is zero."""
    rows = make_clusters(n, seed)
    rows[default_rng(seed).random(n) < 0.2] = 0
    return Embeddings(modality, rows)


def slow_hits(
    searcher: Searcher,
    queries: Embeddings,
    k: int,
    depth: int,
    find: Modality,
    **options: Any,
) -> Any:
    """Ids and scores of each query by loops over all items: candidates by term scores, then
    products of vectors."""
    terms = searcher.codec.encode_queries(queries)
    if options.get("query_z") is not None:
        terms = heaviest(terms, options["query_z"])
    codes = terms.toarray().astype(np.int64)
    items = [item for item in searcher.index.items() if item.modality == find]
    items = [
        item
        for item in items
        if all(item.fields["colour"] == f.value for f in options.get("filters", ()))
    ]
    ids = [item.id for item in items]
    terms = searcher.index.terms(ids).toarray().astype(np.int64)
    vectors = searcher.index.vectors(ids).astype(np.float64)
    rankings = []
    for code, vector in zip(codes, queries.vectors.astype(np.float64), strict=True):
        scored = [
            (-int(code @ row), key, place)
            for place, (key, row) in enumerate(zip(ids, terms, strict=True))
        ]
        candidates = sorted(one for one in scored if one[0] < 0)[:depth]
        if searcher.index.costs.compact:
            products = estimated(searcher.index, ids, vector.astype(np.float32))
            nearest = sorted((-products[key], key, place) for _, key, place in candidates)
            candidates = nearest[: vectors_read(depth, k)]
        best = sorted((-float(vectors[place] @ vector), key) for _, key, place in candidates)[:k]
        rankings.append([(key, -score) for score, key in best])
    return rankings


def estimated(index: Any, ids: list[str], query: Floats) -> dict[str, float]:
    """The products of a query with items, estimated from their compact codes."""
    code = CompactCode.of(index.manifest.codec, index.arrays(), DIM)
    products = {}
    for part in index._parts:
        rows = np.arange(len(part.segment))
        scores = estimates(code, query, part.segment.compact)
        live = rows if part.live is None else np.flatnonzero(part.live)
        products |= zip(part.segment.ids(live), scores[live].tolist(), strict=True)
    return {key: products[key] for key in ids}


def pairs(answers: list[list[Hit]]) -> list[list[tuple[str, float]]]:
    return [[(hit.item.id, hit.score) for hit in hits] for hits in answers]


@settings(max_examples=12)  # for each of ten indexes
@given(
    n=st.integers(1, 9),
    seed=st.integers(2, 99),
    k=st.integers(1, 30) | st.just(5000),
    rm=st.integers(1, 40),
    budget=st.integers(1, 50),
    query_z=st.none() | st.integers(1, 9),
    find=st.sampled_from(["image", "text"]),
    colours=st.lists(st.sampled_from(COLOURS), max_size=1),
    modality=st.sampled_from(["image", "text"]),
)
def test_the_native_call_gives_what_all_steps_give(
    searcher: Searcher,
    n: int,
    seed: int,
    k: int,
    rm: int,
    budget: int,
    query_z: int | None,
    find: Modality,
    colours: list[str],
    modality: Modality,
):
    queries = queries_of(n, seed, modality)
    filters = [Filter("colour", "=", colour) for colour in colours]
    options = {
        "k": k,
        "rm": rm,
        "find": find,
        "filters": filters,
        "query_z": query_z,
    }
    if searcher.codec.query_budget is not None:
        searcher.codec.set_budgets(2, budget)
    hits = searcher.search_vectors(queries, **options)
    assert (
        searcher.search_vectors(queries, stages=Stages(), **options) == hits
    )  # terms made here, not by the index
    for i in range(n):
        assert searcher.search_vectors(queries.take([i]), **options) == [hits[i]]
    if not searcher.index.costs.compact:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernel, "_search", None)
            stepwise = Searcher(EmbeddedEngine(searcher.index._home))  # type: ignore[attr-defined]
            if searcher.codec.query_budget is not None:
                stepwise.codec.set_budgets(2, budget)
            assert stepwise.search_vectors(queries, **options) == hits
    slow = slow_hits(
        searcher,
        queries,
        k,
        k * rm,
        find,
        filters=filters,
        query_z=query_z,
    )
    # A vector of zeros has no hits.
    slow = [one if row.any() else [] for one, row in zip(slow, queries.vectors, strict=True)]
    assert [[key for key, _ in one] for one in pairs(hits)] == [
        [key for key, _ in one] for one in slow
    ]
    for one, other in zip(pairs(hits), slow, strict=True):
        assert [score for _, score in one] == pytest.approx([score for _, score in other], abs=1e-3)


def answers(searcher: Searcher, **options: Any) -> tuple[list[Any], list[Any]]:
    ids, scores = searcher.rank_vectors(queries_of(20, 5, "image"), **options)
    return ids.tolist(), scores.tolist()


def test_index_without_compact_codes_is_searched_and_completed(
    tmp_path: Path,
    monkeypatch,
):
    monkeypatch.setattr(engine, "LEAST", 1)
    with monkeypatch.context() as patch:
        patch.setattr(CompactCode, "of", lambda *_: None)
        searcher = build(
            tmp_path,
            "float16",
            1,
            "dictionary",
        )
    backend = EmbeddedBackend(tmp_path)
    assert not backend.open("some").costs.compact
    assert not list(tmp_path.rglob("compact*.npy"))
    expected = answers(searcher, k=50, rm=1)
    assert answers(Searcher.open("some", f"file:{tmp_path}"), k=50, rm=1) == expected
    backend.compact("some")
    assert len(list(tmp_path.rglob("compact*.npy"))) == 2
    completed = backend.open("some")
    assert completed.costs.compact
    assert answers(Searcher(completed), k=50, rm=1) == expected
    assert completed.damaged_files() == []
    name = completed._parts[0].name
    backend.compact("some")
    assert backend.open("some")._parts[0].name == name  # nothing was left to do


def test_damaged_lists_are_told(tmp_path: Path):
    searcher = build(
        tmp_path,
        "float16",
        1,
        "dictionary",
    )
    postings = searcher.index._parts[0].segment.postings  # type: ignore[attr-defined]
    object.__setattr__(postings, "rows", np.full_like(postings.rows, 60_000))
    with pytest.raises(ManifestError, match="a row is none of the segment's"):
        searcher.search_vectors(Embeddings("image", make_clusters(1, 3)), rm=10)


@given(
    k=st.integers(1, 60),
    colour=st.sampled_from(
        [
            "",
            "colour=red",
            "colour=green",
            "colour!=blue",
            "colour=none",
        ],
    ),
    find=st.sampled_from(["image", "text"]),
    few=st.sampled_from([1, 40, 10_000]),
    seed=st.integers(0, 99),
)
def test_a_search_without_budgets_has_all_hits(
    searcher: Searcher,
    k: int,
    colour: str,
    find: Modality,
    few: int,
    seed: int,
):
    """As many as pass, at most k, all of them passing; the exact ones where few rows pass; fewer
    are the first. A query alone has the hits that it has beside others."""
    index = searcher.index
    assert isinstance(index, EmbeddedEngine)
    filters = parse_filters(colour or (), index.manifest.fields)
    passing = {
        i.id
        for i in index.items()
        if i.modality == find and all(holds(f, i.fields) for f in filters)
    }
    queries = make_clusters(2, seed)
    scores = {id: queries @ index.vectors([id])[0].astype(np.float32) for id in passing}
    options = {"find": find, "filters": filters}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "costs", index.costs._replace(quick=few * DIM))
        patch.setattr(index, "_prepared", {})
        hits = searcher.search_vectors(Embeddings("image", queries), k=k, **options)
        fewer = searcher.search_vectors(Embeddings("image", queries), k=max(1, k // 2), **options)
        for i in range(len(queries)):
            alone = Embeddings("image", queries[i : i + 1])
            stages = Stages()
            assert searcher.search_vectors(
                alone,
                k=k,
                stages=stages,
                **options,
            ) == [hits[i]]
            assert stages.plan == "all" or len(passing) > few
        if not index.costs.compact:
            patch.setattr(kernel, "_search", None)
            assert searcher.search_vectors(Embeddings("image", queries), k=k, **options) == hits
    for i, answer in enumerate(hits):
        assert len(answer) == min(k, len(passing))
        assert {hit.id for hit in answer} <= passing
        if len(passing) <= few:
            exact = sorted((float(score[i]) for score in scores.values()), reverse=True)
            assert np.allclose(
                [hit.score for hit in answer],
                exact[:k],
                rtol=1e-5,
                atol=1e-6,
            )
            assert answer[: len(fewer[i])] == fewer[i]


def test_a_filter_takes_more_terms_unless_budgets_are_given(tmp_path: Path):
    searcher = build(
        tmp_path,
        "float16",
        1,
        "dictionary",
    )

    def terms(**options):
        stages = Stages()
        searcher.search_vectors(
            queries_of(1, 3, "image"),
            find="image",
            stages=stages,
            **options,
        )
        assert stages.codes is not None
        return int(stages.codes.nnz)

    assert [terms(), terms(filters=["colour=green"], rm=2), terms(filters=["colour=green"])] == [
        6,
        6,
        7,
    ]


def test_more_candidates_than_rows_need_no_more_memory(searcher: Searcher):
    queries = Embeddings("image", make_clusters(2, 3))
    expected = searcher.search_vectors(queries, k=3, rm=1000)
    assert searcher.search_vectors(queries, k=3, rm=(2**31 - 1) / 3) == expected
    assert searcher.search_vectors(queries, k=3, rm=2.0**40) == expected


def test_a_score_beyond_32_bits_is_summed_step_by_step(tmp_path: Path):
    searcher = build(
        tmp_path,
        "float16",
        1,
        "dictionary",
    )
    postings = searcher.index._parts[0].segment.postings  # type: ignore[attr-defined]
    object.__setattr__(postings, "frequencies", np.full(len(postings.rows), 1 << 30, np.int32))
    queries = Embeddings("image", make_clusters(3, 3))
    with pytest.MonkeyPatch.context() as patch:
        hits = searcher.search_vectors(queries, k=5, rm=3)
        patch.setattr(kernel, "_search", None)
        assert Searcher(searcher.index).search_vectors(queries, k=5, rm=3) == hits
    assert all(hits)


def test_arrays_that_do_not_fit_each_other_are_refused(tmp_path: Path):
    assert NATIVE is not None
    searcher = build(
        tmp_path,
        "float16",
        2,
        "dictionary",
    )
    code = searcher.codec.query_code("image")
    assert code is not None
    index = searcher.index
    assert isinstance(index, EmbeddedEngine)
    arrays = [(ranking._arrays(part.segment, None), len(part.segment)) for part in index._parts]
    for i in range(len(code.centroids)):
        wrong = [*code.centroids]
        wrong[i] = np.ascontiguousarray(np.concatenate([wrong[i], wrong[i]]))
        with pytest.raises(ValueError, match=r" for |cells"):
            NATIVE.code(
                code.mean,
                *wrong,
                1,
                1,
                0.1,
                63,
            )
    for z, cells in ((0, 1), (1, 0), (1, 1 << 20)):
        with pytest.raises(ValueError, match="cells"):
            NATIVE.code(
                code.mean,
                *code.centroids,
                z,
                cells,
                0.1,
                63,
            )
    for i in (0, 1, 2, 3, 6, 7):  # the bytes of ids may be more, and there is no mask
        short = [*arrays[0][0]]
        short[i] = short[i][:-1]  # type: ignore[index]
        with pytest.raises(ValueError, match=" for "):
            NATIVE.parts(
                ((tuple(short), arrays[0][1]), arrays[1]),
                DIM,
                None,
                kernel.BLOCK,
            )
    parts = NATIVE.parts(
        tuple(arrays),
        DIM,
        None,
        kernel.BLOCK,
    )
    made = NATIVE.code(
        code.mean,
        *code.centroids,
        1,
        1,
        0.1,
        63,
    )
    rows = np.zeros((1, DIM), np.float32)
    good = Plan("terms", 3, 1)
    for wrong_plan in (
        good._replace(depth=2),
        good._replace(size=0),
        good._replace(depth=1 << 40),
        good._replace(least=-1),
        good._replace(share=-0.5),
    ):
        with pytest.raises(ValueError, match="limits"):
            NATIVE.best(
                parts,
                wrong_plan,
                3,
                rows,
                made,
            )
    for vectors, terms in ((None, made), (None, (np.array([0, 0]), *2 * [np.zeros(0, np.int32)]))):
        with pytest.raises(ValueError, match="limits"):
            NATIVE.best(
                parts,
                good._replace(way="all"),
                3,
                vectors,
                terms,
            )
    with pytest.raises(ValueError, match="another width"):
        NATIVE.best(
            parts,
            good,
            3,
            rows[:, 1:].copy(),
            made,
        )
    lists = np.zeros(2, np.int32), np.ones(2, np.int32)
    for offsets in ([0, 3], [-1, 2], [2, 1], [0, 1, 2]):
        with pytest.raises(ValueError, match="offsets"):
            NATIVE.best(
                parts,
                good,
                3,
                rows,
                (np.array(offsets), *lists),
            )
    with pytest.raises(ValueError, match="offsets"):
        NATIVE.best(
            parts,
            good,
            3,
            rows,
            (np.array([0, 2]), lists[0], lists[1][:1]),
        )
