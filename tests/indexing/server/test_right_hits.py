"""The hits of a request without budgets: as many as pass, up to k, and the right ones, however
candidates are found."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from boc import plugins
from boc.inputs.metadata import holds
from boc.rerank.storage import store
from boc.types import Embeddings, Filter, Modality, Ragged, Rescore, Rows, SearchRequest
from boc.vectors import unit_rows
from indexing.server.engine import ServerEngine
from indexing.server.vector_fields import Binary
from tests.oracles import new_manifest, picture, random_terms, sentence
from tests.servers.fixtures import SHARED, address, kinds

N = 120
DIM = 8
TERMS = 40
QUERIES = 4
RNG = np.random.default_rng(3)
ITEMS = [
    replace(
        picture(f"{i:03d}") if i % 3 else sentence(f"{i:03d}"),
        fields={"n": i} if i % 5 else {},
    )
    for i in range(N)
]
CODES = random_terms(RNG, (N, TERMS), 5, 0.05)
FIRST = sparse.csr_array((1, TERMS), dtype=np.int32)
"""A query without terms."""
ASKED = sparse.csr_array(
    sparse.vstack([FIRST, random_terms(RNG, (QUERIES - 1, TERMS), 5, 0.1)]),
)
SETS = Ragged.from_sets([RNG.standard_normal((1 + i % 2, 5)) for i in range(N)], 5)
VECTORS = unit_rows(RNG.standard_normal((N + QUERIES, DIM)))
CASES: list[tuple[int, Modality, list[Filter]]] = [
    (3, "image", []),
    (N + 9, "image", []),
    (10, "text", [Filter("n", "<", 40)]),
    (10, "image", [Filter("n", "!=", 7), Filter("n", ">=", 100)]),
    (10, "image", [Filter("n", "<", 0)]),
]
FEW = 30  # items


@pytest.fixture(params=[1.0, 1.5], ids=["unit", "longer"])
def vectors(request) -> NDArray[np.float32]:
    """The server re-ranks by unit vectors only."""
    return (VECTORS * request.param).astype(np.float16).astype(np.float32)


@pytest.mark.parametrize("server", kinds(*SHARED), indirect=True)
def test_hits_are_the_right_ones(
    server: Any,
    name: str,
    vectors: NDArray[np.float32],
    monkeypatch,
):
    backend = plugins.backend(address(server, replicas=0))
    manifest = replace(
        new_manifest(TERMS, DIM, dtype="float16", concepts="float16"),
        fields={"n": "integer"},
    )
    with backend.create(name, manifest, {}) as writer:
        writer.add(Rows(ITEMS, CODES, vectors[:N], store(SETS, "float16")))
        writer.commit()
    queries = Embeddings("text", vectors[N:], SETS.take(range(QUERIES)))
    products = vectors[:N] @ queries.vectors.T
    # All items are few; some filters leave few, and the rest is scanned if terms find too few;
    # nothing is ever scanned.
    for quick, patience in ((N, 1), (FEW, N), (0, 0)):
        monkeypatch.setattr(Binary, "quick", quick * DIM)
        index = backend.open(name)
        assert isinstance(index, ServerEngine)
        index.costs = index.costs._replace(patience=patience)
        for k, modality, filters in CASES:
            passing = [
                i
                for i, item in enumerate(ITEMS)
                if item.modality == modality and all(holds(f, item.fields) for f in filters)
            ]
            rescore = Rescore("dot", queries, k)
            request = SearchRequest(ASKED, 2 * k, modality, filters, rescore, planned=True)
            for i, hits in enumerate(index.search(request)):
                order = sorted(passing, key=lambda row: (-products[row, i], row))[:k]
                rows = [int(hit.item.id) for hit in hits]
                assert len(rows) == len(order)
                assert set(rows) <= set(passing)
                assert [hit.score for hit in hits] == pytest.approx(products[rows, i], abs=1e-3)
                if len(passing) <= quick or len(order) == len(passing):
                    assert rows == order
                first = Rescore("dot", queries.take([i]), k)
                alone = replace(request, terms=ASKED[[i]], rescore=first)
                body = json.loads(index.request(alone))
                page = server.request("POST", f"{name}/_search", body)["hits"]["hits"]
                assert [hit["_source"]["id"] for hit in page] == [hit.item.id for hit in hits]
            aligned = index.search(replace(request, rescore=Rescore("mrsw", queries, k)))
            assert [len(hits) for hits in aligned] == [min(k, len(passing))] * QUERIES
            by_hand = index.search(replace(request, planned=False))
            shared = (CODES[passing] @ ASKED.T).toarray() > 0
            assert [len(hits) for hits in by_hand] == np.minimum(shared.sum(axis=0), k).tolist()


@pytest.mark.parametrize("server", kinds("opensearch-3", "elasticsearch-9"), indirect=True)
def test_items_added_meanwhile_are_found(
    server: Any,
    name: str,
    monkeypatch,
):
    monkeypatch.setattr(Binary, "quick", FEW * DIM)
    backend = plugins.backend(address(server, replicas=0))
    rows = VECTORS.astype(np.float16).astype(np.float32)
    manifest = replace(new_manifest(TERMS, DIM, dtype="float16"), fields={"n": "integer"})
    with backend.create(name, manifest, {}) as writer:
        writer.add(Rows(ITEMS[: FEW // 2], CODES[: FEW // 2], rows[: FEW // 2]))
        writer.commit()
    index = backend.open(name)
    rescore = Rescore("dot", Embeddings("text", rows[[N]]), 2)
    filters = [Filter("n", ">", 0)]
    request = SearchRequest(ASKED[[1]], 4, "image", filters, rescore, planned=True)
    assert len(index.search(request)[0]) == 2
    with backend.edit(name) as editor:
        editor.put(Rows(ITEMS[FEW // 2 :], CODES[FEW // 2 :], rows[FEW // 2 : N]))
        editor.commit("ef" * 32)
    best = sorted(range(N), key=lambda i: -rows[i] @ rows[N])
    order = [ITEMS[i].id for i in best if ITEMS[i].modality == "image" and ITEMS[i].fields]
    assert [hit.item.id for hit in index.search(request)[0]] == order[:2]
