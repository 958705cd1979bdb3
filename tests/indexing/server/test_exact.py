"""Scores of real servers are integer dot products, however an index is stored, spread, cut up and
edited."""

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.typing import NDArray
from scipy import sparse

from boc import plugins
from boc.errors import BackendError, BocWarning
from boc.plugins import Engine
from boc.types import FieldType, Filter, Item, Rows, SearchRequest
from boc.vectors import unit_rows
from indexing.server.backend import ServerBackend
from indexing.server.engine import ServerEngine
from indexing.server.force_merge import one_per_shard
from indexing.server.term_fields import EXACT
from tests.oracles import new_manifest, picture, random_terms, sentence
from tests.servers.fixtures import SHARED, address, kinds, with_fields

N = 200
QUERIES = 50
TERMS = 100
ITEMS = [picture(f"{i:03d}.jpg") if i % 3 else sentence(f"{i:03d}#0") for i in range(N)]
VECTORS = unit_rows(default_rng(9).standard_normal((N, 3))).astype(np.float32)

Connect = Callable[..., ServerBackend]


ON_TWO = pytest.mark.parametrize(
    "server",
    kinds("opensearch-3", "elasticsearch-9"),
    indirect=True,
)
"""Laws about our own code, which need one server of each engine."""


@pytest.fixture
def connect(server: Any) -> Connect:
    """Connects to the server with options of the address, perhaps by other ``hosts``."""

    def connected(*, hosts="{}", **options):
        url = server.url.removeprefix("http://")
        backend = plugins.backend(
            address(server, **options).replace(
                url,
                hosts.format(url),
            ),
        )
        assert isinstance(backend, ServerBackend)
        return backend

    return connected


def build(
    backend: ServerBackend,
    name: str,
    terms: sparse.csr_array,
    items: list[Item] = ITEMS,
    fields: dict[str, FieldType] | None = None,
) -> ServerEngine:
    """An index of as many ``items`` as ``terms`` has rows."""
    manifest = replace(
        new_manifest(terms.shape[1], 3),
        fields=fields or {},
    )
    n = terms.shape[0]
    with backend.create(name, manifest, {}) as writer:
        writer.add(
            Rows(
                items[:n],
                terms,
                VECTORS[:n],
            ),
        )
        writer.commit()
    return backend.open(name)


def scores(
    index: Engine,
    queries: sparse.csr_array,
    items: list[Item] = ITEMS,
    **options: Any,
) -> NDArray[np.float64]:
    """Of all pairs (queries, items), 0 for items that are no hits."""
    rows = {item.id: row for row, item in enumerate(items)}
    scores = np.zeros((queries.shape[0], len(items)))
    for i, hits in enumerate(
        index.search(
            SearchRequest(
                queries,
                len(items) + 1,
                **options,
            ),
        ),
    ):
        for hit in hits:
            scores[i, rows[hit.item.id]] = hit.score
    return scores


def dots(
    queries: sparse.csr_array,
    terms: sparse.csr_array,
) -> NDArray[np.int64]:
    """By whole numbers."""
    return queries.toarray().astype(np.int64) @ terms.toarray().astype(np.int64).T


def drawn(
    seed: int,
    largest: int = 512,
) -> tuple[sparse.csr_array, sparse.csr_array]:
    """Documents and queries whose frequencies reach ``largest``."""
    rng = default_rng(seed)
    terms = random_terms(rng, (N, TERMS), largest, 0.2)
    terms.data[::7] = largest
    terms.data[1::7] = largest - 1
    return terms, random_terms(rng, (QUERIES, TERMS), largest, 0.3)


@with_fields(*SHARED)
def test_scores_are_exact(connect: Connect, name: str, field: str):
    terms, queries = drawn(0)
    expected = dots(queries, terms)
    assert expected.size == 10_000
    assert 100_000 < expected.max() < EXACT
    index = build(connect(field=field), name, terms)
    assert index.generation.state.field == field
    assert np.array_equal(scores(index, queries), expected)
    rows = [i for i, item in enumerate(ITEMS) if item.modality == "image"]
    pictures = [ITEMS[i] for i in rows]
    assert np.array_equal(
        scores(index, queries, pictures, modality="image"),
        expected[:, rows],
    )
    # Frequencies of several digits.
    terms, _ = drawn(0, 2**20)
    weights = queries.toarray()
    queries = sparse.csr_array(
        weights
        % 5
        * (
            np.cumsum(
                weights > 0,
                axis=1,
            )
            <= 3
        ),
    )
    expected = dots(queries, terms)
    assert 2**22 < expected.max() < EXACT
    index = build(connect(field=field), f"{name}-2", terms)
    assert np.array_equal(scores(index, queries), expected)


