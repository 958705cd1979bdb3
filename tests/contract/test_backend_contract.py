"""What every back end must do. A new one is one more entry of ``PLACES``."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracles import TEXT, assert_canonical, new_manifest, picture, random_terms, same_matrix, sentence, term_matrices
from scipy import sparse

from boc import registry
from boc.errors import BackendError
from boc.rerank import CONCEPT_DTYPES, store
from boc.types import MODALITIES, Backend, Hit, Index, Item, Modality, Ragged, StoredConcepts

PLACES: dict[str, Callable[[Path], str]] = {"embedded": lambda folder: f"file:{folder / 'indexes'}"}
"""Name of a back end -> the URL of an empty or shared place of it; skips where its server is not to be had."""

ARRAYS = {"0.means_": np.arange(6, dtype=np.float32).reshape(2, 3), "0.labels_": np.array(["image", "text"])}


@pytest.fixture(params=PLACES.values(), ids=PLACES.keys())
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return registry.backend(request.param(tmp_path))


@pytest.fixture
def name() -> str:
    """A name no other test uses: servers are shared."""
    return f"boc-test-{uuid.uuid4().hex[:12]}"


def vectors_for(n: int, dim: int = 3, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)


def build(
    backend: Backend,
    name: str,
    items: Sequence[Item],
    terms: sparse.csr_array,
    vectors: NDArray[np.float32] | None = None,
    *,
    batch: int = 7,
    dtype: str = "float32",
    concepts: Sequence[NDArray[np.float32]] | None = None,
    concept_dtype: str | None = None,
) -> Index:
    vectors = vectors_for(len(items)) if vectors is None else vectors
    manifest = new_manifest(terms.shape[1], vectors.shape[1], ARRAYS, dtype=dtype, concepts=concept_dtype)
    with backend.create(name, manifest, ARRAYS) as writer:
        for i in range(0, len(items), batch):
            part = slice(i, i + batch)
            sets = None if concepts is None or concept_dtype is None else stored(concepts[part], concept_dtype)
            writer.add(items[part], terms[part], vectors[part], sets)
        writer.commit()
    return backend.open(name)


def stored(sets: Sequence[NDArray[np.float32]], dtype: str) -> StoredConcepts:
    return store(Ragged.from_sets(sets, 5), dtype)


def mixed_items(n: int) -> list[Item]:
    """n items of both modalities whose order is not that of their ids."""
    keys = np.random.default_rng(n).permutation(n)
    return [picture(f"{key:04d}.jpg") if key % 3 else sentence(f"{key:04d}#0", f"sentence {key}") for key in keys]


def slow_search(
    items: Sequence[Item], terms: sparse.csr_array, query: list[int], k: int, modality: Modality | None = None
) -> list[tuple[str, int]]:
    """(id, score) by Python's integers over dense rows."""
    scored = []
    for item, row in zip(items, terms.toarray().tolist(), strict=True):
        score = sum(a * b for a, b in zip(row, query, strict=True))
        if score > 0 and modality in (None, item.modality):
            scored.append((item.id, score))
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))[:k]


def plain(hits: list[Hit]) -> list[tuple[str, float]]:
    return [(hit.item.id, hit.score) for hit in hits]


@pytest.mark.parametrize("largest", [1, 15, 1000, 2**20])
def test_scores_are_integer_dot_products_of_a_thousand_pairs(backend: Backend, name: str, largest: int) -> None:
    rng = np.random.default_rng(largest)
    items = mixed_items(50)
    terms = random_terms(rng, (50, 30), largest, 0.3)
    queries = random_terms(rng, (20, 30), largest, 0.3)
    index = build(backend, name, items, terms)
    found = index.search(queries, 1000)
    assert len(found) == 20
    for hits, query in zip(found, queries.toarray().tolist(), strict=True):
        assert plain(hits) == slow_search(items, terms, query, 50)
    assert sum(map(len, found)) > 500


