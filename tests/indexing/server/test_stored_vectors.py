"""Real servers re-rank by the vectors that they store, in every format, with and without a search
of their own."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boc import plugins
from boc.errors import BackendError
from boc.types import Embeddings, Filter, Rescore, Rows, SearchRequest
from boc.vectors import unit_rows
from indexing.server.backend import ServerBackend
from indexing.server.engine import ServerEngine
from indexing.server.requests import WINDOW
from indexing.server.vector_fields import quantise
from tests.helpers import boc, run
from tests.oracles import new_manifest, picture, random_terms
from tests.servers.fixtures import address, kinds

N = 200
DIM = 24
TERMS = 100
K = 10
RNG = np.random.default_rng(9)
ITEMS = [
    replace(picture(f"{i:03d}.jpg"), fields={"tag": "even" if i % 2 == 0 else "odd"})
    for i in range(N)
]
VECTORS = unit_rows(RNG.standard_normal((N, DIM))).astype(np.float16).astype(np.float32)
QUERIES = (1.5 * unit_rows(RNG.standard_normal((8, DIM)))).astype(np.float32)
OFF = {"binary": 0.0, "float": 0.0, "bfloat16": 2.0**-8, "byte": 2.0**-7}
"""Format -> how much a component of a stored vector may be off, in parts of the largest one."""
FORMATS = {
    "opensearch-3": ["binary"],
    "elasticsearch-8": ["binary", "float", "byte"],
    "elasticsearch-9": ["binary", "float", "bfloat16", "byte"],
    "opensearch-3-knn": ["binary", "float", "byte"],
}
KINDS = ("elasticsearch-8", "elasticsearch-9", "opensearch-3-knn")
CASES = [
    pytest.param(kind, vectors, shards, id=f"{kind}-{vectors}-{shards}", marks=pytest.mark.servers)
    for kind in KINDS
    for vectors, shards in (("binary", 3), ("float", 3), ("bfloat16", 1), ("byte", 1), ("byte", 3))
    if vectors in FORMATS[kind]
]


def connected(server: Any, **options: object) -> ServerBackend:
    found = plugins.backend(address(server, **options))
    assert isinstance(found, ServerBackend)
    return found


def build(backend: ServerBackend, name: str) -> ServerEngine:
    manifest = replace(new_manifest(TERMS, DIM), vector_dtype="float16", fields={"tag": "keyword"})
    with backend.create(name, manifest, {}) as writer:
        terms = random_terms(0, (N, TERMS), 64, 0.05)
        writer.add(Rows(ITEMS, terms, VECTORS))
        writer.commit()
    return backend.open(name)


def products(index: ServerEngine, vectors: str) -> NDArray[np.float32]:
    """Of all queries as they are sent, and all vectors as they are stored."""
    stored = index.vectors([item.id for item in ITEMS]).astype(np.float32)
    asked = quantise(QUERIES).astype(np.float32) if vectors == "byte" else QUERIES
    return np.linalg.norm(QUERIES, axis=1, keepdims=True) * unit_rows(asked) @ stored.T


@pytest.mark.parametrize(("server", "vectors", "shards"), CASES, indirect=["server"])
def test_stored_vectors_rank_items(server: Any, name: str, vectors: str, shards: int):
    backend = connected(server, vectors=vectors, shards=shards, replicas=0)
    index = build(backend, name)
    rows = {item.id: i for i, item in enumerate(ITEMS)}
    stored = index.vectors(list(rows))
    assert stored.dtype == np.float16
    largest = np.abs(VECTORS).max(axis=1, keepdims=True)
    assert (np.abs(stored.astype(np.float32) - VECTORS) <= OFF[vectors] * largest).all()
    assert index.exact_vectors == (OFF[vectors] == 0)
    assert index.sizes()["vectors"] >= N * DIM

    queries = random_terms(1, (len(QUERIES), TERMS), 64, 0.3)
    terms = index.terms(list(rows)).toarray()
    shared = queries.toarray() @ terms.T > 0
    wanted = products(index, vectors)
    odd = np.arange(N) % 2 == 1
    rescore = Rescore("dot", Embeddings("text", QUERIES), K)
    for filters, passing in (([], shared), ([Filter("tag", "=", "odd")], shared & odd)):
        answers = index.search(SearchRequest(queries, WINDOW + 1, None, filters, rescore))
        for i, hits in enumerate(answers):
            present = np.flatnonzero(passing[i])
            got = [rows[hit.item.id] for hit in hits]
            scores = [hit.score for hit in hits]
            assert [hit.item for hit in hits] == [ITEMS[row] for row in got]
            assert len(set(got)) == min(K, len(present))
            assert set(got) <= set(present.tolist())
            assert scores == sorted(scores, reverse=True)
            assert np.allclose(scores, wanted[i, got], atol=2e-3)
            best = np.sort(wanted[i, present])[::-1][:K]
            assert np.allclose(wanted[i, got], best, atol=2e-3)
    for i, hits in enumerate(index.search(SearchRequest(queries, 3 * K, rescore=rescore))):
        got = [rows[hit.item.id] for hit in hits]
        assert np.allclose([hit.score for hit in hits], wanted[i, got], atol=2e-3)
    first = Rescore("dot", Embeddings("text", QUERIES[:1]), K)
    search = SearchRequest(queries[:1], WINDOW + 1, rescore=first)
    answer = backend.transport.search(f"/{name}/_search", json.loads(index.request(search)))
    ids = [hit["_source"]["id"] for hit in answer["hits"]["hits"]][:K]
    assert ids == [hit.item.id for hit in index.search(search)[0]]


@pytest.mark.parametrize("server", kinds("opensearch-3-knn", "elasticsearch-9"), indirect=True)
def test_bytes_take_unit_vectors(server: Any, name: str):
    backend = connected(server, vectors="byte", replicas=0)
    build(backend, name)
    terms = random_terms(2, (1, TERMS), 64, 0.05)
    with (
        backend.edit(name) as editor,
        pytest.raises(BackendError, match=r"got one of length 0\.5; leave it out"),
    ):
        editor.put(Rows([picture("new.jpg")], terms, VECTORS[:1] / 2))
    index = backend.open(name)
    assert not index.is_unfinished
    assert index.manifest.items["image"] == N


@pytest.mark.parametrize("server", kinds("opensearch-3"), indirect=True)
def test_unknown_format_is_refused(server: Any, name: str):
    backend = connected(server, vectors="byte", replicas=0)
    with pytest.raises(
        BackendError,
        match=r"does not store vectors as byte; leave out",
    ):
        build(backend, name)
    assert not backend.exists(name)


@pytest.mark.parametrize("server", kinds("elasticsearch-9"), indirect=True)
def test_info_mentions_rounding(server: Any, name: str, library: Path):
    at = address(server, replicas=0)
    for vectors, told in (("binary", "16 x float16"), ("byte", "16 x float16, stored rounded")):
        run(f"index {name} {library}/photos.h5 --replace --at", f"{at}&vectors={vectors}")
        assert f"vectors   {told}" in boc(f"info {name} --at {at}").stdout.splitlines()
