"""Scores of real servers are integer dot products, however an index is stored, spread, cut up and
edited."""

import re
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from boc import plugins
from boc.errors import BackendError, BocWarning
from boc.plugins import Engine
from boc.types import Embeddings, Filter, Item, Rescore, Rows, SearchRequest
from boc.vectors import unit_rows
from indexing.server.backend import ServerBackend
from indexing.server.engine import ServerEngine
from indexing.server.force_merge import one_per_shard
from indexing.server.requests import WINDOW, dumps
from indexing.server.term_fields import EXACT
from indexing.server.transport import Json, RefusedError, Transport
from tests.oracles import new_manifest, picture, random_terms, sentence
from tests.servers.fixtures import SHARED, address, kinds, with_fields

N = 200
QUERIES = 50
TERMS = 100
ITEMS = [picture(f"{i:03d}.jpg") if i % 3 else sentence(f"{i:03d}#0") for i in range(N)]
VECTORS = unit_rows(np.random.default_rng(9).standard_normal((N, 3))).astype(np.float32)

Connect = Callable[..., ServerBackend]


ON_TWO = pytest.mark.parametrize("server", kinds("opensearch-3", "elasticsearch-9"), indirect=True)
"""Laws about our own code, which need one server of each engine."""


@pytest.fixture
def connect(server: Any) -> Connect:
    """Connects to the server with options of the address."""

    def connected(*, hosts: str = "{}", **options: object) -> ServerBackend:
        url = server.url.removeprefix("http://")
        found = plugins.backend(address(server, **options).replace(url, hosts.format(url)))
        assert isinstance(found, ServerBackend)
        return found

    return connected


def build(
    backend: ServerBackend,
    name: str,
    terms: sparse.csr_array,
    *,
    first: int = N,
    tagged: bool = False,
) -> ServerEngine:
    """An index of the ``first`` rows of ``terms``."""
    manifest = new_manifest(terms.shape[1], 3)
    items = ITEMS
    if tagged:
        manifest = replace(manifest, fields={"tag": "keyword"})
        items = [
            replace(item, fields={"tag": "even" if i % 2 == 0 else "odd"})
            for i, item in enumerate(ITEMS)
        ]
    first = min(first, terms.shape[0])
    with backend.create(name, manifest, {}) as writer:
        writer.add(Rows(items[:first], terms[:first], VECTORS[:first]))
        writer.commit()
    return backend.open(name)


def scores(
    index: Engine,
    items: list[Item],
    queries: sparse.csr_array,
    **options: Any,
) -> NDArray[np.float64]:
    """Of all pairs (queries, items), 0 for those that are not found."""
    place = {item.id: row for row, item in enumerate(items)}
    found = np.zeros((queries.shape[0], len(items)))
    for i, hits in enumerate(index.search(SearchRequest(queries, len(items) + 1, **options))):
        for hit in hits:
            found[i, place[hit.item.id]] = hit.score
    return found


def dots(queries: sparse.csr_array, terms: sparse.csr_array) -> NDArray[np.int64]:
    """By whole numbers."""
    return queries.toarray().astype(np.int64) @ terms.toarray().astype(np.int64).T


def drawn(seed: int, largest: int = 512) -> tuple[sparse.csr_array, sparse.csr_array]:
    """Documents and queries whose frequencies reach ``largest``."""
    rng = np.random.default_rng(seed)
    terms = random_terms(rng, (N, TERMS), largest, 0.2)
    terms.data[::7] = largest
    terms.data[1::7] = largest - 1
    return terms, random_terms(rng, (QUERIES, TERMS), largest, 0.3)


