"""Real servers re-rank by the vectors that they store, in every format, with and without a search of their own."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boc import plugins
from boc.errors import BackendError
from boc.types import Embeddings, Filter, Rescore, SearchRequest
from boc.vectors import unit_rows
from indexing.server.backend import ServerBackend
from indexing.server.index import ServerIndex
from indexing.server.requests import WINDOW
from indexing.server.transport import Json, RefusedError, Transport
from tests.helpers import boc
from tests.oracles import new_manifest, picture, random_terms
from tests.servers.fixtures import kinds

SCHEMES = {"elasticsearch": "elastic", "opensearch": "opensearch"}
N, DIM, TERMS, K = 200, 24, 100, 10
RNG = np.random.default_rng(9)
ITEMS = [replace(picture(f"{i:03d}.jpg"), fields={"tag": "even" if i % 2 == 0 else "odd"}) for i in range(N)]
VECTORS = unit_rows(RNG.standard_normal((N, DIM))).astype(np.float16).astype(np.float32)
QUERIES = (1.5 * unit_rows(RNG.standard_normal((8, DIM)))).astype(np.float32)
OFF = {"binary": 0.0, "float": 0.0, "bfloat16": 2.0**-8, "byte": 2.0**-7}
"""Format -> how much a component of a stored vector may be off, in parts of the largest one."""
FORMATS = {
    "elasticsearch-8": ("binary", "byte"),
    "elasticsearch-9": ("binary", "float", "bfloat16", "byte"),
    "opensearch-3-knn": ("binary", "byte"),
}
CASES = [
    pytest.param(kind, vectors, shards, id=f"{kind}-{vectors}-{shards}", marks=pytest.mark.servers)
    for kind, each in FORMATS.items()
    for vectors in each
    for shards in (1, 3)
]


def connected(server: Any, **options: object) -> ServerBackend:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    found = plugins.backend(f"{SCHEMES[server.kind.engine]}+{server.url}?{query}")
    assert isinstance(found, ServerBackend)
    return found


@pytest.fixture
def name(server: Any) -> Iterator[str]:
    found = f"boc-test-{uuid.uuid4().hex[:12]}"
    yield found
    backend = connected(server)
    if backend.exists(found):
        backend.remove(found)


def build(backend: ServerBackend, name: str) -> ServerIndex:
    manifest = replace(new_manifest(TERMS, DIM), vector_dtype="float16", fields={"tag": "keyword"})
    with backend.create(name, manifest, {}) as writer:
        writer.add(ITEMS, random_terms(np.random.default_rng(0), (N, TERMS), 64, 0.05), VECTORS)
        writer.commit()
    return backend.open(name)


def products(index: ServerIndex) -> NDArray[np.float32]:
    """Of all queries as they are sent, and all vectors as they are stored."""
    stored = index.vectors([item.id for item in ITEMS]).astype(np.float32)
    asked = np.array([index.generation.vectors.asked(query) for query in QUERIES], np.float32)
    return np.linalg.norm(QUERIES, axis=1, keepdims=True) * unit_rows(asked) @ stored.T


@pytest.mark.parametrize(("server", "vectors", "shards"), CASES, indirect=["server"])
def test_the_best_by_the_stored_vectors_are_found(server: Any, name: str, vectors: str, shards: int) -> None:
    index = build(connected(server, vectors=vectors, shards=shards, replicas=0), name)
    rows = {item.id: i for i, item in enumerate(ITEMS)}
    stored = index.vectors(list(rows))
    assert stored.dtype == np.float16
    largest = np.abs(VECTORS).max(axis=1, keepdims=True)
    assert (np.abs(stored.astype(np.float32) - VECTORS) <= OFF[vectors] * largest).all()
    assert index.exact_vectors == (OFF[vectors] == 0)
    assert index.sizes()["vectors"] >= N * DIM

    queries = random_terms(np.random.default_rng(1), (len(QUERIES), TERMS), 64, 0.3)
    terms = index.terms(list(rows)).toarray()
    shared = queries.toarray() @ terms.T > 0
    wanted = products(index)
    older = ServerIndex(
        index._transport,
        replace(index.generation, state=replace(index.generation.state, searched=False, packed=False)),
    )
    odd = np.arange(N) % 2 == 1
    for found, filters in ((index, ()), (older, ()), (index, (Filter("tag", "=", "odd"),))):
        rescore = Rescore("dot", Embeddings("text", QUERIES), K)
        told = found.search(SearchRequest(queries, WINDOW + 1, filters=filters, rescore=rescore))
        for i, hits in enumerate(told):
            there = np.flatnonzero(shared[i] & odd if filters else shared[i])
            got = [rows[hit.item.id] for hit in hits]
            assert [hit.item for hit in hits] == [ITEMS[row] for row in got]
            assert len(set(got)) == min(K, len(there))
            assert set(got) <= set(there.tolist())
            assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
            assert np.allclose([hit.score for hit in hits], wanted[i, got], atol=2e-3)
            best = np.sort(wanted[i, there])[::-1][:K]
            assert np.allclose(wanted[i, got], best, atol=2e-3)
    assert index._way.base64 == (vectors in ("float", "bfloat16"))  # it was not refused
    few = index.search(SearchRequest(queries, 3 * K, rescore=Rescore("dot", Embeddings("text", QUERIES), K)))
    for i, hits in enumerate(few):
        assert np.allclose([hit.score for hit in hits], wanted[i, [rows[hit.item.id] for hit in hits]], atol=2e-3)
    request = index.request(
        SearchRequest(queries[:1], WINDOW + 1, rescore=Rescore("dot", Embeddings("text", QUERIES[:1]), K))
    )
    answer = index._transport.search(f"/{name}/_search", request.body)
    assert [hit["_source"]["id"] for hit in answer["hits"]["hits"]][:K] == [
        hit.item.id for hit in told_of(index, queries)
    ]


class Refusing:
    """A transport to a server that refuses scripts, and queries in base64. The first ``threads`` requests are refused
    at the same time."""

    def __init__(self, transport: Transport, threads: int) -> None:
        self._transport = transport
        self._together = Barrier(threads, timeout=60)
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def search(self, path: str, body: Any, **params: Any) -> Json:
        query = body.get("query", {})
        if "script_score" in query or isinstance(query.get("knn", {}).get("query_vector"), str):
            self.refused += 1
            self._together.wait()
            reason = "cannot execute [inline] scripts" if "script_score" in query else "cannot parse [query_vector]"
            raise RefusedError("refused", 400, "illegal_argument_exception", reason)
        return self._transport.search(path, body, **params)


@pytest.mark.parametrize(
    ("server", "vectors"),
    [
        pytest.param("elasticsearch-9", "bfloat16", marks=pytest.mark.servers),
        pytest.param("elasticsearch-9", "binary", marks=pytest.mark.servers),
        pytest.param("opensearch-3", "binary", marks=pytest.mark.slow),
    ],
    indirect=["server"],
)
def test_threads_ask_in_a_simpler_way_for_what_a_server_refuses(server: Any, name: str, vectors: str) -> None:
    index = build(connected(server, vectors=vectors, replicas=0), name)
    refusing = Refusing(index._transport, 4)
    simpler = ServerIndex(refusing, index.generation)
    queries = random_terms(np.random.default_rng(1), (len(QUERIES), TERMS), 64, 0.3)
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda _: told_of(simpler, queries), range(4)))
    assert refusing.refused == 4
    told.append(told_of(simpler, queries))
    assert refusing.refused == 4  # what was refused once is not sent again
    for hits in told:
        assert [hit.item for hit in hits] == [hit.item for hit in told_of(index, queries)]


def told_of(index: ServerIndex, queries: Any) -> list[Any]:
    return index.search(
        SearchRequest(queries[:1], WINDOW + 1, rescore=Rescore("dot", Embeddings("text", QUERIES[:1]), K))
    )[0]


@pytest.mark.parametrize("server", kinds("opensearch-3-knn", "elasticsearch-9"), indirect=True)
def test_bytes_take_no_other_length_and_nothing_is_changed(server: Any, name: str) -> None:
    backend = connected(server, vectors="byte", replicas=0)
    build(backend, name)
    terms = random_terms(np.random.default_rng(2), (1, TERMS), 64, 0.05)
    with backend.edit(name) as editor, pytest.raises(BackendError, match=r"got one of length 0\.5; leave it out"):
        editor.put([picture("new.jpg")], terms, VECTORS[:1] / 2)
    index = backend.open(name)
    assert not index.unfinished
    assert index.manifest.items["image"] == N


@pytest.mark.parametrize(
    ("server", "vectors", "needs"),
    [
        pytest.param("opensearch-3", "bfloat16", "Elasticsearch from 9.3 on", marks=pytest.mark.slow),
        pytest.param("opensearch-3", "byte", "k-NN plug-in", marks=pytest.mark.slow),
        pytest.param("elasticsearch-8", "float", "Elasticsearch from 9.3 on", marks=pytest.mark.servers),
    ],
    indirect=["server"],
)
def test_a_server_without_the_format_says_which_has_it(server: Any, name: str, vectors: str, needs: str) -> None:
    backend = connected(server, vectors=vectors, replicas=0)
    with pytest.raises(BackendError, match=f"does not store vectors as {vectors}, which .*{needs}.*leave out"):
        build(backend, name)
    assert not backend.exists(name)


@pytest.mark.parametrize("server", kinds(*FORMATS), indirect=True)
def test_what_a_server_is_said_to_store_is_what_the_address_takes(server: Any) -> None:
    said = connected(server).about()["vectors"]
    assert tuple(re.findall(r"(\w+) \(", said)) == FORMATS[server.kind.name]


@pytest.mark.parametrize("server", kinds("elasticsearch-9"), indirect=True)
def test_it_is_told_whether_stored_vectors_are_rounded(server: Any, name: str, library: Path) -> None:
    at = f"elastic+{server.url}?replicas=0"
    for vectors, told in (("binary", "16 x float16"), ("byte", "16 x float16, stored rounded")):
        made = boc("index", name, library / "photos.h5", "--replace", "--at", f"{at}&vectors={vectors}")
        assert made.exit_code == 0, made.output
        assert f"vectors   {told}" in boc("info", name, "--at", at).stdout.splitlines()
