"""Three nodes, one of which fails amid searches and amid a load. ``make test-cluster`` tries all faults there are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from boc.errors import BackendError, BocWarning
from indexing.server import requests, searches
from indexing.server.bulk import Shards
from indexing.server.transport import Json, RefusedError, Transport, UnfinishedError
from tests.servers import Cluster
from tests.servers.cluster_faults import FAULTS, Case, Result, results
from tests.servers.fixtures import kinds

ALL = bool(os.environ.get("BOC_CLUSTER_FAULTS"))
SHORT = ("node killed", "node paused")


@pytest.mark.parametrize("kind", kinds("elasticsearch-9", *(["opensearch-3"] if ALL else [])))
def test_nothing_is_lost_doubled_or_wrong_where_a_node_fails(
    kind: str, own: Callable[[Cluster], Cluster], tmp_path: Path
) -> None:
    case = Case(own(Cluster(tmp_path / "nodes", kind=kind)), tmp_path, 20_000 if ALL else 3000)
    found: dict[tuple[str, str], Result] = {}
    for fault, during, result in results(case, (*FAULTS, "network cut") if ALL else SHORT, 15 if ALL else 12):
        found[fault, during] = result
    case.close()
    assert {key: result for key, result in found.items() if not result.clean} == {}
    assert found["node killed", "load"].told
    assert not found["node killed, replicas_while_loading=1", "load"].told


class Nodes:
    """Two shards on two nodes, of which ``away`` have gone; answers searches only if none has."""

    label = "http://memory:9200"

    def __init__(self) -> None:
        self.away: set[int] = set()
        self.asked = 0

    def request(self, method: str, path: str, body: object = None, **params: object) -> Json:
        if path.endswith("/_search_shards"):
            groups = [
                [{"shard": n, "primary": True, "state": "STARTED", "node": f"id{n}"}] if n not in self.away else []
                for n in (0, 1)
            ]
            return {"nodes": {f"id{n}": {"name": f"node-{n}"} for n in (0, 1) if n not in self.away}, "shards": groups}
        self.asked += 1
        if self.away:
            raise RefusedError("all shards failed", 503)
        return {}


def test_a_shard_without_a_copy_is_named_with_the_node_that_it_was_on() -> None:
    nodes = Nodes()
    shards = Shards(nodes, "photos-boc-1")  # type: ignore[arg-type]
    assert shards.describe_lost() == ""
    nodes.away = {1}
    said = shards.describe_lost()
    assert "photos-boc-1 has no living copy of shard 1, last on node node-1," in said
    assert "shard 0" not in said


def test_a_load_waits_for_a_shard_and_says_so() -> None:
    nodes = Nodes()
    shards = Shards(nodes, "photos-boc-1", notice=0, pause=0)  # type: ignore[arg-type]
    nodes.away = {0, 1}
    with pytest.raises(UnfinishedError, match=r"of shard 0, last on node node-0, and of shard 1.*repeat the command"):
        shards.wait(0)
    with pytest.warns(BocWarning, match="goes on when it can: .*shard 0"), pytest.raises(BackendError):
        shards.wait(0.05)
    nodes.away = set()
    shards.wait(0)


def test_another_error_than_a_missing_shard_is_raised_at_once() -> None:
    class Forbidding(Nodes):
        def request(self, method: str, path: str, body: object = None, **params: object) -> Json:
            raise RefusedError("no right", 403)

    shards = Shards(Forbidding(), "photos-boc-1")  # type: ignore[arg-type]
    assert shards.describe_lost() == ""
    with pytest.raises(RefusedError, match="no right"):
        shards.wait(9)


@pytest.mark.parametrize("times", range(1, 5))
@pytest.mark.parametrize("kind", [*sorted(searches.GONE), "parsing_exception"])
def test_a_search_is_repeated_if_its_node_stopped_amid_it(kind: str, times: int) -> None:
    asked = []

    class Node:
        def search(self, path: str, body: Json) -> Json:
            asked.append(path)
            if len(asked) <= times:
                raise RefusedError("no context", 404, kind)
            return {"hits": {"hits": []}}

    pauses = (0.0,) * len(searches.PAUSES)
    found = searches.Searches(cast("Transport", Node()), "photos", requests.OWN, pauses=pauses)
    if kind in searches.GONE and times < 4:
        assert found.hits([{}], 3) == [[]]
        assert asked == ["/photos/_search?allow_partial_search_results=false"] * (times + 1)
    else:
        with pytest.raises(RefusedError, match="no context"):
            found.hits([{}], 3)
        assert len(asked) == (4 if kind in searches.GONE else 1)
