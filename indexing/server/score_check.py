"""Compare the scores of a new index with known values before items are loaded into the index.

The test indexes, searches and removes a dozen documents with known scores. Another test uses a
small temporary index to find out how a server can store codes.
"""

import time
import uuid
from collections.abc import Sequence

import numpy as np
import orjson
from scipy import sparse

from boc.errors import BackendError
from boc.types import TermMatrix

from .aliases import drop_index, indices_of
from .bulk import Bulk
from .creation import create_index
from .requests import empty_body
from .searches import WHOLE
from .term_fields import STRATEGIES, Strategy
from .transport import Json, RefusedError, Transport
from .vector_fields import VectorField

COMMON = [1, 2, 3, 5, 7, 9, 12, 15, 100, 300, 511, 70_000]
"""Frequencies of term 0 in the test documents, from the minimum to the maximum that fits in a
single number, and beyond."""
OWN = 4
"""Number of terms that occur in only one document. Together with a term that occurs in all
documents, this number reveals whether the server prunes terms. A server that prunes drops terms
that are five times as frequent as the average term and have at most 0.4 of the maximum weight."""
QUERIES = [{0: 1}, {0: 1, 21: 511}, {0: 127, 1: 1, 6: 64, 13: 511, 48: 3}]
ROUTING = "boc"
"""Routing value that sends all test documents to the same shard, because pruning is based on the
frequencies in each shard."""


def self_test(transport: Transport, index: str, strategy: Strategy) -> str | None:
    """Return None if ``index``, created for ``strategy``, returns exact scores, or the reason why
    the server does not support the strategy.

    Raises BackendError if scores are wrong. If the test succeeds, all test documents are removed.
    """
    terms = check_documents()
    documents = list(strategy.documents(terms))
    digits = strategy.digits(int(terms.data.max()))
    scores = []
    try:
        _bulk(transport, index, [{"terms": strategy.field(document)} for document in documents])
        for query in QUERIES:
            features = strategy.features(list(query), list(query.values()), digits)
            body = {
                "query": strategy.query(features),
                "size": len(documents),
                "_source": False,
            }
            path = f"/{index}/_search"
            answer = transport.request("POST", path, body, routing=ROUTING, **WHOLE)
            # Documents that are not in the hits have a score of 0.
            scores.append(np.zeros(len(documents)))
            for hit in answer["hits"]["hits"]:
                scores[-1][int(hit["_id"].rpartition(":")[2])] = hit["_score"]
    except RefusedError as error:
        if error.status != 400:
            raise
        return error.reason or error.kind
    columns = terms.toarray().T.astype(np.float64)
    for query, results in zip(QUERIES, scores, strict=True):
        expected = sum(weight * columns[term] for term, weight in query.items())
        for row in np.flatnonzero(results != expected):
            raise BackendError(
                f"{transport.label} computes wrong scores ({strategy.name}): test document {row} "
                f"has {results[row]:g}, not {expected[row]:g}; look for a plug-in, proxy or "
                "template that changes queries or similarities",
            )
    _bulk(transport, index, [None] * len(documents))
    return None


def check_documents() -> TermMatrix:
    """Return the term frequencies of the test documents, int32 (12, V)."""
    n = len(COMMON)
    rows = np.zeros((n, 1 + OWN * n), np.int32)
    rows[:, 0] = COMMON
    for i in range(n):
        rows[i, 1 + OWN * i : 1 + OWN * (i + 1)] = [1 + i, 8, 15, 2]
    return sparse.csr_array(rows)


def _bulk(transport: Transport, index: str, documents: Sequence[Json | None]) -> None:
    """Index test documents, or delete the documents given as None."""
    # The patience is short because little work is lost if the load is started again.
    with Bulk(transport, index, routing=ROUTING, patience=30) as bulk:
        for i, document in enumerate(documents):
            key = f"boc:test:{i}"
            if document is None:
                bulk.delete(key)
            else:
                bulk.index(key, orjson.dumps(document))
    transport.request("POST", f"/{index}/_refresh")


def lack_of(transport: Transport, field: str) -> str | None:
    """Test with a small temporary index whether the server can store codes with this strategy.
    Return the reason if it cannot, otherwise None."""
    strategy = STRATEGIES[field]
    index = f"boc-probe-{uuid.uuid4().hex[:12]}"
    body = empty_body({}, {"terms": strategy.mapping}, [], 0)
    body["settings"] |= strategy.settings
    try:
        # Remove the indexes of processes that were killed more than a day ago.
        for each, entry in indices_of(transport, "boc-probe-*").items():
            if int(entry["settings"]["index"]["creation_date"]) < 1000 * (time.time() - 86_400):
                drop_index(transport, each)
        create_index(transport, index, body)
        try:
            return self_test(transport, index, strategy)
        finally:
            transport.request("DELETE", f"/{index}")
    except RefusedError as error:
        if error.status in (401, 403) and not error.kind.endswith("block_exception"):
            return "this user may not make the index boc-probe-*"
        return error.reason or error.kind
    except BackendError as error:
        return str(error)


def takes_vectors(transport: Transport, index: str, field: VectorField, dim: int) -> bool:
    """Return whether the server can store and compare a vector in the field ``vector`` of an
    index."""
    path = f"/{index}/_doc/boc:test:vector"
    row = np.full((1, dim), dim**-0.5, field.dtype)
    (value,) = field.values(row)
    ours = {"ids": {"values": ["boc:test:vector"]}}
    query = field.best(ours, row[0].astype(np.float32), 1)
    search = {"query": query, "size": 1, **field.hit_fields}
    try:
        transport.request("PUT", path, {"vector": value}, refresh="true")
        hits = transport.request("POST", f"/{index}/_search", search)["hits"]["hits"]
    except RefusedError as error:
        if error.status != 400:
            raise
        return False
    transport.request("DELETE", path)
    return len(hits) == 1
