"""Waiting for a server to give up what it keeps for replicas, as a server without any time passing
tells of it."""

from collections.abc import Sequence
from typing import Any

import pytest

from indexing.server.force_merge import PERIOD, await_release

LAST = 99


class Told:
    """A transport to an index of two shards; the first retains operations from the next of
    ``steps`` on."""

    def __init__(self, steps: Sequence[int]) -> None:
        self.steps = list(steps)
        self.settings: list[Any] = []

    def request(self, method: str, path: str, body: Any = None, **params: Any) -> Any:
        if path == "/photos/_settings":
            self.settings.append(body)
            return {}
        assert (method, path, params) == ("GET", "/photos/_stats/store", {"level": "shards"})
        number = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        shards = {str(shard): [copy(first)] for shard, first in enumerate((number, LAST + 1))}
        return {"indices": {"photos": {"shards": shards}}}


def copy(first: int) -> dict[str, Any]:
    return {
        "seq_no": {"max_seq_no": LAST},
        "retention_leases": {"leases": [{"retaining_seq_no": first}]},
    }


@pytest.mark.parametrize("first", [0, LAST + 1])
def test_no_wait_for_release(first: int) -> None:
    server = Told([first])
    await_release(server, "photos")  # type: ignore[arg-type]
    assert server.settings == [{PERIOD: None}]  # as a load that was killed while it waited left it


@pytest.mark.parametrize("steps", [[30, 30, 30, LAST + 1], [LAST]])
def test_wait_for_release(steps: list[int]) -> None:
    server = Told(steps)
    release = 60 if len(steps) > 1 else 0
    await_release(server, "photos", release=release, pause=0)  # type: ignore[arg-type]
    assert server.settings == [{PERIOD: "1s"}, {PERIOD: None}]
    assert len(server.steps) == 1