def test_its_size_is_told_by_parts(backend: Backend, name: str) -> None:
    terms = random_terms(np.random.default_rng(0), (40, 30), 9, 0.5)
    sizes = build(backend, name, mixed_items(40), terms).sizes()
    assert set(sizes) == {"postings", "vectors", "concepts", "other"}
    assert sizes["postings"] >= terms.nnz
    assert sizes["vectors"] > 0
    assert sizes["other"] > 0
    assert sizes["concepts"] == 0


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), n=st.integers(1, 9), k=st.integers(1, 12), modality=st.sampled_from([None, *MODALITIES]))
def test_search_equals_the_slow_search(
    backend: Backend, data: st.DataObject, n: int, k: int, modality: Modality | None
) -> None:
    terms, queries = data.draw(term_matrices((n, 4), 2**20)), data.draw(term_matrices((3, 4), 2**20))
    keys = data.draw(st.lists(TEXT.filter(bool), min_size=n, max_size=n, unique=True))
    kinds = data.draw(st.lists(st.sampled_from(MODALITIES), min_size=n, max_size=n))
    items = [Item(key, kind, key[::-1], key[:1]) for key, kind in zip(keys, kinds, strict=True)]
    index = build(backend, f"boc-test-{uuid.uuid4().hex[:12]}", items, terms, batch=4)
    for hits, query in zip(index.search(queries, k, modality), queries.toarray().tolist(), strict=True):
        assert plain(hits) == slow_search(items, terms, query, k, modality)
        assert all(hit.item in items for hit in hits)


@pytest.mark.parametrize("modality", [None, *MODALITIES])
@pytest.mark.parametrize("k", [1, 3, 1000])
def test_ties_are_ordered_by_id_and_cut_at_k(backend: Backend, name: str, k: int, modality: Modality | None) -> None:
    items = mixed_items(40)
    terms = random_terms(np.random.default_rng(0), (40, 3), 1, 0.5)
    index = build(backend, name, items, terms)
    for query in ([1, 0, 0], [1, 1, 1], [5, 0, 5]):
        hits = index.search(sparse.csr_array(np.array([query], np.int32)), k, modality)[0]
        assert plain(hits) == slow_search(items, terms, query, k, modality)
        assert 0 < len(hits) <= k


def test_what_shares_no_term_is_not_found_and_an_empty_query_finds_nothing(backend: Backend, name: str) -> None:
    items = [picture("a"), picture("b"), picture("bare")]
    index = build(backend, name, items, sparse.csr_array(np.array([[1, 0, 2], [0, 3, 0], [0, 0, 0]], np.int32)))
    queries = sparse.csr_array(np.array([[0, 0, 0], [0, 0, 9], [0, 2, 0]], np.int32))
    assert [plain(hits) for hits in index.search(queries, 5)] == [[], [("a", 18)], [("b", 6)]]
    assert index.search(queries[:0], 5) == []
    assert index.search(queries, 5, "text") == [[], [], []]


def test_items_come_back_whole_and_in_order_of_their_ids(backend: Backend, name: str) -> None:
    keys = ["b", "a b/ç.jpg", "日本語", "a", "\U0001f600", "A", "é", "e\u0301", "a\n\t\"'<&", "z" * 300]
    contents = ["", "ein \u201eSatz\u201c", "\U0001f408 " * 50, "a\nb", "/x y/ü.jpg", "", "", "\u0000", "|", "\\"]
    items = [
        Item(key, MODALITIES[i % 2], content, key if i % 3 else "")
        for i, (key, content) in enumerate(zip(keys, contents, strict=True))
    ]
    terms = random_terms(np.random.default_rng(0), (10, 5), 9, 0.6)
    index = build(backend, name, items, terms, batch=3)
    assert list(index.items()) == sorted(items, key=lambda item: item.id)
    assert index.manifest.items == {"image": 5, "text": 5}
    assert index.manifest.postings == terms.nnz
    hits = index.search(sparse.csr_array(np.ones((1, 5), np.int32)), 10)[0]
    assert {hit.item for hit in hits} <= set(items)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_vectors_come_in_the_order_asked(backend: Backend, name: str, dtype: str) -> None:
    items, vectors = mixed_items(20), vectors_for(20, 5)
    index = build(backend, name, items, random_terms(np.random.default_rng(0), (20, 4), 3, 0.5), vectors, dtype=dtype)
    for order in ([3, 0, 19], [7, 7, 2], [], list(range(20))):
        found = index.vectors([items[i].id for i in order])
        assert found.dtype == dtype
        assert np.array_equal(found.reshape(-1, 5), vectors[order].astype(dtype))


