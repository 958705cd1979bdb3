"""Queries answered in one native call have the ids and scores of the general path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from boc.codecs import SurrogateCodec
from boc.codecs.dictionary import dictionary_steps
from boc.errors import ManifestError
from boc.manifest import Manifest
from boc.rerank.compact import CompactCode
from boc.search import arrays as arrays_module
from boc.search.searcher import Searcher
from boc.types import Embeddings, Filter, Identity, Item, Modality
from indexing.embedded import query, shortlist
from indexing.embedded.backend import EmbeddedBackend
from indexing.embedded.index import EmbeddedIndex

pytestmark = pytest.mark.skipif(query._query is None, reason="indexing.embedded._query is not built here")

DIM = 24
COLOURS = ("red", "green", "blue")


def clustered(n: int, seed: int) -> NDArray[np.float32]:
    """Rows of few values, many of them equal: products are exact everywhere, and often equal."""
    rng = np.random.default_rng(seed)
    heads = np.random.default_rng(0).integers(-2, 3, (12, DIM))
    rows = heads[rng.integers(len(heads), size=n)] + rng.integers(-1, 2, (n, DIM)) * (rng.random((n, DIM)) < 0.2)
    return (rows / 16).astype(np.float32)


def some_items(n: int, first: int) -> list[Item]:
    """Pictures and, every third, sentences; their ids are not in the order of their numbers."""
    return [
        Item(
            f"{i * 7919 % 1009:04d}é{i}", "text" if i % 3 == 0 else "image", f"item {i}", "", {"colour": COLOURS[i % 3]}
        )
        for i in range(first, first + n)
    ]


def build(folder: Path, dtype: str, segments: int, *, center: bool, least: int = 1 << 30) -> Searcher:
    """An index of some segments, with rows deleted and replaced."""
    sizes = [200, 60, 30][:segments]
    rows, items = clustered(sum(sizes), 1), some_items(sum(sizes), 0)
    codec = SurrogateCodec(dictionary_steps(40, 2, 6, center=center)).fit(Embeddings("image", rows))
    identity = Identity("tern:somewhere", "ab" * 32, DIM)
    fields: dict[str, Any] = {"colour": "keyword"}
    manifest = Manifest.new(
        identity, codec.config(), codec.arrays(), rm=4.0, dtype=dtype, source="cd" * 32, fields=fields
    )
    backend, first = EmbeddedBackend(folder), 0
    for size in sizes:
        span = slice(first, first + size)
        terms = codec.encode_documents(Embeddings("image", rows[span]))
        if first == 0:
            with backend.create("some", manifest, codec.arrays()) as writer:
                writer.add(items[span], terms, rows[span])
                writer.commit()
        else:
            with backend.edit("some") as editor:
                editor.put(
                    [*items[span], items[0]],
                    codec.encode_documents(Embeddings("image", rows[first - 1 : span.stop])),
                    rows[first - 1 : span.stop],
                )
                editor.delete([item.id for item in items[max(0, first - 9) : first]])
                editor.commit("ef" * 32)
        first += size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shortlist, "LEAST", least)
        return Searcher.open("some", f"file:{folder}")


CASES = {
    "one segment": (1, "float16", True, 1 << 30),
    "segments": (3, "float16", True, 1 << 30),
    "no centre": (2, "float32", False, 1),
    "shortlist": (1, "float32", True, 1),
    "shortlist of segments": (3, "float16", True, 1),
    "8 bits": (3, "int8", True, 1 << 30),
    "shortlist in 8 bits": (2, "int8", True, 1),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def searcher(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    segments, dtype, center, least = request.param
    found = build(tmp_path_factory.mktemp("index"), dtype, segments, center=center, least=least)
    index = found.index
    assert isinstance(index, EmbeddedIndex)
    assert len(index._parts) == segments
    assert (index.shortlist is not None) == (center and least == 1)
    return found


def asked(n: int, seed: int) -> NDArray[np.float32]:
    """Queries, of which one in five is zero."""
    rows = clustered(n, seed)
    rows[np.random.default_rng(seed).random(n) < 0.2] = 0
    return rows


@settings(max_examples=40)
@given(
    n=st.integers(1, 9),
    seed=st.integers(2, 99),
    k=st.integers(1, 30),
    rm=st.floats(1, 40),
    query_z=st.integers(1, 50),
    find=st.sampled_from(["image", "text"]),
    colours=st.lists(st.sampled_from(COLOURS), max_size=1),
    modality=st.sampled_from(["image", "text"]),
    threads=st.integers(1, 2),
)
def test_one_call_gives_what_all_steps_give(
    searcher: Searcher, n: int, seed: int, k: int, rm: float, query_z: int, find: Modality,
    colours: list[str], modality: Modality, threads: int,
) -> None:  # fmt: skip
    queries = Embeddings(modality, asked(n, seed))
    filters = [Filter("colour", "=", colour) for colour in colours]
    options: dict[str, Any] = {"k": k, "rm": rm, "find": find, "filters": filters}
    searcher.codec.set_budgets(2, query_z)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays_module, "BLOCK", 4)
        found = searcher.search_arrays(queries, threads=threads, **options)
        patch.setattr(query, "_query", None)
        step_by_step = Searcher(searcher.index)
        step_by_step.codec.set_budgets(2, query_z)
        expected = step_by_step.search_arrays(queries, **options)
    assert searcher._arrays._planned(modality, find, tuple(filters), query_z) is not None
    assert step_by_step._arrays._planned(modality, find, tuple(filters), query_z) is None
    assert found[0].tolist() == expected[0].tolist()
    assert found[1].tolist() == expected[1].tolist()


COMPILED = query._query


def test_queries_that_are_no_numbers_are_refused_as_ever(searcher: Searcher) -> None:
    rows = clustered(2, 3)
    rows[1, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        searcher.search_arrays(Embeddings("image", rows))


def test_damaged_lists_are_told(tmp_path: Path) -> None:
    searcher = build(tmp_path, "float16", 1, center=True)
    postings = searcher.index._parts[0].segment.postings  # type: ignore[attr-defined]
    rows = np.full_like(postings.rows, 60_000)
    object.__setattr__(postings, "rows", rows)
    with pytest.raises(ManifestError, match="a row is none of the segment's"):
        searcher.search_arrays(Embeddings("image", clustered(1, 3)))


def test_more_candidates_than_rows_need_no_more_memory(searcher: Searcher) -> None:
    queries = Embeddings("image", clustered(2, 3))
    expected = searcher.search_arrays(queries, k=3, rm=1000)
    found = searcher.search_arrays(queries, k=3, rm=(2**31 - 1) / 3)
    assert [each.tolist() for each in found] == [each.tolist() for each in expected]


def test_a_score_beyond_32_bits_takes_the_general_path(tmp_path: Path) -> None:
    searcher = build(tmp_path, "float16", 1, center=True)
    postings = searcher.index._parts[0].segment.postings  # type: ignore[attr-defined]
    object.__setattr__(postings, "frequencies", np.full(len(postings.rows), 1 << 30, np.int32))
    queries = Embeddings("image", clustered(3, 3))
    found = searcher.search_arrays(queries, k=5, rm=3)
    hits = searcher.search_vectors(queries, k=5, rm=3)
    assert found[0].tolist() == [[hit.item.id for hit in one] for one in hits]


def test_arrays_that_do_not_fit_each_other_are_refused(searcher: Searcher) -> None:
    code = searcher.codec.query_code("image")
    assert code is not None
    parts = tuple(query._arrays(part, None, coded=False) for part in searcher.index._parts)  # type: ignore[attr-defined]
    arrays = (code.mean, *code.centroids, None)
    for i in range(len(arrays) - 1):
        wrong = [*arrays]
        wrong[i] = np.ascontiguousarray(np.concatenate([arrays[i], arrays[i]]))
        with pytest.raises(ValueError, match=" for "):
            COMPILED.plan(tuple(wrong), 0.1, 63, parts)
    for i in range(7):  # the bytes of ids may be more
        if i != 5:
            short = [*parts[0]]
            short[i] = short[i][:-1]
            with pytest.raises(ValueError, match=" for "):
                COMPILED.plan(arrays, 0.1, 63, (tuple(short),))
    plan = COMPILED.plan(arrays, 0.1, 63, parts)
    out = [np.empty((1, 3), np.int32), np.empty((1, 3), np.int64), np.empty((1, 3), np.float32), np.empty(1, np.int64)]
    rows = np.zeros((1, DIM), np.float32)
    for numbers in ((0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0), (1 << 20, 1, 1, 1), (1, 1 << 20, 1, 1)):
        with pytest.raises(ValueError, match="limits"):
            COMPILED.answer(plan, rows, *out, *numbers)
    with pytest.raises(ValueError, match="another width"):
        COMPILED.answer(plan, rows[:, 1:].copy(), *out, 1, 1, 1, 1)


def answers(searcher: Searcher, **options: Any) -> tuple[list[Any], list[Any]]:
    ids, scores = searcher.search_arrays(Embeddings("image", asked(20, 5)), **options)
    return ids.tolist(), scores.tolist()


def test_a_shortlist_does_not_depend_on_the_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searcher = build(tmp_path, "float16", 3, center=True, least=1)
    monkeypatch.setattr(shortlist.Shortlist, "size", staticmethod(lambda depth, k: k))
    options = {"k": 5, "rm": 30.0}
    before = answers(searcher, **options)
    EmbeddedBackend(tmp_path).compact("some")
    monkeypatch.setattr(shortlist, "LEAST", 1)
    assert answers(searcher.renewed(force=True), **options) == before
    monkeypatch.setattr(shortlist.Shortlist, "size", staticmethod(lambda depth, k: depth))
    assert answers(searcher, **options) != before  # without it, more vectors are read


def test_an_index_without_compact_codes_is_searched_and_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortlist, "LEAST", 1)
    with monkeypatch.context() as patch:  # as boc wrote it before there were such codes
        patch.setattr(CompactCode, "of", lambda *_: None)
        searcher = build(tmp_path, "float16", 1, center=True)
    backend = EmbeddedBackend(tmp_path)
    old = backend.open("some")
    assert old.shortlist is None
    assert not list(tmp_path.rglob("compact*.npy"))
    expected = answers(searcher, k=50, rm=1)
    assert answers(Searcher.open("some", f"file:{tmp_path}"), k=50, rm=1) == expected
    backend.compact("some")
    assert len(list(tmp_path.rglob("compact*.npy"))) == 2
    completed = backend.open("some")
    assert completed.shortlist is not None
    assert answers(Searcher(completed), k=50, rm=1) == expected
    assert completed.damaged() == []
    name = completed._parts[0].name
    backend.compact("some")
    assert backend.open("some")._parts[0].name == name  # nothing was left to do


def test_hits_are_those_of_the_shortlist(tmp_path: Path) -> None:
    searcher = build(tmp_path, "float16", 2, center=True, least=1)
    queries = Embeddings("text", asked(9, 7))
    ids, scores = searcher.search_arrays(queries, k=2, rm=30)
    hits = searcher.search_vectors(queries, k=2, rm=30)
    assert ids.tolist() == [[*(hit.item.id for hit in one), *[None] * (2 - len(one))] for one in hits]
    assert scores.tolist() == [[*(hit.score for hit in one), *[-np.inf] * (2 - len(one))] for one in hits]


@given(depth=st.integers(1, 5000), k=st.integers(1, 300))
def test_a_twentieth_of_the_candidates_and_five_per_hit_are_read(depth: int, k: int) -> None:
    size = shortlist.Shortlist.size(depth, k)
    assert size <= depth
    assert size == depth or (size >= 5 * k and depth / 20 <= size < max(5 * k, depth / 20) + 1)
