"""A load beside its estimate: killed, gone on with, counted and searched, in a tiny run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.servers.fixtures import kinds


@pytest.mark.servers
@pytest.mark.parametrize("server", kinds("elasticsearch-9"), indirect=True)
def test_a_load_that_is_killed_stands_beside_its_estimate(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.race.codes import fit
    from bench.race.data import Data, synthetic
    from bench.race.engine import folder_of, once
    from bench.race.servers import Server
    from bench.speed import server_load

    running = Server(server.kind.name, f"elastic+{server.url}")

    @contextmanager
    def there(place: Any, heap: str, settings: Any) -> Iterator[Any]:
        yield running

    monkeypatch.setattr(server_load.Place, "server", there)
    data = Data(tmp_path, *synthetic(tmp_path, 6000, 16, 10, 0), 50, 0)
    once(folder_of(data, "codec dictionary"), 1, fit, data, "dictionary")
    place = server_load.Place(tmp_path, server.kind.name, server_load.CODE)
    running.made.append(server_load.CODE)
    try:
        for _ in range(2):
            facts = server_load.measured(place, data, "1g", 2, 500, 0.5, (10.0, 600.0))
        rows = list(server_load.lines(data, 1.0, facts))
        found = [dict(zip(server_load.HEAD, row, strict=True)) for row in rows]
        assert [row["setting"] for row in found] == ["z=64 R=100", "z=64 R=6000"]
        assert float(str(found[1]["recall"])) > 0.99  # all of them are re-ranked
        assert facts["took"]["resuming"] > 0
        assert sum(running.backend(server_load.CODE).open("boc-bench-dictionary-2").manifest.items.values()) == 6000
        assert float(str(found[0]["bytes"])) == pytest.approx(float(str(found[0]["estimated_bytes"])), rel=0.5)
    finally:
        running.clear()