@pytest.mark.parametrize("dtype", CONCEPT_DTYPES)
@pytest.mark.parametrize("most", [0, 6])
def test_concept_sets_come_in_the_order_asked(backend: Backend, name: str, dtype: str, most: int) -> None:
    rng = np.random.default_rng(0)
    sets = [vectors_for(int(m), 5, seed) for seed, m in enumerate(rng.integers(0, most, 20, endpoint=True))]
    items, terms = mixed_items(20), random_terms(rng, (20, 4), 3, 0.5)
    index = build(backend, name, items, terms, concepts=sets, concept_dtype=dtype)
    assert index.manifest.concept_dtype == dtype
    for order in ([3, 0, 19], [7, 7, 2], [], list(range(20))):
        found, wanted = index.concepts([items[i].id for i in order]), stored([sets[i] for i in order], dtype)
        assert found.values.dtype == dtype
        assert found.offsets.tolist() == wanted.offsets.tolist()
        assert np.array_equal(found.values, wanted.values)
        assert (found.scales is None) == (wanted.scales is None)
        if found.scales is not None:
            assert np.array_equal(found.scales, wanted.scales)
    with pytest.raises(KeyError, match="'unknown'"):
        index.concepts([items[0].id, "unknown"])


def test_an_index_without_concept_sets_says_how_to_have_them(backend: Backend, name: str) -> None:
    index = build(backend, name, mixed_items(3), random_terms(np.random.default_rng(0), (3, 3), 3, 1))
    for ids in ([], [next(index.items()).id]):
        with pytest.raises(BackendError, match=r"holds no concept sets.*boc index --concepts"):
            index.concepts(ids)


@pytest.mark.parametrize(("wanted", "given"), [(None, "float16"), ("float16", None), ("int8", "float16")])
def test_concept_sets_of_another_type_are_refused(
    backend: Backend, name: str, wanted: str | None, given: str | None
) -> None:
    sets = None if given is None else stored([np.ones((2, 5), np.float32)], given)
    terms = random_terms(np.random.default_rng(0), (1, 3), 3, 1)
    with (
        backend.create(name, new_manifest(3, 3, ARRAYS, concepts=wanted), ARRAYS) as writer,
        pytest.raises(BackendError, match=f"type {given}.*type {wanted}"),
    ):
        writer.add([picture("a")], terms, vectors_for(1), sets)
    assert not backend.exists(name)


def test_concept_sets_that_do_not_fit_are_refused_and_those_before_can_be_published(
    backend: Backend, name: str
) -> None:
    terms = random_terms(np.random.default_rng(0), (2, 3), 3, 1)
    with backend.create(name, new_manifest(3, 3, ARRAYS, concepts="float16"), ARRAYS) as writer:
        one = np.ones((2, 5), np.float32)
        writer.add([picture("a")], terms[:1], vectors_for(1), stored([one], "float16"))
        with pytest.raises(BackendError, match="2 items, 1 concept sets"):
            writer.add([picture("b"), picture("c")], terms, vectors_for(2), stored([one], "float16"))
        wider = store(Ragged.from_sets([np.ones((2, 6), np.float32)], 6), "float16")
        with pytest.raises(BackendError, match="6 components after some of 5"):
            writer.add([picture("b")], terms[:1], vectors_for(1), wider)
        writer.commit()
    assert len(backend.open(name).concepts(["a"])) == 1


