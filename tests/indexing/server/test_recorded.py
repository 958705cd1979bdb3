"""What is sent to servers, and read in their answers, by recorded answers of each: no server is
needed."""

import json
from typing import Any

import pytest

from tests.indexing.server.recording import FOLDER, SCENARIOS, Replay
from tests.servers import KINDS

FILES = sorted(FOLDER.glob("*.json"))


def replay(kind: str, scenario: str) -> Any:
    """What a scenario returns; AssertionError unless it sends what it sent to a server of ``kind``,
    in that order."""
    recorded = json.loads((FOLDER / f"{kind}.json").read_text(encoding="utf-8"))[scenario]
    server = Replay(KINDS[kind].engine, recorded["requests"])
    found = SCENARIOS[scenario](server)
    assert server.left == []
    assert found == recorded["result"]
    return found


@pytest.mark.parametrize("kind", [file.stem for file in FILES])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_replay_equals_recording(kind: str, scenario: str) -> None:
    replay(kind, scenario)


@pytest.mark.parametrize("kind", [file.stem for file in FILES])
def test_sizes_of_recorded_servers(kind: str) -> None:
    assert all(replay(kind, "bytes")[part] > 0 for part in ("postings", "vectors", "other"))


@pytest.mark.parametrize("kind", ["opensearch-2", "opensearch-3"])
def test_rank_features_of_recorded_servers(kind: str) -> None:
    assert replay(kind, "scores of rank_features") == "exact"
    assert "positive_score_impact is false, must be true" in replay(kind, "negative impact")