@with_fields(*SHARED)
def test_scores_are_exact(connect: Connect, name: str, field: str) -> None:
    terms, queries = drawn(0)
    expected = dots(queries, terms)
    assert expected.size == 10_000
    assert 100_000 < expected.max() < EXACT
    index = build(connect(field=field), name, terms)
    assert index.generation.state.field == field
    assert np.count_nonzero(scores(index, ITEMS, queries) != expected) == 0
    pictures = [item for item in ITEMS if item.modality == "image"]
    rows = [i for i, item in enumerate(ITEMS) if item.modality == "image"]
    assert np.array_equal(scores(index, pictures, queries, modality="image"), expected[:, rows])
    terms, _ = drawn(0, 2**20)  # several digits
    queries = sparse.csr_array(
        queries.toarray() % 5 * (np.cumsum(queries.toarray() > 0, axis=1) <= 3),
    )
    expected = dots(queries, terms)
    assert 2**22 < expected.max() < EXACT
    assert np.array_equal(
        scores(build(connect(field=field), f"{name}-2", terms), ITEMS, queries),
        expected,
    )


class NoScripts:
    """A transport to a server that refuses scripts. The first ``threads`` requests are refused at
    the same time."""

    def __init__(self, transport: Transport, threads: int) -> None:
        self._transport = transport
        self._together = Barrier(threads, timeout=300)
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def search(self, path: str, body: Any, **params: Any) -> Json:
        if b"script_score" in (body if isinstance(body, bytes) else dumps(body)):
            self.refused += 1
            self._together.wait()
            raise RefusedError(
                "refused",
                400,
                "illegal_argument_exception",
                "cannot execute [inline] scripts",
            )
        return self._transport.search(path, body, **params)


@with_fields("opensearch-3", "elasticsearch-9")
def test_rerank_with_and_without_scripts(connect: Connect, name: str, field: str) -> None:
    """Of all that share a term; what is refused is not asked again, by no thread."""
    rng = np.random.default_rng(5)
    terms = random_terms(rng, (N, TERMS), 64, 0.02)
    queries = random_terms(rng, (8, TERMS), 64, 0.1)
    vectors = unit_rows(rng.standard_normal((8, 3))).astype(np.float32)
    backend = connect(field=field)
    index = build(backend, name, terms)
    refusing = NoScripts(backend.transport, 4)
    without = ServerEngine(refusing, index.generation)
    has_term = dots(queries, terms) > 0
    products = vectors @ VECTORS.T
    request = SearchRequest(
        queries,
        WINDOW + 1,
        rescore=Rescore("dot", Embeddings("text", vectors), 10),
    )
    with ThreadPoolExecutor(4) as pool:
        results = [
            index.search(request),
            *pool.map(without.search, [request] * 4),
            without.search(request),
        ]
    for result in results:
        for i, hits in enumerate(result):
            rows = np.flatnonzero(has_term[i])
            best = rows[np.argsort(-products[i, rows])][:10]
            assert [hit.item for hit in hits] == [ITEMS[row] for row in best]
            assert np.allclose([hit.score for hit in hits], products[i, best], atol=1e-2)
    assert refusing.refused == 4


@with_fields(*SHARED)
def test_segments_and_deletes_keep_scores(connect: Connect, name: str, field: str) -> None:
    shards = 3
    terms, queries = drawn(13)
    expected = dots(queries, terms)
    backend = connect(field=field, shards=shards)
    build(backend, name, terms, first=40)
    for start in range(40, N, 40):
        part = slice(start, start + 40)
        with backend.edit(name) as editor:
            editor.put(Rows(ITEMS[part], terms[part], VECTORS[part]))
            editor.commit("ab" * 32)
    index = backend.open(name)
    assert segments(backend, index) >= 5 * shards
    assert np.array_equal(scores(index, ITEMS, queries), expected)
    with backend.edit(name) as editor:
        gone = [item.id for item in ITEMS[::3]]
        assert editor.delete(gone) == len(gone)
        editor.commit("ab" * 32)
    kept = [i for i in range(N) if i % 3]
    left = [ITEMS[i] for i in kept]
    index = backend.open(name)
    assert np.array_equal(scores(index, left, queries), expected[:, kept])
    backend.transport.request(
        "POST",
        f"/{index.generation.physical}/_forcemerge",
        max_num_segments=1,
    )
    backend.transport.request("POST", f"/{index.generation.physical}/_refresh")
    assert segments(backend, index) <= shards
    assert np.array_equal(scores(index, left, queries), expected[:, kept])