@with_fields(*SHARED)
def test_segments_and_deletes_keep_scores(connect: Connect, name: str, field: str):
    shards = 3
    terms, queries = drawn(13)
    expected = dots(queries, terms)
    backend = connect(field=field, shards=shards)
    build(backend, name, terms[:40])
    for start in range(40, N, 40):
        part = slice(start, start + 40)
        with backend.edit(name) as editor:
            editor.put(
                Rows(
                    ITEMS[part],
                    terms[part],
                    VECTORS[part],
                ),
            )
            editor.commit("ab" * 32)
    index = backend.open(name)
    assert segments(backend, index) >= 5 * shards
    assert np.array_equal(scores(index, queries), expected)
    with backend.edit(name) as editor:
        gone = [item.id for item in ITEMS[::3]]
        assert editor.delete(gone) == len(gone)
        editor.commit("ab" * 32)
    kept = [i for i in range(N) if i % 3]
    left = [ITEMS[i] for i in kept]
    index = backend.open(name)
    assert np.array_equal(
        scores(index, queries, left),
        expected[:, kept],
    )
    backend.compact(name)
    backend.transport.request("POST", f"/{index.generation.physical}/_refresh")
    assert segments(backend, index) <= shards
    assert np.array_equal(
        scores(index, queries, left),
        expected[:, kept],
    )


def segments(backend: ServerBackend, index: ServerEngine) -> int:
    """The number of segments that are searched, on all shards."""
    path = f"/{index.generation.physical}/_segments"
    (entry,) = backend.transport.request(
        "GET",
        path,
    )["indices"].values()
    return sum(
        segment["search"]
        for copies in entry["shards"].values()
        for shard in copies
        for segment in shard["segments"].values()
    )


@ON_TWO
def test_each_shard_gets_a_dummy(connect: Connect, name: str):
    backend = connect(shards=4)
    transport = backend.transport
    physical = build(
        backend,
        name,
        drawn(3)[0],
    ).generation.physical
    ids = one_per_shard(transport, physical)
    for id in ids:
        transport.request("PUT", f"/{physical}/_doc/{id}", {})
    transport.request("POST", f"/{physical}/_refresh")
    body = {"query": {"ids": {"values": ids}}, "track_total_hits": True}
    for shard in range(4):
        params = {"preference": f"_shards:{shard}"}
        answer = transport.request("POST", f"/{physical}/_search", body, **params)
        assert answer["hits"]["total"]["value"] == 1


@with_fields("opensearch-3", "elasticsearch-9")
def test_scores_above_the_limit_are_refused(connect: Connect, name: str, field: str):
    terms = sparse.csr_array(
        np.array(
            [[2**20, 2**20 - 1, 1], [1, 1, 1]],
            np.int32,
        ),
    )
    index = build(connect(field=field), name, terms)
    below = sparse.csr_array(
        np.array(
            [[15, 0, 7], [0, 16, 15]],
            np.int32,
        ),
    )
    assert np.array_equal(
        scores(index, below, ITEMS[:2]),
        dots(below, terms),
    )
    for weights in ([16, 0, 0], [0, 16, 16], [16, 16, 16]):
        with pytest.raises(BackendError, match=r"2\^24"):
            index.search(
                SearchRequest(
                    sparse.csr_array(np.array([weights], np.int32)),
                    1,
                ),
            )


@with_fields("opensearch-3", "elasticsearch-9")
def test_long_queries_are_cut_with_a_warning(connect: Connect, name: str, field: str):
    n_terms = 20_000
    rng = default_rng(0)
    terms = random_terms(rng, (N, n_terms), 15, 0.005)
    backend = connect(field=field)
    items = [
        replace(
            item,
            fields={"even": i % 2 == 0},
        )
        for i, item in enumerate(ITEMS)
    ]
    index = build(backend, name, terms, items, {"even": "boolean"})
    weights = rng.permutation(n_terms) % 511 + 1
    query = sparse.csr_array(weights[None].astype(np.int32))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BocWarning)
        found = scores(
            index,
            query,
            items,
            filters=[Filter("even", "=", True)],
        )
    base = index.generation.strategy.base
    digits = index.generation.strategy.digits(15)
    clauses = [(int(weights[j]) * base**i, j, i) for j in range(n_terms) for i in range(digits)]
    kept = len(clauses)
    if caught:
        said = rf"a query of {kept} clauses was cut to the (\d+) with the largest weights"
        match = re.match(said, str(caught[0].message))
        assert match is not None
        kept = int(match[1])
    assert kept > 950
    if backend.transport.engine == "opensearch":
        assert kept < 1024
    frequencies = terms.toarray().astype(np.int64)
    expected = np.zeros(N)
    for weight, j, i in sorted(clauses, key=lambda clause: -clause[0])[:kept]:
        expected += weight * (frequencies[:, j] // base**i % base)
    expected *= np.arange(N) % 2 == 0
    assert np.array_equal(found[0], expected)
    assert expected.any()
