"""An index that would score wrongly is refused with the name of what does it."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from boc import plugins
from boc.errors import BackendError
from boc.types import Rows
from indexing.server import score_check, term_fields
from indexing.server.backend import ServerBackend
from indexing.server.score_check import self_test
from indexing.server.term_fields import RankFeatures, SparseVector, Strategy, Text
from indexing.server.transport import Json, Transport
from tests.oracles import new_manifest, picture
from tests.servers.fixtures import FIELDS, address, kinds

PRUNING = ("opensearch-3", "elasticsearch-9")
"""One server of each engine, and the oldest one that prunes by default."""
ON_EACH = pytest.mark.parametrize("server", kinds("opensearch-3", "elasticsearch-9"), indirect=True)


class Saturating(RankFeatures):
    def clause(self, feature: str, weight: int) -> Json:
        return {"rank_feature": {"field": f"terms.{feature}", "boost": weight}}


class Pruning(SparseVector):
    def query(self, features: Mapping[str, int]) -> Json:
        return {"sparse_vector": {"field": "terms", "query_vector": dict(features)}}


class HiddenBM25(Text):
    """BM25 under the name of the right similarity: only scores show it."""

    @property
    def settings(self) -> Json:
        return {**super().settings, "similarity": {"boc_dot": {"type": "BM25"}}}


class Halving(Text):
    def clause(self, feature: str, weight: int) -> Json:
        return super().clause(feature, max(1, weight // 2))


def as_it_is(body: Json) -> None:
    """Make the index as the strategy says."""


def change(**values: Any) -> Callable[[Json], None]:
    """Of the mapping of the field: other values, None to leave one out."""

    def changed(body):
        mapped = {**body["mappings"]["properties"]["terms"], **values}
        kept = {name: value for name, value in mapped.items() if value is not None}
        body["mappings"]["properties"]["terms"] = kept

    return changed


def root(body: Json) -> None:
    body["settings"]["similarity"]["boc_dot"]["script"]["source"] = "return Math.sqrt(doc.freq);"


FAULTS: dict[str, tuple[Strategy, Callable[[Json], None], str]] = {
    "default saturation": (
        Saturating(),
        as_it_is,
        r"wrong scores \(rank_features\): test document",
    ),
    "pruning": (Pruning(), as_it_is, r"wrong scores \(sparse_vector\): test document"),
    "BM25 by another name": (HiddenBM25(), as_it_is, r"wrong scores \(text\): test document 0"),
    "another": (Halving(), as_it_is, "test document 8 has 68, not 100; look for"),
    "BM25": (Text(), change(similarity=None), r"wrong scores \(text\): test document"),
    "script": (Text(), root, r"wrong scores \(text\): test document"),
    "negative impact": (
        RankFeatures(),
        change(positive_score_impact=False),
        r"wrong scores \(rank_features\): test document",
    ),
    "no field": (
        Text(),
        lambda body: body["mappings"].update(properties={}),
        r"wrong scores \(text\): test document",
    ),
}


@lru_cache
def connect(url: str) -> ServerBackend:
    found = plugins.backend(url)
    assert isinstance(found, ServerBackend)
    return found


@pytest.fixture
def backend(server: Any) -> ServerBackend:
    return connect(address(server))


@pytest.fixture
def index(name: str) -> str:
    return name


def body(strategy: Strategy, shards: int = 1) -> Json:
    return {
        "settings": {"number_of_shards": shards, "number_of_replicas": 0, **strategy.settings},
        "mappings": {"dynamic": False, "properties": {"terms": strategy.mapping}},
    }


def count(transport: Transport, index: str) -> int:
    return int(transport.request("GET", f"/{index}/_count")["count"])


@pytest.mark.parametrize("shards", [1, 5])
def test_right_scores_pass(server: Any, backend: ServerBackend, index: str, shards: int):
    for name in FIELDS[server.kind.name]:
        strategy = term_fields.STRATEGIES[name]
        backend.transport.request("PUT", f"/{index}", body(strategy, shards))
        assert self_test(backend.transport, index, strategy) is None
        assert count(backend.transport, index) == 0
        backend.transport.request("DELETE", f"/{index}")


@pytest.mark.parametrize(
    ("server", "fault"),
    [
        pytest.param(name, fault, marks=each.marks, id=f"{name}-{fault}")
        for name, each in zip(PRUNING, kinds(*PRUNING), strict=True)
        for fault in FAULTS
        if FAULTS[fault][0].name in FIELDS[name]
    ],
    indirect=["server"],
)
def test_wrong_scores_are_refused(backend: ServerBackend, index: str, fault: str):
    strategy, spoil, message = FAULTS[fault]
    asked = body(strategy)
    spoil(asked)
    backend.transport.request("PUT", f"/{index}", asked)
    with pytest.raises(BackendError, match=message):
        self_test(backend.transport, index, strategy)


@ON_EACH
def test_wrong_scores_prevent_an_index(
    server: Any,
    backend: ServerBackend,
    index: str,
    monkeypatch,
):
    strategy = next(s for s in (Saturating(), Pruning()) if s.name in FIELDS[server.kind.name])
    monkeypatch.setitem(term_fields.STRATEGIES, strategy.name, strategy)
    backend = ServerBackend(backend.transport, backend.address, [strategy.name])
    terms = sparse.csr_array(np.ones((1, 3), np.int32))
    vectors = np.ones((1, 3), np.float32)
    with (
        pytest.raises(BackendError, match="computes wrong scores"),
        backend.create(index, new_manifest(3, 3), {}) as writer,
    ):
        writer.add(Rows([picture("a.jpg")], terms, vectors))
    assert backend.transport.request("GET", f"/{index}-boc-*/_alias") == {}


def test_check_documents_reveal_pruning():
    """By the rule of Elasticsearch: five times as frequent as the average, and at most 0.4 of the
    best weight."""
    strategy = SparseVector()
    documents = list(strategy.documents(score_check.check_documents()))
    asked = [
        strategy.features(list(query), list(query.values()), 2) for query in score_check.QUERIES
    ]
    frequency = {f: sum(f in d for d in documents) for d in documents for f in d}
    average = sum(frequency.values()) / len(frequency)
    dropped = [
        {
            f
            for f, w in query.items()
            if frequency.get(f, 0) >= 5 * average and w <= 0.4 * max(query.values())
        }
        for query in asked
    ]
    assert {"t0"} in dropped