def segments(backend: ServerBackend, index: ServerEngine) -> int:
    """That are searched, on all shards."""
    found = backend.transport.request("GET", f"/{index.generation.physical}/_segments")["indices"]
    shards = [
        shard for each in found.values() for copies in each["shards"].values() for shard in copies
    ]
    return sum(segment["search"] for shard in shards for segment in shard["segments"].values())


@ON_TWO
def test_each_shard_gets_a_dummy(connect: Connect, name: str) -> None:
    backend = connect(shards=4)
    transport = backend.transport
    physical = build(backend, name, drawn(3)[0]).generation.physical
    ids = one_per_shard(transport, physical)
    for id in ids:
        transport.request("PUT", f"/{physical}/_doc/{id}", {})
    transport.request("POST", f"/{physical}/_refresh")
    body = {"query": {"ids": {"values": ids}}, "track_total_hits": True}
    found = [
        transport.request("POST", f"/{physical}/_search", body, preference=f"_shards:{shard}")[
            "hits"
        ]["hits"]
        for shard in range(4)
    ]
    assert [len(hits) for hits in found] == [1] * 4


@with_fields("opensearch-3", "elasticsearch-9")
def test_scores_above_the_limit_are_refused(connect: Connect, name: str, field: str) -> None:
    terms = sparse.csr_array(np.array([[2**20, 2**20 - 1, 1], [1, 1, 1]], np.int32))
    index = build(connect(field=field), name, terms)
    below = sparse.csr_array(np.array([[15, 0, 7], [0, 16, 15]], np.int32))
    assert np.array_equal(scores(index, ITEMS[:2], below), dots(below, terms))
    for weights in ([16, 0, 0], [0, 16, 16], [16, 16, 16]):
        with pytest.raises(BackendError, match=r"2\^24"):
            index.search(SearchRequest(sparse.csr_array(np.array([weights], np.int32)), 1))


@ON_TWO
@pytest.mark.parametrize("hosts", ["127.0.0.1:9,{0}", "{0},127.0.0.1:9"])
def test_dead_host(connect: Connect, name: str, hosts: str) -> None:
    terms, queries = drawn(3)
    index = build(connect(hosts=hosts), name, terms)
    for _ in range(3):
        assert np.array_equal(scores(index, ITEMS, queries), dots(queries, terms))


@with_fields("opensearch-3", "elasticsearch-9")
def test_long_queries_are_cut_with_a_warning(connect: Connect, name: str, field: str) -> None:
    n_terms = 20_000
    rng = np.random.default_rng(0)
    terms = random_terms(rng, (N, n_terms), 15, 0.005)
    backend = connect(field=field)
    index = build(backend, name, terms, tagged=True)
    weights = rng.permutation(n_terms) % 511 + 1
    query = sparse.csr_array(weights[None].astype(np.int32))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BocWarning)
        found = scores(index, ITEMS, query, filters=[Filter("tag", "=", "even")])
    base = index.generation.strategy.base
    digits = index.generation.strategy.digits(15)
    clauses = [(int(weights[j]) * base**i, j, i) for j in range(n_terms) for i in range(digits)]
    kept = len(clauses)
    if caught:
        told = f"a query of {len(clauses)} clauses was cut to the"
        match = re.match(rf"{told} (\d+) of largest weight", str(caught[0].message))
        assert match is not None
        kept = int(match[1])
    assert kept > 950
    if backend.transport.engine == "opensearch":
        assert kept < 1024
    cut = np.zeros((digits, 1, n_terms), np.int32)
    for weight, j, i in sorted(clauses, key=lambda clause: -clause[0])[:kept]:
        cut[i, 0, j] = weight
    expected = np.zeros_like(found)
    for i in range(digits):
        digit = sparse.csr_array(
            (terms.data // base**i % base, terms.indices, terms.indptr),
            shape=terms.shape,
        )
        expected += dots(sparse.csr_array(cut[i]), digit)
    expected *= np.arange(N) % 2 == 0
    assert np.array_equal(found, expected)
    assert expected.any()