def test_terms_are_what_was_added(backend: Backend, name: str) -> None:
    items = mixed_items(20)
    terms = random_terms(np.random.default_rng(1), (20, 6), 300, 0.3)
    index = build(backend, name, items, terms)
    for order in (list(range(20)), [4, 4, 1], [9]):
        found = index.terms([items[i].id for i in order])
        assert_canonical(found, (len(order), 6))
        assert same_matrix(found, terms[order])


@pytest.mark.parametrize("unknown", ["", "0000", "0000.jpgx", "zzzz", "~"])
def test_an_unknown_id_is_a_key_error(backend: Backend, name: str, unknown: str) -> None:
    index = build(backend, name, mixed_items(5), random_terms(np.random.default_rng(0), (5, 3), 3, 1))
    known = next(index.items()).id
    for ask in (index.vectors, index.terms):
        with pytest.raises(KeyError, match=repr(unknown)):
            ask([known, unknown])


@pytest.mark.parametrize("batch", [1, 10])
def test_a_repeated_id_is_refused_by_name_and_nothing_is_published(backend: Backend, name: str, batch: int) -> None:
    items = [picture("a"), picture("twin"), sentence("b"), sentence("twin")]
    with pytest.raises(BackendError, match="'twin'"):
        build(backend, name, items, random_terms(np.random.default_rng(0), (4, 3), 3, 1), batch=batch)
    assert not backend.exists(name)


def test_a_batch_with_a_repeated_id_is_refused_at_once_and_the_others_can_be_published(
    backend: Backend, name: str
) -> None:
    terms = random_terms(np.random.default_rng(0), (2, 3), 3, 1)
    with backend.create(name, new_manifest(3, 3, ARRAYS), ARRAYS) as writer:
        writer.add([picture("a"), picture("b")], terms, vectors_for(2))
        for keys in (["c", "a"], ["d", "d"]):
            with pytest.raises(BackendError, match=f"'{keys[1]}'"):
                writer.add([sentence(key) for key in keys], terms, vectors_for(2))
        writer.add([sentence("c"), sentence("d")], terms, vectors_for(2))
        writer.commit()
    assert [item.id for item in backend.open(name).items()] == ["a", "b", "c", "d"]


def test_the_code_is_stored_with_the_index(backend: Backend, name: str) -> None:
    index = build(backend, name, mixed_items(3), random_terms(np.random.default_rng(0), (3, 3), 3, 1))
    found = index.arrays()
    assert set(found) == set(ARRAYS)
    for key, array in ARRAYS.items():
        assert same_matrix(found[key], array)
    asked = new_manifest(3, 3, ARRAYS)
    assert index.manifest.same_contents(asked)
    assert index.manifest.identity == asked.identity


def everything(index: Index, queries: sparse.csr_array) -> list[object]:
    items = list(index.items())
    keys = [item.id for item in items]
    arrays = {key: array.tolist() for key, array in index.arrays().items()}
    answers = [index.search(queries, 50, modality) for modality in (None, *MODALITIES)]
    concepts = index.concepts(keys).values.tolist() if index.manifest.concept_dtype else None
    rows = [index.vectors(keys).tolist(), index.terms(keys).toarray().tolist(), concepts]
    return [items, answers, rows, arrays, index.manifest]


@pytest.mark.parametrize("dtype", [None, *CONCEPT_DTYPES])
def test_replacing_is_atomic_and_an_opened_index_does_not_change(
    backend: Backend, name: str, dtype: str | None
) -> None:
    rng = np.random.default_rng(0)
    queries = random_terms(rng, (4, 6), 9, 0.7)
    sets = [vectors_for(i % 4, 5, i) for i in range(30)]
    terms = random_terms(rng, (30, 6), 9, 0.5)
    old = build(backend, name, mixed_items(30), terms, concepts=sets, concept_dtype=dtype)
    before = everything(old, queries)
    fresh, terms = [picture("new"), sentence("also new")], random_terms(rng, (2, 6), 9, 1)
    asleep = backend.open(name)  # not touched before the replacement
    with backend.create(name, new_manifest(6, 3, ARRAYS), ARRAYS) as writer:
        writer.add(fresh, terms, vectors_for(2))
        assert everything(backend.open(name), queries) == before
        writer.commit()
    assert everything(old, queries) == before
    assert everything(asleep, queries) == before
    assert {item.id for item in backend.open(name).items()} == {"new", "also new"}


