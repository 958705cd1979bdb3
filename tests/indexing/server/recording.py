"""Answers of real servers in files, for tests without a server: ``python -m
tests.indexing.server.recording KIND...``

``recorded/KIND.json`` holds the requests of each of ``SCENARIOS`` with their answers, and what it
returned. A replay answers the same requests in the same order, and any other one is an error.
Record again where a request changes.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from boc import plugins
from boc.errors import BackendError
from boc.types import Rows
from indexing.server.address import Address
from indexing.server.aliases import AliasState, Generation
from indexing.server.bulk import Bulk
from indexing.server.contents import sizes
from indexing.server.force_merge import compact, refresh
from indexing.server.requests import index_body
from indexing.server.score_check import self_test
from indexing.server.term_fields import STRATEGIES
from indexing.server.transport import Json, RefusedError, Transport
from indexing.server.writer import put_rows
from tests.oracles import new_manifest, picture, random_terms
from tests.servers import Server
from tests.servers.fixtures import address

FOLDER = Path(__file__).with_name("recorded")
N = 60
DIM = 8
TERMS = 20
PHYSICAL = "recorded-boc-000000000000-1"


class Recorder:
    """A transport that keeps each request with its answer in ``rows``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.engine = transport.engine
        self.address = transport.address
        self.label = transport.label
        self.rows: list[Json] = []

    def request(self, method: str, path: str, body: Any = None, **params: Any) -> Json:
        row: Json = {"method": method, "path": path, "params": params}
        self.rows.append(row)
        try:
            row["answer"] = answer = self._transport.request(method, path, body, **params)
        except RefusedError as error:
            row["refused"] = [
                str(error).replace(self.label, "SERVER"),
                error.status,
                error.kind,
                error.reason,
            ]
            raise
        return answer


class Replay:
    """A transport that answers as ``rows`` say, in their order. AssertionError for any other
    request."""

    address = Address(("http://recorded:9200",))
    label = "SERVER"

    def __init__(self, engine: str, rows: Sequence[Json]) -> None:
        self.engine = engine
        self.left = list(rows)

    def request(self, method: str, path: str, body: Any = None, **params: Any) -> Json:
        assert self.left, f"{method} {path} is one request more than recorded"
        row = self.left.pop(0)
        assert (method, path, params) == (row["method"], row["path"], row["params"])
        if "refused" in row:
            raise RefusedError(*row["refused"])
        answer: Json = row["answer"]
        return answer


def generation(engine: str) -> Generation:
    """An index with a field that all versions of an engine have."""
    field = "sparse_vector" if engine == "elasticsearch" else "counted_text"
    manifest = replace(new_manifest(TERMS, DIM), items={"image": N, "text": 0})
    return Generation(
        PHYSICAL,
        "recorded",
        "000000000000",
        1,
        True,
        manifest,
        AliasState("complete", field, "binary"),
    )


def check_scores(transport: Any, name: str, **mapping: Any) -> str:
    """What the known-answer test says of a field, with other values in its ``mapping``."""
    strategy = STRATEGIES[name]
    body = {
        "settings": {"number_of_shards": 1, "number_of_replicas": 0, **strategy.settings},
        "mappings": {"dynamic": False, "properties": {"terms": {**strategy.mapping, **mapping}}},
    }
    try:
        transport.request("PUT", "/recorded-scores", body)
    except RefusedError as error:
        return f"no field: {error.kind}"
    try:
        return self_test(transport, "recorded-scores", strategy) or "exact"
    except BackendError as error:
        return str(error).replace(transport.label, "SERVER")
    finally:
        transport.request("DELETE", "/recorded-scores")


SCENARIOS: dict[str, Callable[[Any], Any]] = {
    **{
        f"scores of {name}": (lambda transport, name=name: check_scores(transport, name))
        for name in STRATEGIES
    },
    "negative impact": lambda transport: check_scores(
        transport,
        "rank_features",
        positive_score_impact=False,
    ),
    "bytes": lambda transport: sizes(transport, generation(transport.engine)),
    "merge": lambda transport: compact(transport, PHYSICAL, f"{PHYSICAL}.load"),
}


@contextmanager
def loaded(transport: Transport) -> Iterator[None]:
    """The index of ``generation``, as loading leaves it."""
    made = generation(transport.engine)
    body = index_body(made.strategy, made.manifest, made.vectors, {}, shards=2)
    transport.request("PUT", f"/{PHYSICAL}", {**body, "aliases": {made.loading_alias: {}}})
    rng = np.random.default_rng(0)
    bulk = Bulk(transport, made.loading_alias, require_alias=True, patience=60)
    items = [picture(f"{i}.jpg") for i in range(N)]
    vectors = rng.standard_normal((N, DIM)).astype(np.float32)
    put_rows(bulk, made, Rows(items, random_terms(rng, (N, TERMS), 9, 0.3), vectors / 10, None))
    bulk.flush()
    refresh(transport, PHYSICAL)
    transport.request("POST", f"/{PHYSICAL}/_flush")
    yield
    transport.request("DELETE", f"/{PHYSICAL}")


def record(kind: str) -> None:
    """Start a server, go through all scenarios, and write the file of its kind."""
    with tempfile.TemporaryDirectory() as folder, Server(kind, Path(folder)).start() as server:
        backend: Any = plugins.backend(address(server))
        found: Json = {}
        with loaded(backend.transport):
            for name, scenario in SCENARIOS.items():
                recorder = Recorder(backend.transport)
                result = scenario(recorder)
                found[name] = {"result": result, "requests": recorder.rows}
    lines = [
        f"{json.dumps(name)}: {json.dumps(each, separators=(',', ':'))}"
        for name, each in found.items()
    ]
    (FOLDER / f"{kind}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    for kind in sys.argv[1:]:
        record(kind)