class GivingUpError(Exception):
    """Raised by a test inside a writer."""


@pytest.mark.parametrize("ending", ["leaving", "failing"])
def test_without_commit_nothing_is_visible(backend: Backend, name: str, ending: str) -> None:
    terms = random_terms(np.random.default_rng(0), (5, 3), 3, 1)

    def give_up() -> None:
        with backend.create(name, new_manifest(3, 3, ARRAYS), ARRAYS) as writer:
            writer.add(mixed_items(5), terms, vectors_for(5))
            assert not backend.exists(name)
            if ending == "failing":
                raise GivingUpError

    def attempt() -> None:
        if ending == "failing":
            with pytest.raises(GivingUpError):
                give_up()
        else:
            give_up()

    attempt()
    assert not backend.exists(name)
    with pytest.raises(BackendError):
        backend.open(name)
    kept = build(backend, name, [picture("kept")], terms[:1])
    attempt_over_an_existing_one = backend.create(name, new_manifest(3, 3, ARRAYS), ARRAYS)
    with attempt_over_an_existing_one as writer:
        writer.add(mixed_items(5), terms, vectors_for(5))
    assert [item.id for item in backend.open(name).items()] == [item.id for item in kept.items()] == ["kept"]


def test_queries_of_another_number_of_terms_are_refused_with_both_numbers(backend: Backend, name: str) -> None:
    index = build(backend, name, mixed_items(3), random_terms(np.random.default_rng(0), (3, 3), 3, 1))
    for width in (2, 4):
        with pytest.raises(BackendError, match=f"queries have {width} terms, the index has 3"):
            index.search(sparse.csr_array(np.ones((1, width), np.int32)), 5)


@pytest.mark.parametrize("k", [0, -1])
def test_k_below_one_is_refused(backend: Backend, name: str, k: int) -> None:
    index = build(backend, name, mixed_items(3), random_terms(np.random.default_rng(0), (3, 3), 3, 1))
    with pytest.raises(BackendError, match=f"k must be at least 1, got {k}"):
        index.search(sparse.csr_array(np.ones((1, 3), np.int32)), k)


@pytest.mark.parametrize(("rows", "width", "dim"), [(1, 3, 3), (2, 4, 3), (2, 3, 4), (2, 2, 3), (2, 3, 6)])
def test_rows_that_do_not_fit_are_refused(backend: Backend, name: str, rows: int, width: int, dim: int) -> None:
    terms = random_terms(np.random.default_rng(0), (2, width), 3, 1)
    with backend.create(name, new_manifest(3, 3, ARRAYS), ARRAYS) as writer, pytest.raises(BackendError, match=r"\d"):
        writer.add([picture("a"), picture("b")][:rows], terms, vectors_for(2, dim))
    assert not backend.exists(name)


def test_an_index_of_nothing_is_refused(backend: Backend, name: str) -> None:
    with backend.create(name, new_manifest(3, 3, ARRAYS), ARRAYS) as writer, pytest.raises(BackendError):
        writer.commit()
    assert not backend.exists(name)


def test_the_error_for_an_unknown_index_names_those_that_are_there(backend: Backend, name: str) -> None:
    terms = random_terms(np.random.default_rng(0), (2, 3), 3, 1)
    names = [f"{name}-{word}" for word in ("cats", "dogs")]
    for known in names:
        build(backend, known, mixed_items(2), terms)
    with pytest.raises(BackendError) as caught:
        backend.open(f"{name}-birds")
    assert all(word in str(caught.value) for word in [*names, f"{name}-birds"])
    assert not backend.exists(f"{name}-birds")
    assert all(backend.exists(known) for known in names)
